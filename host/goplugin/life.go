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
	// maxHello bounds the line in which a plugin says where it serves. The longest part of it is a certificate.
	maxHello = 16 << 10
	// shutdown is the method by which a plugin is asked to end. Its messages are empty.
	shutdown = "/plugin.GRPCController/Shutdown"
)

// life is one launch of a plugin, from the start of its process until nothing is left of it. It implements [host.ProtocolAdapter].
type life struct {
	plugin *Plugin
	spec   host.Spec
	config *goplugin.ClientConfig
	client *goplugin.Client
	dir    string // in which the plugin makes its socket
	// traffic is what is under way to the process, and callsTime how long that may go on when the process is to end.
	traffic   *traffic
	callsTime time.Duration

	// hello is what the plugin said first, up to the end of the line, which the library reads.
	hello      *io.PipeReader
	helloWrite *io.PipeWriter
	said       atomic.Pointer[string] // that line; nil if the plugin has printed nothing
	// errors is the plugin's standard error, which the library logs if its host has a logger; copies are all writers that get it.
	errors      *io.PipeReader
	errorsWrite *io.PipeWriter
	copies      []io.Writer
	// stdout and stderr are what the plugin prints once the library has redirected its output.
	stdout, stderr stdio

	process  *host.PluginProcess // set by start
	unhook   func()
	conn     atomic.Pointer[grpc.ClientConn]
	address  net.Addr // where the plugin says that it serves
	endpoint string
	unserve  func()
	pinning  sync.Mutex // guards pinned
	pinned   *sock.Pinned
	// multiplexed and bridge are for a plugin with one multiplexed connection; nil for others.
	multiplexed *multiplexed
	bridge      *bridge

	// settled is closed when Launch returns; gone when the process has ended or was given up.
	settled, gone chan struct{}
}

