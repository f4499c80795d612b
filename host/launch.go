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

// Spec describes a plugin for [Host.Launch].
type Spec struct {
	// Name is the plugin's name in logs and events; the file name of the program if it is empty.
	Name string
	// Args are the program and its arguments. A program without a slash is looked up in PATH, any other relative one in Dir.
	Args []string
	// Env is the environment; that of this process if it is nil. The host adds the variable for the handshake.
	Env []string
	// Dir is the working directory; that of this process if it is empty.
	Dir string
	// Controller grants services of the host. If it is nil, the plugin may call only those that every plugin may call.
	Controller *Controller
	// Protocol is the protocol between the plugin and its host; [ProtocolPatchbay] if it is empty.
	Protocol Protocol
	// PluginSocket is the path at which the plugin should serve. It needs [ProtocolPatchbay]. The plugin inherits a socket for it, after
	// the ExtraFiles, or creates its own. The host removes the socket when the plugin has ended. Running plugins of a host have different
	// paths.
	PluginSocket string
	// ExtraFiles become descriptors 3 and up of the plugin. The caller closes its own descriptors.
	ExtraFiles []*os.File
	// SHA256 is the digest that the program must have, in hexadecimal; otherwise the error wraps [plugin.ErrDigest]. With it, or with
	// Admit, a sealed copy in memory is executed, not the file: see docs/adr/0009.
	SHA256 string
	// Interpreter is the path of the program that runs the plugin if it is a script, exactly as its first line names it. With SHA256 or
	// Admit, a script with any other interpreter is not run.
	Interpreter string
	// Admit returns an error if the program may not run. The pin has Name and the digest of the program. Admit may block until ctx is done.
	// It is a function because the decision can be that of an admission plugin or of the host itself.
	Admit func(ctx context.Context, pin plugin.Pin) error
	// User and Group are the names or numbers of the user and the group of the process, which then has no supplementary groups. An empty
	// User is that of this process, an empty Group that of User. This process must be root or have CAP_SETUID, CAP_SETGID and CAP_KILL. If
	// the directory of PluginSocket does not exist, it is created for this user and removed when the plugin has ended; its parent directory
	// becomes searchable for all users.
	User, Group string
	// OwnDir is an existing directory for the plugin's own files. The user and group become its owner, and the directories above it, up to
	// that of PluginSocket, become searchable for all users. The caller removes it.
	OwnDir string
	// Limits bound the resources of the plugin. Launch fails if this system cannot enforce a limit.
	Limits plugin.Limits
	// NoNewPrivs prevents the plugin and its descendants from gaining privileges by executing a program.
	NoNewPrivs bool
	// Survive keeps the plugin running when this process ends. It needs [Host].StateDir; a later host with the same StateDir can adopt it.
	Survive bool
	// Tag is saved with a plugin that survives, for the host that adopts it; see [PluginProcess.Tag].
	Tag string
	// StopTimeout is how long [PluginProcess.Terminate] waits before it kills the plugin (default 5 s). SIGTERM is sent halfway.
	StopTimeout time.Duration
	// Adapter is set for a plugin of a protocol that the host does not know; Protocol is ignored then. The plugin does not receive
	// PluginSocket, and it cannot survive.
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

// maxScanned is how many results of scan a host caches.
const maxScanned = 16

// scan scans a program, unless the result is cached. The result is zero for a program that cannot be read.
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

// survivor is saved with a plugin that survives, for a later host.
type survivor struct {
	PluginSocket string `json:"pluginSocket,omitempty"`
	Tag          string `json:"tag,omitempty"`
	// StopTimeout is in nanoseconds.
	StopTimeout time.Duration `json:"stopTimeout,omitempty"`
}

// LaunchPlugin launches a plugin with a command line. It does not wait for the plugin to connect; if the plugin exits after its start, only
// [PluginProcess.Err] returns an error. The context carries the logger of the plugin, see [WithLogger]; its end does not stop the plugin.
// After Close the error wraps [ErrClosed].
//
// The plugin speaks [ProtocolPatchbay]. LaunchPlugin refuses a program of CIPD, which needs [Host.Launch] and [ProtocolCIPD]. If a script
// starts such a program, the refusal is in the error of its exit.
func (h *Host) LaunchPlugin(ctx context.Context, args []string, ctrl *Controller) (*PluginProcess, error) {
	return h.Launch(ctx, Spec{Args: args, Controller: cmp.Or(ctrl, &Controller{})})
}

// Launch is like [Host.LaunchPlugin] with every option. The context is passed to [Spec].Admit, too; its end does not stop a plugin that was
// started. It returns an error if the spec is invalid, if the program is missing, cannot be executed or is not admitted, or, wrapping
// [plugin.ErrDigest], if its digest differs. The error wraps [ErrNotInitialized] before Initialize and [ErrClosed] after Close.
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

// Validate returns an error if [Host.Launch] would fail on every machine.
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

// start starts the process of a plugin, after it has prepared its user, socket and handshake.
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

// reserve gives a plugin its path and its ticket. If it returns nil, the caller must call h.launching.Done.
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

// addPlugin adds a plugin and gives it a ticket. The caller holds mu.
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

// Adopt takes over the plugins that survived an earlier host with the same StateDir, and returns them. Close leaves them running. They can
// serve, but not call this host, because their tickets are those of the earlier host. An error names the plugins that could not be reached
// within 3 s; another call of Adopt retries them.
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
		_ = json.Unmarshal(proc.Data(), &known) // a host has written it
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

// environment returns the environment of a plugin: the listed variables, or those of this process if listed is nil, and the variable for
// the handshake of ProtocolPatchbay. If a variable is listed twice, only the last value is passed, because programs differ in which they
// use.
func environment(listed []string, protocol Protocol) []string {
	if listed == nil {
		listed = os.Environ()
	}
	env := slices.DeleteFunc(slices.Clone(listed), func(entry string) bool { return strings.HasPrefix(entry, handshake.Env+"=") })
	if protocol == ProtocolPatchbay {
		env = append(env, handshake.Env+"="+handshake.EnvValue)
	}
	return (&exec.Cmd{Env: env}).Environ() // makes variables unique
}

// Protocol is the protocol between a launched plugin and its host.
type Protocol string

const (
	// ProtocolPatchbay is the protocol of api/patchbay/plugin/v1, on a Unix socket. It is the default.
	ProtocolPatchbay Protocol = "patchbay"
	// ProtocolCIPD is the protocol of CIPD plugins, which call cipd.plugin.Host and, if admissions are granted, cipd.plugin.Admissions.
	// They connect over TCP to 127.0.0.1, where the kernel does not identify the caller: every process that knows the ticket can call as
	// the plugin until the plugin has ended. The host listens there from the first launch of such a plugin, on one port for all of them.
	ProtocolCIPD Protocol = "cipd"
)

// needsCIPD is the advice in errors about a CIPD plugin that was launched with another protocol.
const needsCIPD = `a plugin of CIPD needs the protocol "cipd": set it in the Spec of Host.Launch or NewAdmission, or as admission.protocol`

// protocolForeign is the protocol of plugins with a [ProtocolAdapter].
const protocolForeign Protocol = "foreign"

// protocols has the differences for calls to the host: the metadata key of the ticket, the code for a service that is not granted, and the
// limit of concurrent calls per plugin. A CIPD plugin makes a call for each answer and loses refused ones, so its limit is that of the
// connections.
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

// ProtocolAdapter adapts a host to a foreign plugin, which speaks a protocol that the host does not know; see [Spec]. Such a plugin has an
// empty standard input, which is closed when the plugin is terminated, and cannot call its host. Its output goes into its log.
type ProtocolAdapter interface {
	// Hello is called first, and reads the part of standard output that does not belong into the log. It returns after that part, or after
	// an error, such as the end of the output.
	Hello(stdout io.Reader)
	// Stderr returns a reader for the log that replaces standard error.
	Stderr(stderr io.Reader) io.Reader
	// Stop asks the plugin to stop. Each [PluginProcess.Terminate] calls it, possibly concurrently, and cancels ctx before it returns.
	Stop(ctx context.Context)
	// Health returns the connection and the service name for health checks of a running plugin.
	Health() (conn grpc.ClientConnInterface, service string)
	// Ended is called once, after Done of the process was closed or the host has stopped waiting for the process. [Host.Close] waits for
	// it.
	Ended()
}
