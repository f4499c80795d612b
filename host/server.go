package host

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// The limits for plugins that call their host. The message size is the default of gRPC.
const (
	maxMessage       = 4 << 20
	readBuffer       = 4 << 10 // per connection; few calls are larger
	maxHeader        = 16 << 10
	maxStreams       = 128 // per connection
	maxCalls         = 64  // per plugin, on all its connections; see protocols for other plugins
	streamWindow     = 256 << 10
	connWindow       = 1 << 20
	handshakeTimeout = 5 * time.Second
)

// server is the gRPC server of a host, on a socket in a private directory and, for the plugins that need it, over loopback. It knows no
// service: it finds out which plugin calls, and passes the call to what is granted to that plugin.
type server struct {
	emit   func(Event)
	dir    privateDir
	path   string
	grpc   *grpc.Server
	done   sync.WaitGroup
	denied untrusted.LogRate[string] // by name of the plugin; empty for other callers

	mu        sync.Mutex // guards the fields below
	plugins   map[uint64]*PluginProcess
	strangers map[Protocol][]*conn // oldest first
	port      int                  // on loopback; zero before the first loopbackPort
}

func serve(emit func(Event)) (*server, error) {
	s := &server{emit: emit, plugins: map[uint64]*PluginProcess{}, strangers: map[Protocol][]*conn{}}
	l, err := s.listen()
	if err != nil {
		return nil, err
	}
	s.grpc = grpc.NewServer(
		grpc.Creds(peerCredentials{insecure.NewCredentials(), s}),
		grpc.UnknownServiceHandler(s.handle),
		grpc.ReadBufferSize(readBuffer),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.WaitForHandlers(true),
	)
	s.done.Go(func() { _ = s.grpc.Serve(l) }) // until stop
	return s, nil
}

func (s *server) listen() (net.Listener, error) {
	dir, err := makePrivateDir()
	if err != nil {
		return nil, fmt.Errorf("make a private directory for the host's socket: %w", err)
	}
	s.dir, s.path = dir, filepath.Join(dir.path, socketName)
	// gofail: var hostListen struct{}
	// s.path = filepath.Join(dir.path, "gone", socketName)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on the host's socket: %w", err), dir.remove())
	}
	return listener{l, ProtocolPatchbay}, nil
}

func (s *server) stop() error {
	s.grpc.Stop()
	s.done.Wait()
	return s.dir.remove()
}

// add lets a plugin call the host. It does nothing if s is nil, as for a foreign plugin.
func (s *server) add(p *PluginProcess) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plugins[p.ticket.number] = p
}

func (s *server) remove(p *PluginProcess) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.plugins, p.ticket.number)
}

// identify sets the plugin at the other end of a connection. A connection of another process is accepted, too, but its calls fail.
func (s *server) identify(c *conn) error {
	if c.unix == nil {
		s.trackStranger(c)
		return nil
	}
	// gofail: var hostConnect string
	// return errors.New(hostConnect)
	at, err := sock.PeerOf(c.unix)
	if err != nil {
		return err
	}
	c.peer = at
	p := s.owner(at.PID)
	if p == nil {
		s.trackStranger(c)
		return nil
	}
	c.plugin = p
	c.count(func() { p.calls.disconnect(c) })
	if err := p.calls.connect(c); err != nil {
		s.deny(c, p, "connect", err.Error())
		return err
	}
	return nil
}

// owner returns the plugin that a process is or descends from; nil if there is none.
func (s *server) owner(pid int) *PluginProcess {
	if pid <= 0 {
		return nil // the process is in another PID namespace
	}
	s.mu.Lock()
	candidates := slices.Collect(maps.Values(s.plugins))
	s.mu.Unlock()
	// Compare PIDs first: looking up the ancestors of a process is expensive. A plugin may call before Start has returned its PID.
	for _, p := range candidates {
		<-p.started
		if p.PID() == pid {
			return p
		}
	}
	for _, p := range candidates {
		if p.Owns(pid) {
			return p
		}
	}
	return nil
}

func (s *server) handle(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	name, method, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	p, err := s.authenticate(stream.Context(), full)
	if err != nil {
		return err
	}
	granted, ok := p.services[name]
	if !ok {
		c, _ := connOf(stream.Context())
		s.deny(c, p, full, "the service is not granted to this plugin")
		return status.Errorf(protocols[p.spec.Protocol].notGranted, "the service %s is not granted to this plugin", name)
	}
	if err := p.calls.begin(protocols[p.spec.Protocol].maxCalls); err != nil {
		return err
	}
	defer p.calls.end()
	return granted.dispatch(method, stream)
}

