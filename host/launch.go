package host

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/patchbay-dev/patchbay/internal/launch/cipd"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Spec says what [Host.Launch] launches.
type Spec struct {
	// Name is the plugin's name in logs and events; that of the program's file if it is empty.
	Name string
	// Args are the program and its arguments. A program without a slash is looked up in PATH, any other relative one in Dir.
	Args []string
	// Env is the environment; that of this process if it is nil. The host adds the variable that announces the handshake.
	Env []string
	// Dir is the working directory; that of this process if it is empty.
	Dir string
	// Controller says what the plugin may call. Nil: nothing but what every plugin may.
	Controller *Controller
	// Protocol is the protocol between the plugin and its host; [ProtocolPatchbay] if it is empty.
	Protocol Protocol
	// PluginSocket is the path at which the plugin should serve. Only the handshake of [ProtocolPatchbay] can convey it. The plugin inherits a
	// socket for it, after the ExtraFiles, or makes its own. It is removed when the plugin has ended. Two plugins of a host cannot have the
	// same one at the same time.
	PluginSocket string
	// ExtraFiles become descriptors 3 and up of the plugin. They remain the caller's.
	ExtraFiles []*os.File
	// SHA256 is the digest that the program must have, in hexadecimal; otherwise the error wraps [plugin.ErrDigest]. With it, or with Admit, a
	// sealed copy in memory is executed, not the file: see docs/adr/0009.
	SHA256 string
	// Interpreter is the path of the program that runs the plugin if it is a script, exactly as its first line names it. With SHA256 or
	// Admit, a script with any other interpreter is not run.
	Interpreter string
	// Admit decides whether the program may run, by Name and the digest of what is about to be executed. It may block until ctx ends. An
	// error is a refusal. It is a function because the decision may be an admission plugin's or the host's own.
	Admit func(ctx context.Context, pin plugin.Pin) error
	// User and Group are the names or numbers of those that the plugin runs as; it has no supplementary groups then. Empty: those of this
	// process, and for Group that of User. This process must be root. If the directory of PluginSocket does not exist, it is created for
	// this user and removed when the plugin has ended; its parent directory becomes searchable for everybody.
	User, Group string
	// OwnDir is an existing directory for the plugin's own files. It is given to that user and group, and the directories above it, up to
	// that of PluginSocket, become searchable for everybody. The caller removes it.
	OwnDir string
	// Limits bound what the plugin may use. A limit that this system cannot enforce is an error.
	Limits plugin.Limits
	// NoNewPrivs keeps the plugin and its descendants from gaining privileges by executing a program.
	NoNewPrivs bool
	// Survive lets the plugin run on when this process ends. It needs [Host].StateDir; a later host with the same one can adopt it.
	Survive bool
	// Tag is kept with a plugin that survives, for the host that adopts it; see [PluginProcess.Tag].
	Tag string
	// StopTimeout is how long [PluginProcess.Terminate] waits before it kills the plugin (default 5 s). SIGTERM is sent halfway.
	StopTimeout time.Duration
	// Adapter is set for a plugin of a protocol that the host does not know; Protocol does not matter then. Its PluginSocket is not passed
	// on, and it cannot survive.
	Adapter ProtocolAdapter
}

// mayBeCIPD reports whether the plugin calls its host with Patchbay's protocol, and its program does not show whose services it calls. The
// error is for a program that calls those of CIPD.
func (h *Host) mayBeCIPD(s Spec, program string) (bool, error) {
	if s.Controller == nil || s.Adapter != nil || s.Protocol == ProtocolCIPD {
		return false, nil
	}
	found := h.scan(program)
	if found.isCIPD {
		return false, errors.New("it calls CIPD's services and none of Patchbay's; " + needsCIPD)
	}
	return !found.isPatchbay, nil
}

// scanned is the result of [cipd.Scan] for a program.
type scanned struct {
	file               os.FileInfo
	isPatchbay, isCIPD bool
}

// maxScanned bounds the results of scan that a host remembers.
const maxScanned = 16

// scan reads a program, unless its result is remembered. The result is zero for a program that cannot be read.
func (h *Host) scan(program string) scanned {
	file, err := os.Stat(program)
	if err != nil {
		return scanned{}
	}
	h.mu.Lock()
	i := slices.IndexFunc(h.scanned, func(s scanned) bool {
		return os.SameFile(s.file, file) && s.file.Size() == file.Size() && s.file.ModTime().Equal(file.ModTime())
	})
	if i >= 0 {
		defer h.mu.Unlock()
		return h.scanned[i]
	}
	h.mu.Unlock()
	found := scanned{file: file}
	found.isPatchbay, found.isCIPD = cipd.Scan(program)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scanned = append(h.scanned[max(0, len(h.scanned)+1-maxScanned):], found)
	return found
}

