// Package controlapi serves the daemon's control API and the calls of plugins on the control socket, and provides the data of the status
// page.
//
// Package access checks whether a caller may call a method, and package resolver finds the plugin that a name refers to.
package controlapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/prometheus/client_golang/prometheus"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/handlers/device"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/node"
	"github.com/patchbay-dev/patchbay/internal/daemon/page"
	"github.com/patchbay-dev/patchbay/internal/daemon/resolver"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/suggest"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// API is the control API of a daemon. Its exported fields must be set before [API.Serve].
type API struct {
	// Settings is the configuration at the start. Version and Commit identify the build.
	Settings        config.Config
	Version, Commit string
	Daemon          Daemon
	Runtime         Runtime
	Launcher        Launcher
	Names           *resolver.Resolver
	Handlers        resolver.Handlers
	Registry        Registry
	Node            *node.Node // nil if the node does not belong to a fleet
	// Catalogue has the metadata of launched plugins; nil for none.
	Catalogue Catalogue
	Metrics   Metrics
	// Connector connects to the plugins that callers of the control socket may call; nil refuses such calls.
	Connector  proxy.Connector
	Authorizer *access.Authorizer
	// Requests bounds the number of requests; without it, requests are not bounded. Calls bounds the bytes of requests, and the calls of
	// plugins. ListsRefused counts responses that exceed a bound.
	Requests, Calls *h2proxy.Budget
	ListsRefused    prometheus.Counter
	Logger          *slog.Logger

	started time.Time
	lists   *lists
	views   shared[*view]
	past    shared[[]plugin.Event]
}

// Page returns the data of the status page.
func (c *API) Page() page.Source { return service{c} }

// service implements the services of package patchbayv1connect, whose methods the proto files document, and [page.Source].
type service struct{ *API }

// Daemon is the daemon whose configuration can be reloaded.
type Daemon interface {
	// Reload returns the keys whose values have changed.
	Reload(ctx context.Context) (changed []string, err error)
	// Effective returns the present configuration as text.
	Effective() string
}

// Runtime provides the plugins, events and conditions.
type Runtime interface {
	resolver.Runtime

	Retry(ptype, name string) error
	Reservation(name plugin.Name) (plugin.Reservation, bool)
	ReleaseName(ctx context.Context, ptype, name string) error
	Conditions() []plugin.Condition
	// LastEvents returns the last n events in memory, and PastEvents all events that are kept. Both return the oldest first.
	LastEvents(n int) []plugin.Event
	PastEvents() ([]plugin.Event, error)
	// Events returns a channel with the last tail events and then the new ones, in order, until ctx is done.
	Events(ctx context.Context, tail int) <-chan plugin.Event
}

// Registry knows which plugins are being replaced.
type Registry interface {
	// AwaitReplaced blocks while the process of a plugin is being replaced and calls wait for the new one.
	AwaitReplaced(ctx context.Context, ptype, name string) error
}

// Catalogue describes launched plugins.
type Catalogue interface {
	Metadata(name string) map[string]string
}

// Metrics writes the metrics of the daemon.
type Metrics interface {
	WriteText(to *bytes.Buffer) error
}

// maxRequest is the maximum size of a request in bytes, except requests for devices. It is far more than any client needs.
const maxRequest = 64 << 10

