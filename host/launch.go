package host

import (
	"bytes"
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

	"google.golang.org/grpc/codes"

	"github.com/patchbay-dev/patchbay/internal/launch/cipd"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/launch/output"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Spec says what [Host.Launch] launches.
type Spec struct {
	// Name is the plugin's name in logs and events; that of the program's file if it is empty.
	Name string
	// Args are the program and its arguments. A program without a slash is searched for in PATH.
	Args []string
	// Env is the environment; that of this process if it is nil. The host adds what announces the handshake.
	Env []string
	// Dir is the working directory; that of this process if it is empty.
	Dir string
	// Controller says what the plugin may call. Nil: nothing but what every plugin may.
	Controller *Controller
	// Protocol is what the plugin speaks with its host; [ProtocolPatchbay] if it is empty.
	Protocol Protocol
	// PluginSocket is the path at which the plugin is to serve. It is told in the handshake of [ProtocolPatchbay], the only one in which it
	// can be, and removed when the plugin has ended.
	// Two plugins of a host cannot have the same at the same time.
	PluginSocket string
	// Logs takes what the plugin prints and logs, in place of a log of its own, and remains the caller's, who closes it. The logger
	// of the context does not matter then.
	Logs *Log
	// ExtraFiles become descriptors 3 and up of the plugin. They remain the caller's.
	ExtraFiles []*os.File
	// SHA256 is the digest that the program must have, in hexadecimal; otherwise the error wraps [ErrDigest]. With it, or with Admit, what is
	// executed is a copy in memory that nobody can change, and not the file: see docs/adr/0009.
	SHA256 string
	// Interpreter is the path of the program that runs the plugin if that is a script; exactly what its first line must name. A script with
	// another one is not run if it has SHA256 or Admit.
	Interpreter string
	// Admit is asked whether the program may run, by Name and the digest of what is about to be executed. It may block until ctx ends. An
	// error is a refusal.
	Admit func(ctx context.Context, pin plugin.Pin) error
	// User and Group are the names or numbers of those that the plugin runs as; it has no supplementary groups then. Empty: those of this
	// process, and for Group that of User. This process has to be root. If the directory of PluginSocket is not there, it is made for this
	// user and removed when the plugin has ended; the directory that it is in becomes searchable for all.
	User, Group string
	// OwnDir is a directory of the caller's in which the plugin makes its own files. It goes to that user and group, and the directories
	// above it, up to that of PluginSocket, become searchable for all. It remains the caller's to remove.
	OwnDir string
	// Limits bound what the plugin may use. What cannot be limited on this system is an error.
	Limits Limits
	// NoNewPrivs keeps the plugin and its descendants from gaining privileges by executing a program.
	NoNewPrivs bool
	// Survive lets the plugin go on when this process ends. It needs [Host].StateDir; a later host with the same one can adopt it.
	Survive bool
	// Tag is kept with a plugin that survives, for whoever adopts it; see [PluginProcess.Tag].
	Tag string
	// Grace says how long each step of [PluginProcess.Terminate] waits.
	Grace Grace
	// Foreign is set for a plugin of a protocol that the host does not know; Protocol does not matter then. Its PluginSocket is told to
	// nobody, and it cannot survive.
	Foreign Foreign
}

// Grace says how long [PluginProcess.Terminate] waits after each of its steps. A zero field means its default, a negative one
// skips the wait.
type Grace = process.Grace

// Limits bound what a plugin may use. Zero stands for no limit.
type Limits = process.Limits

// Log holds the newest output of a plugin.
type Log = output.Log

// survivor is what a later host has to know of a plugin that survives.
type survivor struct {
	PluginSocket string `json:"pluginSocket,omitempty"`
	Tag          string `json:"tag,omitempty"`
}

// LaunchPlugin launches a plugin with this command line. It does not wait for it to connect; a plugin that ends at once is no
// error here, but one of [PluginProcess.Err]. The context is for logging from the plugin only, see [WithLogger]: its end ends
// nothing. After Close the error wraps [ErrClosed].
func (h *Host) LaunchPlugin(ctx context.Context, args []string, ctrl *Controller) (*PluginProcess, error) {
	return h.Launch(ctx, Spec{Args: args, Controller: ctrl})
}

// Launch is [Host.LaunchPlugin] with all that can be said about a plugin.
func (h *Host) Launch(ctx context.Context, spec Spec) (*PluginProcess, error) {
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

// check says what is wrong with a description, and gives its path and protocol the one form.
func (s *Spec) check() (granted grants, err error) {
	if s.Protocol, err = s.Protocol.orDefault(); err != nil {
		return nil, err
	}
	if s.Foreign != nil {
		s.Protocol = protocolForeign
	}
	if granted, err = s.Controller.services(s.Protocol); err != nil {
		return nil, err
	}
	if s.PluginSocket != "" {
		if s.PluginSocket, err = filepath.Abs(s.PluginSocket); err != nil {
			return nil, err
		}
	}
	switch {
	case len(s.PluginSocket) > maxPath:
		err = fmt.Errorf("the path of its socket has more than %d bytes: %s", maxPath, s.PluginSocket)
	case s.Foreign != nil && s.Survive:
		err = errors.New("it is to survive its host, which a plugin of a foreign protocol cannot")
	case s.PluginSocket != "" && s.Protocol == ProtocolCIPD:
		err = fmt.Errorf("by the protocol %q it cannot be told where to serve", s.Protocol)
	}
	return granted, err
}

func (h *Host) launch(ctx context.Context, spec Spec) (*PluginProcess, error) {
	program, err := exec.LookPath(spec.Args[0])
	if err != nil {
		return nil, err
	}
	granted, err := spec.check()
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
	if image != nil {
		p.pin = pinOf(spec, image)
	}
	if err := h.reserve(p); err != nil {
		return nil, err
	}
	defer h.launching.Done()
	p.grant(granted)
	what, err := p.processSpec(program)
	var room string
	if err == nil {
		room, err = h.admitUser(&what, user, spec)
	}
	if err == nil {
		execute(&what, image)
		h.server.add(p)
		err = p.start(func() (*process.Process, error) { return h.group.Start(what) })
	}
	if err != nil {
		h.server.remove(p)
		h.forget(p)
		if room != "" {
			_ = os.Remove(room)
		}
		return nil, err
	}
	h.emit(Event{Time: time.Now(), Kind: EventLaunched, Plugin: p.spec.Name, PID: p.PID(), Message: launchedMessage(program, image)})
	h.watching.Go(p.watch)
	return p, nil
}

// reserve gives a plugin its place and its ticket. When it succeeds the caller has to call h.launching.Done.
func (h *Host) reserve(p *PluginProcess) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.open(); err != nil {
		return err
	}
	for other := range h.plugins {
		if p.spec.PluginSocket != "" && other.spec.PluginSocket == p.spec.PluginSocket {
			return fmt.Errorf("plugin %s, which has not ended, serves at %s", other.spec.Name, p.spec.PluginSocket)
		}
	}
	h.know(p)
	h.launching.Add(1)
	return nil
}

// know gives a plugin its ticket, by its number. mu is held.
func (h *Host) know(p *PluginProcess) {
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
	line, err := p.handshakeLine()
	if err != nil {
		return process.Spec{}, err
	}
	s := process.Spec{
		Name: spec.Name, Path: program, Args: spec.Args, Dir: spec.Dir, Stdin: line, ExtraFiles: spec.ExtraFiles,
		Env: environment(spec.Env, p.spec.Protocol), Survive: spec.Survive, Limits: spec.Limits, NoNewPrivs: spec.NoNewPrivs,
	}
	if spec.PluginSocket != "" {
		socket, err := process.Resolve(spec.PluginSocket)
		if err != nil {
			return process.Spec{}, err
		}
		if spec.Foreign == nil { // else the host itself serves there
			s.Remove = sock.Traces(socket)
		}
		s.Remove = append(s.Remove, socket)
	}
	if spec.Survive {
		s.Data, err = json.Marshal(survivor{PluginSocket: spec.PluginSocket, Tag: spec.Tag})
	}
	return s, err
}

// Adopt returns the plugins that survived an earlier host with the same StateDir. From now on they are this host's, and Close
// lets them go on. They can serve, but they have no ticket: the host that gave them one is gone. An error names those that could not be
// reached within 3 s; another call returns those of them that it reaches.
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
		p := newPlugin(ctx, h, Spec{Name: proc.Name(), PluginSocket: known.PluginSocket, Tag: known.Tag, Survive: true})
		_ = p.start(func() (*process.Process, error) { return proc, nil })
		h.mu.Lock()
		h.know(p)
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
// Patchbay's. The last value of a variable counts, as it does in package os/exec; programs do not agree on which they take.
func environment(listed []string, protocol Protocol) []string {
	if listed == nil {
		listed = os.Environ()
	}
	env := make([]string, 0, len(listed)+1)
	seen := map[string]bool{}
	for _, entry := range slices.Backward(append(listed[:len(listed):len(listed)], handshake.Env+"="+handshake.EnvValue)) {
		name, _, _ := strings.Cut(entry, "=")
		if seen[name] || name == handshake.Env && protocol != ProtocolPatchbay {
			continue
		}
		seen[name] = true
		env = append(env, entry)
	}
	slices.Reverse(env)
	return env
}

// Protocol is what a launched plugin speaks with its host.
type Protocol string

const (
	// ProtocolPatchbay is that of api/patchbay/plugin/v1, on a Unix socket. It is the one of a plugin for which none is named.
	ProtocolPatchbay Protocol = "patchbay"
	// ProtocolCIPD is that of the plugins of CIPD: they call cipd.plugin.Host and, if they are granted admissions, cipd.plugin.Admissions.
	// They do so over TCP on 127.0.0.1, where the kernel does not tell who calls: whoever learns the ticket can call as the plugin until that
	// has ended. The host listens there only when such a plugin was launched, on one port for all of them.
	ProtocolCIPD Protocol = "cipd"
)

// protocolForeign is that of plugins with a [Foreign].
const protocolForeign Protocol = "foreign"

func (p Protocol) orDefault() (Protocol, error) {
	switch p {
	case "":
		return ProtocolPatchbay, nil
	case ProtocolPatchbay, ProtocolCIPD:
		return p, nil
	default:
		return "", fmt.Errorf("the protocol %q is not known: it is %q or %q", p, ProtocolPatchbay, ProtocolCIPD)
	}
}

func (p Protocol) ticketKey() string {
	if p == ProtocolCIPD {
		return cipd.TicketKey
	}
	return handshake.TicketKey
}

func (p Protocol) notGranted() codes.Code {
	if p == ProtocolCIPD {
		return codes.Unimplemented
	}
	return codes.PermissionDenied
}

// maxCalls is how many calls of a plugin may run. A plugin of CIPD makes a call for each answer and loses those that are refused, so only
// its connections bound them.
func (p Protocol) maxCalls() int {
	if p == ProtocolCIPD {
		return maxConns * maxStreams
	}
	return maxCalls
}

func (p *PluginProcess) handshakeLine() ([]byte, error) {
	if p.spec.Protocol == protocolForeign {
		return nil, nil
	}
	var line bytes.Buffer
	if p.spec.Protocol == ProtocolCIPD {
		port, err := p.host.server.loopbackPort()
		if err == nil {
			err = cipd.WriteHandshake(&line, port, p.ticket.String())
		}
		return line.Bytes(), err
	}
	err := handshake.Write(&line, handshake.Handshake{
		HostSocket: p.host.server.path, Ticket: p.ticket.String(), PluginSocket: p.spec.PluginSocket,
	})
	return line.Bytes(), err
}

// Foreign stands between a host and a plugin that speaks another protocol than the host's own; see [Spec]. Such a plugin is told nothing
// on its standard input, which ends when the plugin is terminated, and cannot call its host. What it prints goes into its log.
type Foreign interface {
	// Hello is called first, and reads from standard output what is not meant for the log. It returns when it has seen enough, or with
	// the first error: when the plugin has ended there is one.
	Hello(stdout io.Reader)
	// Stop asks the plugin to end. It is called, concurrently too, by each [PluginProcess.Terminate], while it waits as long as
	// [Grace].Stdin says; ctx ends when that call does.
	Stop(ctx context.Context)
	// Ended is called once, after Done of the process was closed, or after the host has given up waiting for that. The host's Close waits
	// until it returns.
	Ended()
}