// survivor is what is kept of a plugin that survives, for a later host.
type survivor struct {
	PluginSocket string `json:"pluginSocket,omitempty"`
	Tag          string `json:"tag,omitempty"`
	// StopTimeout is in nanoseconds.
	StopTimeout time.Duration `json:"stopTimeout,omitempty"`
}

// LaunchPlugin launches a plugin with this command line. It does not wait for the plugin to connect; an exit right after the start is not
// an error here, but one of [PluginProcess.Err]. The context is for logging from the plugin, see [WithLogger]: its end does not stop the
// plugin. After Close the error wraps [ErrClosed].
//
// The plugin speaks [ProtocolPatchbay]. A CIPD plugin is refused: launch it with [Host.Launch] and [ProtocolCIPD]. One that a script starts
// waits to be terminated, and its Err says the same.
func (h *Host) LaunchPlugin(ctx context.Context, args []string, ctrl *Controller) (*PluginProcess, error) {
	return h.Launch(ctx, Spec{Args: args, Controller: cmp.Or(ctrl, &Controller{})})
}

// Launch is [Host.LaunchPlugin] with every option. The context is passed to [Spec].Admit, too; its end does not stop a plugin that was
// started. The error says why no process runs: the spec is invalid, the program is missing or cannot be executed, or its digest does not
// match, which wraps [plugin.ErrDigest]. It wraps [ErrNotInitialized] before Initialize and [ErrClosed] after Close.
func (h *Host) Launch(ctx context.Context, spec Spec) (*PluginProcess, error) {
	if err := h.usable(); err != nil {
		return nil, fmt.Errorf("cannot launch a plugin: %w", err)
	}
	if len(spec.Args) == 0 || spec.Args[0] == "" {
		return nil, errors.New("cannot launch a plugin: its command line is empty")
	}
	if spec.Name == "" {
		spec.Name = filepath.Base(spec.Args[0])
	}
	p, err := h.launch(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("cannot launch plugin %s: %w", spec.Name, err)
	}
	return p, nil
}

// Validate returns an error if [Host.Launch] would refuse the description whatever is on this machine.
func (s *Spec) Validate() error {
	checked := *s
	_, err := checked.check()
	return err
}

// check returns an error if the description is invalid, and normalizes its path and protocol.
func (s *Spec) check() (granted grants, err error) {
	switch s.Protocol = cmp.Or(s.Protocol, ProtocolPatchbay); {
	case s.Adapter != nil:
		s.Protocol = protocolForeign
	case s.Protocol != ProtocolPatchbay && s.Protocol != ProtocolCIPD:
		return nil, fmt.Errorf("unknown protocol %q: use %q or %q", s.Protocol, ProtocolPatchbay, ProtocolCIPD)
	}
	if granted, err = s.Controller.services(s.Protocol); err != nil {
		return nil, err
	}
	if s.PluginSocket != "" {
		if s.PluginSocket, err = filepath.Abs(s.PluginSocket); err != nil {
			return nil, err
		}
	}
	if s.SHA256 != "" {
		if _, err = sealedexec.ParseDigest(s.SHA256); err != nil {
			return nil, err
		}
	}
	switch {
	case len(s.PluginSocket) > maxPath:
		err = fmt.Errorf("the path of its socket has more than %d bytes: %s", maxPath, s.PluginSocket)
	case slices.ContainsFunc(s.Env, func(entry string) bool { return strings.ContainsRune(entry, 0) }):
		err = errors.New("a variable of its environment has a NUL byte; remove it")
	case slices.Contains(s.ExtraFiles, nil):
		err = errors.New("one of its ExtraFiles is nil")
	case s.StopTimeout < 0:
		err = fmt.Errorf("its StopTimeout is negative: %v; use 0 for the default", s.StopTimeout)
	case min(s.Limits.Memory, s.Limits.CPU, int64(s.Limits.Processes), int64(s.Limits.OpenFiles)) < 0:
		err = fmt.Errorf("a limit is negative: %+v; use 0 for no limit", s.Limits)
	case s.Adapter != nil && s.Survive:
		err = errors.New("it must survive its host, which a plugin of a foreign protocol cannot")
	case s.PluginSocket != "" && s.Protocol == ProtocolCIPD:
		err = fmt.Errorf("the protocol %q cannot tell it where to serve", s.Protocol)
	}
	return granted, err
}