// Serve starts a server for the control API and the calls of plugins, and returns. The caller stops the server. If the server fails before
// that, failed is called and [server.Server.Stop] returns the error.
func (c *API) Serve(listener net.Listener, failed func()) *server.Server {
	c.started = time.Now()
	if c.lists == nil {
		c.lists = newLists(uint32(os.Geteuid()), c.ListsRefused, c.Logger)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // gRPC clients use it on a socket without TLS
	h := &http.Server{Handler: service{c}.handler(), Protocols: protocols, ConnContext: c.Authorizer.ConnContext}
	h2proxy.BoundHTTP(h)
	return server.Start("the control API", listener, h, failed, c.Logger)
}

// handler returns the handler of all requests at the control socket.
func (c service) handler() http.Handler {
	mux := http.NewServeMux()
	guarded := []connect.HandlerOption{
		connect.WithRequestGate(c.Authorizer.Gate), connect.WithInterceptors(c.Authorizer.Interceptor(), bounds{}),
		connect.WithReadMaxBytes(maxRequest),
		connect.WithCompression("gzip", nil, nil), // no compression: only compressed bytes would count
	}
	own := func(path string, service http.Handler) {
		mux.Handle(path, c.boundRequests(c.lists.handler(service)))
	}
	own(patchbayv1connect.NewControlServiceHandler(c, guarded...))
	own(patchbayv1connect.NewFleetServiceHandler(c, guarded...))
	own(patchbayv1connect.NewDeviceServiceHandler(c, append(guarded, connect.WithReadMaxBytes(maxDeviceRequest))...))
	var forwarder http.Handler
	if c.Connector != nil {
		forwarder = c.newForwarder()
		mux.Handle("/", forwarder)
	}
	mux.Handle(reflectionPath, c.reflectionHandler(forwarder))
	return mux
}

// pastEvents returns all events that are kept. A condition reports an error of reading them.
func (c service) pastEvents() []plugin.Event {
	events, _ := c.Runtime.PastEvents()
	return events
}

func (c service) GetVersion(context.Context, *patchbayv1.GetVersionRequest) (*patchbayv1.GetVersionResponse, error) {
	return &patchbayv1.GetVersionResponse{
		Version:   c.Version,
		Commit:    c.Commit,
		GoVersion: runtime.Version(),
		Pid:       int64(os.Getpid()),
		StartTime: timestamp(c.started),
		Node:      untrusted.Valid(node.Name(c.Settings.Fleet)),
	}, nil
}

func (c service) GetPlugin(ctx context.Context, request *patchbayv1.GetPluginRequest) (*patchbayv1.GetPluginResponse, error) {
	asked, err := c.askedFor(request)
	if err != nil {
		return nil, err
	}
	plugins := c.get(asked)
	if len(plugins) == 0 { // if the process is being replaced, wait for the new one as calls do
		if _, was, ok := c.Names.FormerlyLaunched(asked); ok {
			if err := c.Registry.AwaitReplaced(ctx, was.Type, was.Name); err != nil {
				return nil, connect.NewError(connect.CodeUnavailable, err)
			}
			plugins = c.get(asked)
		}
	}
	if len(plugins) == 0 {
		return nil, c.unknown(asked)
	}
	return &patchbayv1.GetPluginResponse{Plugins: plugins}, nil
}

// get returns the instances and refusals of a plugin.
func (c service) get(asked plugin.Name) []*patchbayv1.Plugin {
	plugins := each(c.Names.Instances(asked), c.message)
	announced := c.Names.Announced(asked)
	for _, refusal := range c.Runtime.Refusals() {
		if refusal.PluginName() == announced {
			plugins = append(plugins, refusalMessage(refusal))
		}
	}
	return plugins
}

func (c service) unknown(asked plugin.Name) error {
	if asked.Type == "" {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("the launched plugin has not registered; "+
			"\"patchbay status %s\" says what it does", untrusted.Valid(asked.Name)))
	}
	if s, _, ok := c.Names.FormerlyLaunched(asked); ok {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("it is not registered: it is launched as %s, which is %s; "+
			"\"patchbay status %s\" says more", untrusted.Valid(s.Name), s.State, untrusted.Valid(s.Name)))
	}
	what, announced := errors.New("no such plugin is known"), c.Names.Announced(asked)
	// Root and the daemon's user may take any name, and most reserved names are theirs: these are not mentioned.
	if r, ok := c.Runtime.Reservation(announced); ok && r.Owner.UID != 0 && r.Owner.UID != uint32(os.Geteuid()) {
		what = fmt.Errorf("%w; the name is reserved for user %d, whose plugin had it last, until %s, or until \"patchbay release\"",
			what, r.Owner.UID, r.Until.UTC().Format(time.RFC3339))
	} else {
		known := each(slices.Concat(c.Runtime.Plugins(), c.Runtime.Refusals()),
			func(s plugin.Status) string { return s.PluginName().String() })
		what = fmt.Errorf("%w%s", what, suggest.Hint(asked.String(), known))
	}
	return connect.NewError(connect.CodeNotFound, what)
}

