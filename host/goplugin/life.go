package goplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/launch"
	"github.com/patchbay-dev/patchbay/internal/launch/account"
	"github.com/patchbay-dev/patchbay/internal/launch/pluginlog"
	"github.com/patchbay-dev/patchbay/internal/peerauth"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	// maxHello bounds the handshake, the line with the plugin's address. Its longest part is a certificate.
	maxHello = 16 << 10
	// shutdown is the method that stops a plugin. Its messages are empty.
	shutdown = "/plugin.GRPCController/Shutdown"
)

// life is one launch of a plugin, from the start of its process until all its resources are released. It implements [host.ProtocolAdapter].
type life struct {
	plugin *Protocol
	spec   host.Spec
	config *goplugin.ClientConfig
	client *goplugin.Client
	dir    string // the directory of the plugin's socket
	// traffic counts the calls in progress. When the process is stopped, they may continue for callsTime.
	traffic   *traffic
	callsTime time.Duration

	// hello passes the first line of the plugin's standard output to the library.
	hello      *io.PipeReader
	helloWrite *io.PipeWriter
	firstLine  atomic.Pointer[string] // nil if the plugin has printed nothing
	// errors passes the plugin's standard error to the library, which logs it if there is a Logger. copies are all writers that get it.
	errors      *io.PipeReader
	errorsWrite *io.PipeWriter
	copies      []io.Writer
	// stdout and stderr have the output that the plugin sends as calls, after the library has redirected it.
	stdout, stderr stdio

	process  *host.PluginProcess // set by start
	unhook   func()
	conn     atomic.Pointer[grpc.ClientConn]
	address  net.Addr // from the handshake
	endpoint string
	unserve  func()
	pinning  sync.Mutex // guards pinned
	pinned   *sock.Pinned
	// multiplexed and bridge are nil unless the plugin uses one multiplexed connection.
	multiplexed *multiplexed
	bridge      *bridge

	// launched is closed when Launch returns; gone when the process has ended or was abandoned.
	launched, gone chan struct{}
}

func newLife(p *Protocol, spec host.Spec) *life {
	nothing := func() {}
	l := &life{
		plugin: p, spec: spec, traffic: newTraffic(), unhook: nothing, unserve: nothing,
		launched: make(chan struct{}), gone: make(chan struct{}),
	}
	if p.Register == nil {
		l.callsTime = cmp.Or(spec.StopTimeout, launch.DefaultStopTimeout) * 4 / 5
	}
	l.spec.Adapter = l
	l.hello, l.helloWrite = io.Pipe()
	l.errors, l.errorsWrite = io.Pipe()
	l.stdout.from, l.stdout.to = io.Pipe()
	l.stderr.from, l.stderr.to = io.Pipe()
	return l
}

// start starts the process. Until unhook is called, it is killed when ctx is done.
func (l *life) start(ctx context.Context, h *host.Host) error {
	process, err := h.Launch(ctx, l.spec)
	if err != nil {
		return err
	}
	l.process = process
	log, _ := process.Logs().(*pluginlog.Log) // the host has no other type
	l.stdout.read(log, pluginlog.Stdout)
	l.stderr.read(log, pluginlog.Stderr)
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killed)
		l.kill()
	})
	l.unhook = sync.OnceFunc(func() {
		if !stop() {
			<-killed
		}
	})
	return nil
}

// connect makes the library start the plugin and connect to it, and registers the plugin.
func (l *life) connect(ctx context.Context) error {
	address, err := l.client.Start()
	if err != nil {
		return l.explain(ctx, err)
	}
	l.address = address
	if l.endpoint = address.String(); !filepath.IsAbs(l.endpoint) {
		l.endpoint = filepath.Join(l.dir, l.endpoint) // an announced endpoint must be a path
	}
	connected, err := l.client.Client()
	if err != nil {
		return l.explain(ctx, err)
	}
	client, ok := connected.(*goplugin.GRPCClient)
	if !ok {
		return fmt.Errorf("it speaks gRPC, and the library connected to it with a %T", connected)
	}
	conn := client.Conn
	l.conn.Store(conn)
	if err := checkHealth(ctx, conn); err != nil {
		if l.config.AutoMTLS && ctx.Err() == nil {
			err = fmt.Errorf("%w; a plugin that cannot do AutoMTLS needs it switched off", err)
		}
		return l.explain(ctx, err)
	}
	if l.multiplexed != nil {
		if l.bridge, err = newBridge(ctx, l.multiplexed); err != nil {
			return l.explain(ctx, fmt.Errorf("it serves no second stream of its multiplexed connection: %w", err))
		}
		l.plugin.Connections.add(l.endpoint, target{l.bridge.dial, nil, l.client, l.traffic})
	} else {
		l.plugin.Connections.add(l.endpoint, target{l.dial, l.config.TLSConfig, l.client, l.traffic})
	}
	if l.plugin.Register != nil {
		l.unserve = l.plugin.Register(l.endpoint)
	} else if l.unserve, err = l.serve(); err != nil {
		return err
	}
	l.unhook()
	return ctx.Err()
}

