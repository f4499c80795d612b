package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// kubeletSocket is the name of the socket on which plugins register the older way.
	kubeletSocket = "kubelet.sock"
	// socketMode lets only root and the daemon's user register, as with a kubelet.
	socketMode = 0o600
	// settleTime is how long Register waits for the decision of the pipeline. After that it succeeds without one.
	settleTime = 5 * time.Second
	// maxAnnounced bounds the plugins that are announced at a time, maxRegistering the calls of Register that are being served.
	maxAnnounced   = 256
	maxRegistering = 16
	// maxRegister bounds one request in bytes, maxIdle the time that a connection may be idle, helloTimeout the HTTP/2 handshake.
	maxRegister  = 16 << 10
	maxIdle      = time.Minute
	helloTimeout = 5 * time.Second
)

// older serves kubelet.sock, for plugins that register the older way: they call Register and name their own socket in the same directory.
// It announces each of them in the plugin directory. A nil older has no announcements.
type older struct {
	pluginapi.UnimplementedRegistrationServer

	h      *Handler
	dir    string
	server *grpc.Server
	board  string        // the directory of the announcements
	last   atomic.Uint64 // the serial of the last announcement
	turn   chan struct{}
	closed sync.Once
	// running counts the server and the announcements.
	running sync.WaitGroup

	mu        sync.Mutex
	announced map[*announcement]bool
}

// serveOlder begins to serve. kubelet.sock is a new file, so that plugins notice that another process is listening and register again.
func (h *Handler) serveOlder() (*older, error) {
	dir, err := filepath.Abs(h.SocketDir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("cannot create the directory of %s: %w", kubeletSocket, err)
	}
	listener, err := sock.Listen(filepath.Join(dir, kubeletSocket), socketMode)
	if err != nil {
		return nil, fmt.Errorf("cannot serve %s for plugins that register the older way: %w", kubeletSocket, err)
	}
	o := &older{h: h, dir: dir, turn: make(chan struct{}, maxRegistering), announced: map[*announcement]bool{}}
	if o.board, err = makeBoard(h.PluginDir); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	o.server = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxRegister), grpc.MaxConcurrentStreams(maxRegistering), grpc.ConnectionTimeout(helloTimeout),
		grpc.WaitForHandlers(true), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle}),
	)
	pluginapi.RegisterRegistrationServer(o.server, o)
	o.running.Go(func() {
		if err := o.server.Serve(listener); err != nil { // it ends with Stop, and that is not an error
			h.Logger.Error("device plugins cannot register the older way any more", "socket", listener.Addr().String(), "error", err)
		}
	})
	return o, nil
}

// close stops serving and removes all announcements. Calling it again has no effect.
func (o *older) close() (err error) {
	o.closed.Do(func() {
		o.server.Stop()
		o.takeDown(func(*announcement) bool { return true })
		o.running.Wait()
		err = os.RemoveAll(o.board)
	})
	return err
}

// Register implements the service of the kubelet. It answers when the pipeline has decided on the plugin, or after settleTime.
func (o *older) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if err := o.register(ctx, request); err != nil {
		o.h.Logger.Warn("device plugin not registered", "resource", untrusted.Clip(request.GetResourceName()),
			"endpoint", untrusted.Clip(request.GetEndpoint()), "error", err)
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

func (o *older) register(ctx context.Context, request *pluginapi.RegisterRequest) error {
	resource, name := request.GetResourceName(), request.GetEndpoint()
	err := cmp.Or(checkResource(resource), checkVersions([]string{request.GetVersion()}), untrusted.Endpoint(name, kubeletSocket))
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	a := &announcement{
		older: o, resource: resource, path: filepath.Join(o.dir, name), options: knownOptions(request.GetOptions()),
		told: make(chan struct{}), leave: make(chan struct{}),
	}
	a.takeDown = sync.OnceFunc(func() { close(a.leave) })
	if a.socket, err = lookAt(a.path); err != nil {
		err = fmt.Errorf("cannot use endpoint %s: %w", untrusted.Quote(name), err)
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if err := o.announce(a); err != nil {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	select {
	case <-a.told:
	case <-ctx.Done(): // it goes on
	}
	return a.answer()
}

// lookAt checks that a path is a socket of root or this user on which a process accepts, and returns its identity.
func lookAt(path string) (plugin.SocketID, error) {
	info, err := sock.Stat(path)
	switch {
	case err != nil:
		return info.ID, fmt.Errorf("%w; serve there before you register", err)
	case !info.IsSocket():
		return info.ID, errors.New("not a socket")
	case info.UID != 0 && int(info.UID) != os.Geteuid():
		return info.ID, fmt.Errorf("it is of user %d; make the socket as root or user %d", info.UID, os.Geteuid())
	}
	if err := endpoint.Probe(context.Background(), path); err != nil {
		return info.ID, fmt.Errorf("%w; serve there before you register", err)
	}
	return info.ID, nil
}

// announce serves an announcement. An earlier announcement of the same endpoint stays until the pipeline has decided on the new one.
func (o *older) announce(a *announcement) error {
	o.mu.Lock()
	full := len(o.announced) >= maxAnnounced
	o.mu.Unlock()
	if full {
		o.takeDown(func(a *announcement) bool { return isDead(a.path) })
		return fmt.Errorf("%d plugins have registered already, and more are not allowed; end those that are not needed and try again",
			maxAnnounced)
	}
	// Each has a path of its own, so the pipeline never takes it for an earlier one, even if the inode is reused.
	a.serial = o.last.Add(1)
	listener, err := sock.Listen(filepath.Join(o.board, strconv.FormatUint(a.serial, 36)+".sock"), socketMode)
	if err != nil {
		return fmt.Errorf("cannot announce it: %w", err)
	}
	o.mu.Lock()
	o.announced[a] = true
	o.mu.Unlock()
	o.running.Go(func() { a.serve(listener) })
	return nil
}

func (o *older) matching(is func(*announcement) bool) []*announcement {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	all := slices.Collect(maps.Keys(o.announced))
	o.mu.Unlock()
	return slices.DeleteFunc(all, func(a *announcement) bool { return !is(a) })
}

func (o *older) takeDown(is func(*announcement) bool) {
	for _, a := range o.matching(is) {
		a.takeDown()
	}
}

// dropDead removes the announcements of a resource whose plugins have exited. A plugin that restarts registers again.
func (o *older) dropDead(resource string) {
	o.takeDown(func(a *announcement) bool { return a.resource == resource && isDead(a.path) })
}

// announcementAt returns an announcement of the plugin at a path; nil if there is none.
func (o *older) announcementAt(path string) *announcement {
	for _, a := range o.matching(func(a *announcement) bool { return a.path == path }) {
		return a
	}
	return nil
}

// isDead reports whether no process accepts at a path.
func isDead(path string) bool {
	err := endpoint.Probe(context.Background(), path)
	return sock.IsRefused(err) || sock.IsGone(err)
}