func (c service) RetryPlugin(_ context.Context, request *patchbayv1.RetryPluginRequest) (*patchbayv1.RetryPluginResponse, error) {
	asked, err := c.askedFor(request)
	if err != nil {
		return nil, err
	}
	announced := c.Names.Announced(asked)
	switch err := c.Runtime.Retry(announced.Type, announced.Name); {
	case errors.Is(err, pluginruntime.ErrUnknown):
		return nil, c.unknown(asked)
	case err != nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return &patchbayv1.RetryPluginResponse{}, nil
}

func (c service) ReleaseName(ctx context.Context, request *patchbayv1.ReleaseNameRequest) (*patchbayv1.ReleaseNameResponse, error) {
	asked, err := c.askedFor(request)
	if err != nil {
		return nil, err
	}
	announced := c.Names.Announced(asked)
	switch err := c.Runtime.ReleaseName(ctx, announced.Type, announced.Name); {
	case errors.Is(err, pluginruntime.ErrNotReserved):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	case ctx.Err() != nil:
		return nil, ended(ctx)
	case err != nil:
		return nil, connect.NewError(connect.CodeInternal, errors.New(untrusted.Valid(err.Error())))
	}
	return &patchbayv1.ReleaseNameResponse{}, nil
}

func (c service) ListRefusals(context.Context, *patchbayv1.ListRefusalsRequest) (*patchbayv1.ListRefusalsResponse, error) {
	return &patchbayv1.ListRefusalsResponse{Plugins: each(c.Runtime.Refusals(), refusalMessage)}, nil
}

func (c service) GetConfiguration(context.Context, *patchbayv1.GetConfigurationRequest) (*patchbayv1.GetConfigurationResponse, error) {
	return &patchbayv1.GetConfigurationResponse{
		PluginDirs: validAll(c.Settings.PluginDirs), DeprecatedPluginDir: untrusted.Valid(c.Settings.DeprecatedPluginDir),
		State: untrusted.Valid(c.Settings.State), ControlSocket: untrusted.Valid(c.Settings.ControlSocket),
		Effective: untrusted.Valid(c.Daemon.Effective()),
		Handlers:  validAll(slices.Sorted(maps.Keys(c.Handlers.All()))),
	}, nil
}

func (c service) ListConditions(context.Context, *patchbayv1.ListConditionsRequest) (*patchbayv1.ListConditionsResponse, error) {
	return &patchbayv1.ListConditionsResponse{Conditions: each(c.Runtime.Conditions(), conditionMessage)}, nil
}

func (c service) Reload(ctx context.Context, _ *patchbayv1.ReloadRequest) (*patchbayv1.ReloadResponse, error) {
	changed, err := c.Daemon.Reload(ctx)
	switch {
	case err == nil:
		failed := c.awaitReplacements(ctx, changed)
		return &patchbayv1.ReloadResponse{Changed: validAll(changed), NotReplaced: validAll(failed)}, nil
	case errors.Is(err, server.ErrStopping):
		return nil, connect.NewError(connect.CodeUnavailable, server.ErrStopping)
	case ctx.Err() != nil:
		return nil, ended(ctx)
	}
	return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New(untrusted.Valid(err.Error())))
}