func newLife(p *Plugin, spec host.Spec) *life {
	nothing := func() {}
	l := &life{
		plugin: p, spec: spec, traffic: newTraffic(), unhook: nothing, unserve: nothing,
		settled: make(chan struct{}), gone: make(chan struct{}),
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

// start starts the process. The end of ctx ends it until unhook is called.
func (l *life) start(ctx context.Context, h *host.Host) error {
	process, err := h.Launch(ctx, l.spec)
	if err != nil {
		return err
	}
	l.process = process
	log, _ := process.Logs().(*pluginlog.Log) // the host has no other
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

// meet has the library start the plugin and connect to it, and makes it known.
func (l *life) meet(ctx context.Context) error {
	address, err := l.client.Start()
	if err != nil {
		return l.explain(ctx, err)
	}
	l.address = address
	if l.endpoint = address.String(); !filepath.IsAbs(l.endpoint) {
		l.endpoint = filepath.Join(l.dir, l.endpoint) // what is announced as an endpoint is a path
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
	if err := answers(ctx, conn); err != nil {
		if l.plugin.AutoMTLS && ctx.Err() == nil {
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

// isJudged reports whether the plugin runs as another user or group than this process, and so may name what this process can reach and the
// plugin cannot.
func (l *life) isJudged() bool { return l.spec.User+l.spec.Group != "" }

// dial connects to where the plugin says that it serves. A plugin of another user may name a socket that this process can reach and that
// user cannot, so one of its own processes has to serve there.
func (l *life) dial(ctx context.Context) (net.Conn, error) {
	if network := l.address.Network(); network != "unix" {
		if l.isJudged() {
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
	if err := l.judge(conn.UnixConn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// pin returns the socket that was at the endpoint at the first connection. A cleaner of old files may remove it later, or another process
// may put something else there.
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

// unpin releases the socket. The plugin has ended.
func (l *life) unpin() {
	l.pinning.Lock()
	defer l.pinning.Unlock()
	if l.pinned != nil {
		_ = l.pinned.Close()
	}
}

// judge returns an error for a connection to somebody else's process, if the plugin runs as another user.
func (l *life) judge(conn *net.UnixConn) error {
	if !l.isJudged() {
		return nil
	}
	uid, err := account.UserID(l.spec.User)
	if err != nil {
		return err
	}
	// The number of a process that has ended may be one of the plugin's by now, so the user counts too.
	peer, err := peerauth.OfUser(conn, l.endpoint, uid)
	if err == nil && !l.process.Owns(peer.PID) {
		err = fmt.Errorf("process %d of user %d serves at %s, where the plugin says that it serves itself", peer.PID, peer.UID, l.endpoint)
	}
	return err
}

// answers asks for the health of the plugin, which the protocol demands to be offered.
func answers(ctx context.Context, conn grpc.ClientConnInterface) error {
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: goplugin.GRPCServiceName})
	switch status.Code(err) {
	case codes.OK, codes.NotFound, codes.Unimplemented:
		return nil
	default:
		return fmt.Errorf("it said where it serves and does not answer there: %w", err)
	}
}

// libraryError is an error of the library in one line.
type libraryError struct{ error }

func (e libraryError) Error() string { return oneLine(e.error) }

func (e libraryError) Unwrap() error { return e.error }

// explain says why the plugin could not be met. The process has ended afterwards.
func (l *life) explain(ctx context.Context, err error) error {
	if l.process == nil {
		return err // no plugin has printed any of it
	}
	l.kill()
	said := l.said.Load()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case said != nil && !handshake.MatchString(*said):
		return fmt.Errorf("it printed %s on standard output before its handshake; plugins of go-plugin must print nothing there",
			untrusted.Quote(*said))
	case said != nil || strings.Contains(err.Error(), "timeout while waiting"): // the library has no error of its own for it
		return libraryError{err}
	}
	// How it ended is not wrapped: even an exit with status 0 is a failure.
	return fmt.Errorf("it ended before it said where it serves: %s; if it only says that it is a plugin, "+
		"it wants another magic cookie than %s", cmp.Or(l.process.Err(), err).Error(), l.plugin.CookieKey)
}

// handshake is the form of the line in which a plugin says where it serves.
var handshake = regexp.MustCompile(`^\s*\d+(\|[^|]*){3}`)

// kill ends the process at once and waits for that.
func (l *life) kill() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	// How a process ends that is killed is no news.
	_ = l.process.Terminate(now)
}

// Hello gives the first line to the library, and to the log if it is not a handshake. It implements [host.ProtocolAdapter].
func (l *life) Hello(stdout io.Reader) {
	defer l.helloWrite.Close()
	var line []byte
	next := make([]byte, 1) // what follows the line belongs to the log
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
		l.said.Store(&text)
		if !handshake.MatchString(text) {
			_, _ = fmt.Fprintln(l.stdout.to, text) // fails if the plugin was given up
		}
		_, _ = l.helloWrite.Write(line) // fails if the library has given up
	}
}

func (l *life) Stderr(stderr io.Reader) io.Reader {
	if len(l.copies) == 0 {
		return stderr
	}
	return &copier{from: stderr, to: l.copies, end: l.errorsWrite}
}

// copier reads standard error and copies each byte to the writers of the host, at their pace.
type copier struct {
	from io.Reader
	to   []io.Writer
	end  io.Closer
	late int // reads that timed out, as they do after the process has ended
}

const (
	// After the process has ended, at most maxLate reads empty the pipe, each within latePatience: another process may hold the other end.
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
		_, _ = to.Write(p[:n]) // its errors are ignored, as in the library
	}
	if err != nil {
		_ = c.end.Close()
	}
	return n, err
}

// Stop implements [host.ProtocolAdapter]. What is under way ends first.
func (l *life) Stop(ctx context.Context) {
	if conn := l.conn.Load(); conn != nil {
		l.traffic.end(ctx, l.callsTime)
		// A plugin ends its connections before it answers. Whether it ends is seen by its process.
		_ = conn.Invoke(ctx, shutdown, &emptypb.Empty{}, &emptypb.Empty{})
	}
}

func (l *life) Health() (grpc.ClientConnInterface, string) {
	return l.conn.Load(), goplugin.GRPCServiceName
}

func (l *life) Ended() {
	close(l.gone)
	<-l.settled
	l.close()
}

// close releases what belongs to the plugin beside its process, which has ended.
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
		_ = os.RemoveAll(l.dir) // the library does so too, if the process was started
	}
}

// process is the process of a plugin as the library sees it. It implements [runner.Runner].
type process struct {
	*life
	start func() error
}

func (p *process) Start(context.Context) error { return p.start() }

// Diagnose says nothing: the log has what there is to say.
func (*process) Diagnose(context.Context) string { return "" }

// Stdout has the first line only.
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

// ID is empty for a process that could not be started.
func (p *process) ID() string {
	if p.process == nil {
		return ""
	}
	return strconv.Itoa(p.process.PID())
}

// PluginToHost returns the address as it is: the plugin sees the addresses that its host sees. Those that a plugin of another user brokers
// are refused: the library connects there itself.
func (p *process) PluginToHost(network, address string) (string, string, error) {
	if p.address != nil && p.isJudged() { // the first one is where it serves
		return "", "", fmt.Errorf("cannot connect to %s address %s, which the plugin brokers: nobody can tell whose process listens there; "+
			"leave user and group out", network, untrusted.Quote(address))
	}
	return network, address, nil
}

func (*process) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

// stdio brings what the library hands over of a plugin's output into its log. The library replaces the plugin's standard output and error
// when it has started, and sends what is printed from then on as calls.
type stdio struct {
	from    *io.PipeReader
	to      *io.PipeWriter
	reading sync.WaitGroup
}

func (s *stdio) read(log *pluginlog.Log, source string) {
	s.reading.Go(func() { _ = log.Drain(s.from, source) }) // a pipe of this process can be read
}

// close waits until all that was written is in the log.
func (s *stdio) close() {
	_ = s.to.Close()
	s.reading.Wait()
}