// authenticate returns the plugin to which the ticket of a call belongs. The caller must be a process of that plugin. Over loopback the
// process is not known, but a connection is bound to the plugin of its first ticket.
func (s *server) authenticate(ctx context.Context, full string) (*PluginProcess, error) {
	c, err := connOf(ctx)
	if err != nil {
		return nil, err
	}
	owner, key := c.owner(), protocols[c.protocol].ticketKey
	values := metadata.ValueFromIncomingContext(ctx, key)
	if len(values) == 0 {
		s.deny(c, owner, full, "the call has no ticket")
		return nil, status.Errorf(codes.Unauthenticated, "the call has no ticket: send the one of the handshake as metadata %q", key)
	}
	const message = "the ticket is not that of a running plugin to which the calling process belongs"
	t, ok := parseTicket(values[0])
	if !ok || len(values) > 1 {
		s.deny(c, owner, full, "the call has something else than a ticket")
		return nil, status.Error(codes.PermissionDenied, message)
	}
	s.mu.Lock()
	p := s.plugins[t.number]
	s.mu.Unlock()
	if p == nil || !p.ticket.equal(t) || p.spec.Protocol != c.protocol {
		s.deny(c, owner, full, "the ticket is wrong or has expired")
		return nil, status.Error(codes.PermissionDenied, message)
	}
	if err = c.bindToPlugin(p); err == nil {
		return p, nil
	}
	s.deny(c, owner, full, err.Error())
	return nil, status.Error(codes.PermissionDenied, message)
}

// deny emits an event for a call that was refused. p is nil if the caller does not belong to a plugin.
func (s *server) deny(c *conn, p *PluginProcess, what, why string) {
	event := Event{Event: plugin.Event{Time: time.Now(), Kind: plugin.EventDenied, Message: fmt.Sprintf("%.100q: %s", what, why)}}
	if c != nil {
		event.PID = c.peer.PID
	}
	if p != nil {
		event.Name, event.SocketPath = p.spec.Name, p.spec.PluginSocket
	}
	suppressed, ok := s.denied.Allow(event.Name, event.Time)
	if !ok {
		return
	}
	if suppressed > 0 {
		event.Message += fmt.Sprintf(" (%d earlier refusals in total were not reported)", suppressed)
	}
	s.emit(event)
}

func connOf(ctx context.Context) (*conn, error) {
	from, ok := peer.FromContext(ctx)
	if ok {
		if info, ok := from.AuthInfo.(peerInfo); ok {
			return info.conn, nil
		}
	}
	return nil, status.Error(codes.Unauthenticated, "the caller is not known")
}

func (s service) dispatch(method string, stream grpc.ServerStream) error {
	for i := range s.desc.Methods {
		if m := &s.desc.Methods[i]; m.MethodName == method {
			reply, err := m.Handler(s.impl, stream.Context(), stream.RecvMsg, nil)
			if err != nil {
				return err
			}
			return stream.SendMsg(reply)
		}
	}
	for i := range s.desc.Streams {
		if d := &s.desc.Streams[i]; d.StreamName == method {
			return d.Handler(s.impl, stream)
		}
	}
	return status.Errorf(codes.Unimplemented, "the service %s has no method %s", s.desc.ServiceName, method)
}

// ticket authenticates a plugin. The number identifies the plugin and is not secret.
type ticket struct {
	number uint64
	secret [32]byte
}

func newTicket(number uint64) ticket {
	t := ticket{number: number}
	_, _ = rand.Read(t.secret[:]) // never fails
	return t
}

// String returns the text that a plugin sends as its ticket.
func (t ticket) String() string {
	return strconv.FormatUint(t.number, 36) + "." + base64.RawURLEncoding.EncodeToString(t.secret[:])
}

// equal compares two tickets in constant time.
func (t ticket) equal(other ticket) bool {
	return t.number == other.number && subtle.ConstantTimeCompare(t.secret[:], other.secret[:]) == 1
}

// parseTicket is the inverse of String. It accepts only texts that String returns.
func parseTicket(s string) (t ticket, ok bool) {
	number, secret, found := strings.Cut(s, ".")
	if !found || len(secret) != base64.RawURLEncoding.EncodedLen(len(t.secret)) {
		return ticket{}, false
	}
	n, err := strconv.ParseUint(number, 36, 64)
	if err != nil || strconv.FormatUint(n, 36) != number {
		return ticket{}, false
	}
	t.number = n
	// Decode ignores line breaks, which result in fewer bytes.
	decoded, err := base64.RawURLEncoding.Strict().Decode(t.secret[:], []byte(secret))
	return t, err == nil && decoded == len(t.secret)
}

const (
	// maxPath is the longest path of a Unix socket that all systems can connect to.
	maxPath = 103

	dirPrefix  = "patchbay-host-"
	socketName = "host.sock"
)

// privateDir is a directory of mode 0700, with a path that is short enough for a socket in it. The host holds a lock on it, so that other
// hosts can recognize and remove the directories of killed hosts.
type privateDir struct {
	path string
	lock *os.File
}

func makePrivateDir() (privateDir, error) {
	const random = "4294967295"
	parent := sock.TempDir(len("/" + dirPrefix + random + "/" + socketName))
	removeStale(parent)
	// gofail: var hostPrivateDir struct{}
	// return privateDir{}, &os.PathError{Op: "mkdir", Path: parent, Err: os.ErrPermission}
	lock, err := sock.HoldTemp(parent, dirPrefix)
	if err != nil {
		return privateDir{}, err
	}
	return privateDir{lock.Name(), lock}, nil
}

func (d privateDir) remove() error { return errors.Join(os.RemoveAll(d.path), d.lock.Close()) }

func removeStale(parent string) {
	sock.RemoveUnheld(parent, dirPrefix, func(dir string) {
		path := filepath.Join(dir, socketName)
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
			_ = os.Remove(path)
		}
		_ = os.Remove(dir) // if it is empty
	})
}