// awaitReplacements waits until the processes of the plugins that a reload has changed are replaced, and returns the errors of those that
// could not be.
func (c service) awaitReplacements(ctx context.Context, changed []string) (failed []string) {
	for _, key := range changed {
		name, isPlugin := strings.CutPrefix(key, "plugins.")
		if !isPlugin {
			continue
		}
		if err := c.Launcher.AwaitReplacement(ctx, name); err != nil && !errors.Is(err, launcher.ErrUnknown) { // the reload may have removed it
			failed = append(failed, err.Error())
		}
	}
	return failed
}

// diagnosePart is how many bytes of a file one message has.
const diagnosePart = 1 << 20

func (c service) Diagnose(
	_ context.Context, _ *patchbayv1.DiagnoseRequest, stream *connect.ServerStream[patchbayv1.DiagnoseResponse],
) error {
	for _, file := range []struct {
		name  string
		write func(*bytes.Buffer) error
	}{
		{"metrics.txt", c.Metrics.WriteText},
		{"goroutines.txt", func(b *bytes.Buffer) error { return pprof.Lookup("goroutine").WriteTo(b, 1) }},
		{"heap.pprof", func(b *bytes.Buffer) error { return pprof.Lookup("heap").WriteTo(b, 0) }},
	} {
		var content bytes.Buffer
		if err := file.write(&content); err != nil {
			fmt.Fprintf(&content, "\ncannot write %s: %v\n", file.name, err) // the other files may still be useful
		}
		for part := range slices.Chunk(content.Bytes(), diagnosePart) {
			if err := stream.Send(&patchbayv1.DiagnoseResponse{Name: file.name, Content: part}); err != nil {
				return err
			}
		}
	}
	return nil
}

// askedFor returns the plugin that a request names. If the request has no type, the name must be in the catalogue.
func (c service) askedFor(request interface {
	GetType() string
	GetName() string
}) (asked plugin.Name, err error) {
	asked = plugin.Name{Type: request.GetType(), Name: request.GetName()}
	if asked.Name == "" {
		return asked, connect.NewError(connect.CodeInvalidArgument, errors.New("the request names no plugin: set type and name"))
	}
	if asked.Type == "" {
		if _, ok := c.Names.Launched(asked.Name); !ok {
			return asked, c.notLaunched(asked.Name, "; a plugin that registered by itself is named TYPE/NAME")
		}
	}
	return asked, nil
}

// anyOf reports whether a value passes a filter; an empty filter passes everything.
func anyOf(filter []string, value string) bool {
	return len(filter) == 0 || slices.Contains(filter, value)
}

// codeOf has the codes of errors of the launcher and of the device handler. Other errors are refusals.
var codeOf = map[error]connect.Code{
	launcher.ErrUnknown: connect.CodeNotFound, device.ErrNotFound: connect.CodeNotFound, device.ErrInvalid: connect.CodeInvalidArgument,
	device.ErrConflict: connect.CodeAlreadyExists,
}

// failure returns the error of a call for an error of the launcher or the device handler.
func failure(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, launcher.ErrClosed), errors.Is(err, device.ErrClosed):
		return connect.NewError(connect.CodeUnavailable, server.ErrStopping)
	case ctx.Err() != nil:
		return ended(ctx)
	}
	answer := refused(err)
	for known, code := range codeOf {
		if errors.Is(err, known) {
			return connect.NewError(code, answer.Unwrap())
		}
	}
	return answer
}

// refused returns a FailedPrecondition error for err. It omits the outermost message, because the client adds the task itself.
func refused(err error) *connect.Error {
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	return connect.NewError(connect.CodeFailedPrecondition, errors.New(untrusted.Valid(err.Error())))
}

// ended returns the error of a call that ended because ctx is done or the daemon is stopping.
func ended(ctx context.Context) error {
	switch err := context.Cause(ctx); {
	case err == nil || errors.Is(err, server.ErrStopping):
		return connect.NewError(connect.CodeUnavailable, server.ErrStopping)
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	case access.IsDenial(err):
		return connect.NewError(connect.CodePermissionDenied, err)
	default:
		return connect.NewError(connect.CodeCanceled, err)
	}
}