// isOtherUser reports whether the plugin runs as another user or group than this process. It may then announce an address that this process
// can reach and the plugin cannot.
func (l *life) isOtherUser() bool { return l.spec.User+l.spec.Group != "" }

// dial connects to the address in the plugin's handshake. If the plugin runs as another user, one of its own processes must serve there.
func (l *life) dial(ctx context.Context) (net.Conn, error) {
	if network := l.address.Network(); network != "unix" {
		if l.isOtherUser() {
			return nil, fmt.Errorf("nobody can tell whose process listens on %s address %s; have the plugin serve on a Unix socket, or leave user "+
				"and group out", network, l.address)
		}
		return new(net.Dialer).DialContext(ctx, network, l.address.String())
	}
	socket, err := l.pin()
	if err != nil {
		return nil, err
	}
	conn, err := socket.Dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.checkPeer(conn.UnixConn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// pin returns the socket that was at the endpoint at the first connection. Later the file may have been removed, by a cleaner of old files,
// or replaced by another process.
func (l *life) pin() (*sock.Pinned, error) {
	l.pinning.Lock()
	defer l.pinning.Unlock()
	select {
	case <-l.gone:
		return nil, errEnded
	default:
	}
	if l.pinned == nil {
		pinned, err := sock.Pin(l.endpoint)
		if err != nil {
			return nil, err
		}
		l.pinned = pinned
	}
	return l.pinned, nil
}

// unpin releases the pinned socket after the plugin has ended.
func (l *life) unpin() {
	l.pinning.Lock()
	defer l.pinning.Unlock()
	if l.pinned != nil {
		_ = l.pinned.Close()
	}
}

// checkPeer returns an error if the plugin runs as another user and conn leads to a process that is not the plugin's.
func (l *life) checkPeer(conn *net.UnixConn) error {
	if !l.isOtherUser() {
		return nil
	}
	uid, err := account.UserID(l.spec.User)
	if err != nil {
		return err
	}
	// Checks the user too, because the kernel may have given the ID of an exited process to one of the plugin's.
	peer, err := peerauth.OfUser(conn, l.endpoint, uid)
	if err == nil && !l.process.Owns(peer.PID) {
		err = fmt.Errorf("process %d of user %d serves at %s, where the plugin says that it serves itself", peer.PID, peer.UID, l.endpoint)
	}
	return err
}

// checkHealth calls the health service, which every plugin of go-plugin serves, and returns an error if the plugin does not answer.
func checkHealth(ctx context.Context, conn grpc.ClientConnInterface) error {
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: goplugin.GRPCServiceName})
	switch status.Code(err) {
	case codes.OK, codes.NotFound, codes.Unimplemented:
		return nil
	default:
		return fmt.Errorf("it said where it serves and does not answer there: %w", err)
	}
}

// libraryError is an error of the library with its text in one line.
type libraryError struct{ error }

func (e libraryError) Error() string { return oneLine(e.error) }

func (e libraryError) Unwrap() error { return e.error }

// explain kills the process, and returns the reason why connecting to it failed with err.
func (l *life) explain(ctx context.Context, err error) error {
	if l.process == nil {
		return err // it contains no output of the plugin
	}
	l.kill()
	line := l.firstLine.Load()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case line != nil && !handshake.MatchString(*line):
		return fmt.Errorf("it printed %s on standard output before its handshake; plugins of go-plugin must print nothing there",
			untrusted.Quote(*line))
	case line != nil || strings.Contains(err.Error(), "timeout while waiting"): // the library has no error value for it
		return libraryError{err}
	}
	// The error of the process is not wrapped, because even an exit with status 0 is a failure.
	return fmt.Errorf("it ended before it said where it serves: %s; if it only says that it is a plugin, "+
		"it wants another magic cookie than %s", cmp.Or(l.process.Err(), err).Error(), l.config.MagicCookieKey)
}

// handshake matches the line with a plugin's address.
var handshake = regexp.MustCompile(`^\s*\d+(\|[^|]*){3}`)

// kill kills the process and waits until it has ended.
func (l *life) kill() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.process.Terminate(now)
}