func (h *Host) launch(ctx context.Context, spec Spec) (*PluginProcess, error) {
	granted, err := spec.check()
	if err != nil {
		return nil, err
	}
	program, err := sealedexec.Find(spec.Args[0], spec.Dir)
	if err != nil {
		return nil, explain(err, spec, spec.Args[0])
	}
	mayBeCIPD, err := h.mayBeCIPD(spec, program)
	if err != nil {
		return nil, err
	}
	user, err := identify(spec.User, spec.Group)
	if err != nil {
		return nil, err
	}
	image, err := h.check(ctx, spec, program)
	if err != nil {
		return nil, err
	}
	defer image.Release()
	p := newPlugin(ctx, h, spec)
	p.user, p.mayBeCIPD = user, mayBeCIPD
	if image != nil {
		p.pin = pinOf(spec, image)
	}
	if err := h.reserve(p); err != nil {
		return nil, err
	}
	defer h.launching.Done()
	p.grant(granted)
	err = p.start(program, image, user)
	close(p.started)
	if err != nil {
		p.server.remove(p)
		h.forget(p)
		return nil, explain(err, spec, program)
	}
	defer h.watching.Go(p.watch) // after the event of its launch
	message := "launched " + program
	if image != nil {
		message += fmt.Sprintf(", sha256 %s", image.Digest)
	}
	h.emit(p.event(plugin.EventLaunched, message))
	return p, nil
}

// start starts the process of a plugin, with all that it needs of the host.
func (p *PluginProcess) start(program string, image *sealedexec.Image, user *process.User) error {
	what, err := p.processSpec(program)
	if err != nil {
		return err
	}
	if err := p.host.admitUser(&what, user, p.spec); err != nil {
		return err
	}
	at, err := setUpSocket(&what, p.spec)
	if err != nil {
		return err
	}
	defer at.close()
	listener := at.listener(&what)
	what.Stdin = func() ([]byte, error) {
		if err := at.bind(&what); err != nil {
			return nil, err
		}
		return p.handshakeLine(listener)
	}
	execute(&what, image)
	p.introduction, p.made = at.introduction, at.socket
	p.server.add(p)
	p.proc, err = p.host.group.Start(what)
	// gofail: var hostStarted struct{}
	if err != nil {
		at.remove()
	}
	return err
}

// reserve gives a plugin its path and its ticket. When it succeeds the caller has to call h.launching.Done.
func (h *Host) reserve(p *PluginProcess) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.open()
	if err == nil && p.spec.Adapter == nil {
		err = h.serve()
		p.server = h.server
	}
	if err != nil {
		return err
	}
	for other := range h.plugins {
		if p.spec.PluginSocket != "" && other.spec.PluginSocket == p.spec.PluginSocket {
			return fmt.Errorf("plugin %s, which still runs, serves at %s", other.spec.Name, p.spec.PluginSocket)
		}
	}
	h.addPlugin(p)
	h.launching.Add(1)
	return nil
}

// addPlugin adds a plugin and gives it a ticket. mu is held.
func (h *Host) addPlugin(p *PluginProcess) {
	h.number++
	p.ticket = newTicket(h.number)
	h.plugins[p] = struct{}{}
}

func (h *Host) forget(p *PluginProcess) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.plugins, p)
}

func (p *PluginProcess) processSpec(program string) (process.Spec, error) {
	spec := &p.spec
	s := process.Spec{
		Name: spec.Name, Path: program, Args: spec.Args, Dir: spec.Dir, ExtraFiles: slices.Clip(spec.ExtraFiles),
		Env: environment(spec.Env, p.spec.Protocol), Survive: spec.Survive, Limits: spec.Limits, NoNewPrivs: spec.NoNewPrivs,
	}
	if !spec.Survive {
		return s, nil
	}
	var err error
	s.Data, err = json.Marshal(survivor{spec.PluginSocket, spec.Tag, spec.StopTimeout})
	return s, err
}

// Adopt returns the plugins that survived an earlier host with the same StateDir. From now on they are this host's, and Close leaves them
// running. They can serve, but they have no ticket: the host that gave them one is gone. An error names those that could not be reached
// within 3 s; call Adopt again to retry those.
func (h *Host) Adopt(ctx context.Context) ([]*PluginProcess, error) {
	h.mu.Lock()
	err := h.open()
	if err == nil {
		h.launching.Add(1)
	}
	h.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("cannot adopt plugins: %w", err)
	}
	defer h.launching.Done()
	found, err := h.group.Adopt(ctx)
	var adopted []*PluginProcess
	for _, proc := range found {
		var known survivor
		_ = json.Unmarshal(proc.Data(), &known) // what cannot be read was not written by a host
		p := newPlugin(ctx, h, Spec{
			Name: proc.Name(), PluginSocket: known.PluginSocket, Tag: known.Tag, StopTimeout: known.StopTimeout, Survive: true,
		})
		p.proc = proc
		close(p.started)
		h.mu.Lock()
		h.addPlugin(p)
		h.mu.Unlock()
		h.watching.Go(p.watch)
		adopted = append(adopted, p)
	}
	if err != nil {
		return adopted, fmt.Errorf("cannot adopt all plugins: %w", err)
	}
	return adopted, nil
}

// environment returns the environment of a plugin: what is listed, or that of this process, and what announces the handshake, if it is
// Patchbay's. The last value of a variable counts; programs do not agree on which they take.
func environment(listed []string, protocol Protocol) []string {
	if listed == nil {
		listed = os.Environ()
	}
	env := slices.DeleteFunc(slices.Clone(listed), func(entry string) bool { return strings.HasPrefix(entry, handshake.Env+"=") })
	if protocol == ProtocolPatchbay {
		env = append(env, handshake.Env+"="+handshake.EnvValue)
	}
	return (&exec.Cmd{Env: env}).Environ() // which knows how to make variables unique
}

// Protocol is what a launched plugin speaks with its host.
type Protocol string

const (
	// ProtocolPatchbay is that of api/patchbay/plugin/v1, on a Unix socket. It is the default.
	ProtocolPatchbay Protocol = "patchbay"
	// ProtocolCIPD is that of the plugins of CIPD: they call cipd.plugin.Host and, if they are granted admissions, cipd.plugin.Admissions.
	// They do so over TCP on 127.0.0.1, where the kernel does not identify the caller: whoever learns the ticket can call as the plugin
	// until it has ended. The host listens there only when such a plugin was launched, on one port for all of them.
	ProtocolCIPD Protocol = "cipd"
)

// needsCIPD says what to do about a plugin of CIPD that was launched with another protocol.
const needsCIPD = `a plugin of CIPD needs the protocol "cipd": set it in the Spec of Host.Launch or NewAdmission, or as admission.protocol`

// protocolForeign is that of plugins with a [ProtocolAdapter].
const protocolForeign Protocol = "foreign"

// protocols says in what they differ for those who call the host: by which key a ticket comes, how a service is refused that is not
// granted, and how many calls of a plugin may run. A plugin of CIPD makes a call for each answer and loses those that are refused, so only
// its connections bound them.
var protocols = map[Protocol]struct {
	ticketKey  string
	notGranted codes.Code
	maxCalls   int
}{
	ProtocolPatchbay: {handshake.TicketKey, codes.PermissionDenied, maxCalls},
	ProtocolCIPD:     {cipd.TicketKey, codes.Unimplemented, maxConns * maxStreams},
}

func (p *PluginProcess) handshakeLine(listener *handshake.Listener) ([]byte, error) {
	if p.spec.Protocol == protocolForeign {
		return nil, nil
	}
	var line bytes.Buffer
	if p.spec.Protocol == ProtocolCIPD {
		port, err := p.server.loopbackPort()
		if err == nil {
			err = cipd.WriteHandshake(&line, port, p.ticket.String())
		}
		return line.Bytes(), err
	}
	err := handshake.Write(&line, handshake.Handshake{
		HostSocket: p.server.path, Ticket: p.ticket.String(), PluginSocket: p.spec.PluginSocket, Listener: listener,
	})
	return line.Bytes(), err
}

// ProtocolAdapter connects a host with a foreign plugin: one that speaks another protocol than the host; see [Spec]. Such a plugin gets
// nothing on its standard input, which is closed when the plugin is terminated, and cannot call its host. Its output goes into its log.
type ProtocolAdapter interface {
	// Hello is called first, and reads from standard output what is not meant for the log. It returns when it has read enough, or on the first
	// error, such as the end of the output.
	Hello(stdout io.Reader)
	// Stderr returns the reader that the log uses in place of standard error.
	Stderr(stderr io.Reader) io.Reader
	// Stop asks the plugin to stop. Each [PluginProcess.Terminate] calls it while it waits, possibly concurrently; ctx ends when that call
	// does.
	Stop(ctx context.Context)
	// Health returns the connection and the service name for health checks of a running plugin.
	Health() (conn grpc.ClientConnInterface, service string)
	// Ended is called once, after Done of the process was closed or the host has given up waiting for it. The host's Close waits until it
	// returns.
	Ended()
}