// Hello passes the first line to the library, and to the log if it is not a handshake. It implements [host.ProtocolAdapter].
func (l *life) Hello(stdout io.Reader) {
	defer l.helloWrite.Close()
	var line []byte
	next := make([]byte, 1) // the host logs everything after the line
	for len(line) < maxHello {
		if _, err := io.ReadFull(stdout, next); err != nil {
			break
		}
		line = append(line, next[0])
		if next[0] == '\n' {
			break
		}
	}
	if len(line) > 0 {
		text := string(line)
		l.firstLine.Store(&text)
		if !handshake.MatchString(text) {
			_, _ = fmt.Fprintln(l.stdout.to, text) // fails if the plugin was abandoned
		}
		_, _ = l.helloWrite.Write(line) // fails if the library has stopped reading
	}
}

func (l *life) Stderr(stderr io.Reader) io.Reader {
	if len(l.copies) == 0 {
		return stderr
	}
	return &copier{from: stderr, to: l.copies, end: l.errorsWrite}
}

// copier is a standard error that copies everything that is read to other writers. They may block it.
type copier struct {
	from io.Reader
	to   []io.Writer
	end  io.Closer
	late int // the number of reads that timed out, as they do after the process has ended
}

const (
	// After the process has ended, at most maxLate reads empty the pipe, each within latePatience, because another process may keep the
	// other end open.
	maxLate      = 64
	latePatience = 250 * time.Millisecond
)

func (c *copier) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	pipe, isPipe := c.from.(interface{ SetReadDeadline(t time.Time) error })
	if isPipe && errors.Is(err, os.ErrDeadlineExceeded) && c.late < maxLate {
		c.late++
		if err = pipe.SetReadDeadline(time.Now().Add(latePatience)); err == nil {
			n, err = c.from.Read(p)
		}
	}
	for _, to := range c.to {
		_, _ = to.Write(p[:n]) // errors are ignored, as by the library
	}
	if err != nil {
		_ = c.end.Close()
	}
	return n, err
}

// Stop implements [host.ProtocolAdapter]. It waits for calls in progress, and then asks the plugin to exit.
func (l *life) Stop(ctx context.Context) {
	if conn := l.conn.Load(); conn != nil {
		l.traffic.end(ctx, l.callsTime)
		// Ignores the error: the plugin closes its connections before it answers.
		_ = conn.Invoke(ctx, shutdown, &emptypb.Empty{}, &emptypb.Empty{})
	}
}

func (l *life) Health() (grpc.ClientConnInterface, string) {
	return l.conn.Load(), goplugin.GRPCServiceName
}

func (l *life) Ended() {
	close(l.gone)
	<-l.launched
	l.close()
}

// close releases all resources of the plugin after its process has ended.
func (l *life) close() {
	l.unhook()
	l.unserve()
	l.plugin.Connections.remove(l.endpoint, l.traffic)
	if l.bridge != nil {
		l.bridge.close()
	}
	_ = l.hello.Close()
	_ = l.errorsWrite.Close()
	l.client.Kill()
	l.unpin()
	l.stdout.close()
	l.stderr.close()
	if l.dir != "" {
		_ = os.RemoveAll(l.dir) // the library does it only if the process was started
	}
}

// process is a plugin's process for the library. It implements [runner.Runner].
type process struct {
	*life
	start func() error
}

func (p *process) Start(context.Context) error { return p.start() }

// Diagnose returns nothing, because the log has all output.
func (*process) Diagnose(context.Context) string { return "" }

// Stdout returns only the first line.
func (p *process) Stdout() io.ReadCloser { return p.hello }

func (p *process) Stderr() io.ReadCloser { return p.errors }

func (p *process) Name() string { return p.spec.Args[0] }

func (p *process) Wait(context.Context) error {
	select {
	case <-p.process.Done():
	case <-p.gone:
	}
	return nil
}

func (p *process) Kill(context.Context) error {
	p.kill()
	return nil
}

// ID returns the process ID; empty if the process could not be started.
func (p *process) ID() string {
	if p.process == nil {
		return ""
	}
	return strconv.Itoa(p.process.PID())
}

// PluginToHost returns the address unchanged, except that it refuses addresses that a plugin of another user brokers: the library connects
// to them itself, without a check of the peer.
func (p *process) PluginToHost(network, address string) (string, string, error) {
	if p.address != nil && p.isOtherUser() { // the first address is that of the handshake
		return "", "", fmt.Errorf("cannot connect to %s address %s, which the plugin brokers: nobody can tell whose process listens there; "+
			"leave user and group out", network, untrusted.Quote(address))
	}
	return network, address, nil
}

func (*process) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

// stdio writes a plugin's redirected output to its log: after the handshake, the plugin sends its standard output and error as calls.
type stdio struct {
	from    *io.PipeReader
	to      *io.PipeWriter
	reading sync.WaitGroup
}

func (s *stdio) read(log *pluginlog.Log, source string) {
	s.reading.Go(func() { _ = log.Drain(s.from, source) }) // never fails on an io.Pipe
}

// close waits until all output is in the log.
func (s *stdio) close() {
	_ = s.to.Close()
	s.reading.Wait()
}
