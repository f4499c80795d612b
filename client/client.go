// Package client talks to a running Patchbay daemon over its control socket.
//
// It turns the control API of api/patchbay/v1 into plain Go values whose JSON form is the one that the patchbay command prints, so that a
// program and a script see the same keys, and its errors say whether no daemon is running, the caller is not allowed, or the plugin is
// unknown. It starts no daemon and keeps nothing between calls but idle connections.
//
// Callers that need another language or the protocol itself use the API directly.
package client

import (
	"context"
	"iter"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
)

// Client calls the daemon behind one control socket. All methods are safe for concurrent use. Each blocks until the daemon has answered or
// its context ends, and connects again if the daemon was restarted in between; none repeats a call that failed.
//
// The error of every method wraps [ErrNotRunning] if no daemon serves the socket, [ErrPermission] if this user may not connect, [ErrDenied]
// if the user's role does not suffice, [ErrNotFound] if the plugin is unknown, and ctx.Err() if the context ended first. Methods with
// further errors name them.
type Client struct {
	socketPath string
	transport  *http.Transport
	control    patchbayv1connect.ControlServiceClient
	devices    patchbayv1connect.DeviceServiceClient
	fleet      patchbayv1connect.FleetServiceClient
}

// New returns a client of the daemon whose control socket is at the given path. It does not connect; if no daemon is running, the first
// call fails.
func New(socketPath string) *Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, socketPath)
		},
		DisableCompression: true,
	}
	calls := &http.Client{Transport: transport}
	const address = "http://patchbay" // is not looked up: the transport goes to the socket whatever it is
	return &Client{
		socketPath: socketPath,
		transport:  transport,
		control:    patchbayv1connect.NewControlServiceClient(calls, address),
		devices:    patchbayv1connect.NewDeviceServiceClient(calls, address),
		fleet:      patchbayv1connect.NewFleetServiceClient(calls, address),
	}
}

// Close closes the idle connections. Calls in progress are not disturbed, and the client stays usable.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// ask makes one call. Its error is explained as that of a task; the answer is nil then, which every getter takes for an empty one.
func ask[Q, A any](
	ctx context.Context, explain func(task string, err error) error, task string, call func(context.Context, *Q) (*A, error), request *Q,
) (*A, error) {
	response, err := call(ctx, request)
	if err != nil {
		return nil, explain(task, err)
	}
	return response, nil
}

// follow returns a sequence of what the messages of a stream say. The messages of which value returns nil say nothing.
func follow[Q, A, T any](
	ctx context.Context, explain func(task string, err error) error, task string,
	open func(context.Context, *Q) (*connect.ServerStreamForClient[A], error), request *Q, value func(*A) *T,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		// The end of the context, and not reading to its end, is what ends a stream that is left early.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := open(ctx, request)
		if err != nil {
			yield(*new(T), explain(task, err))
			return
		}
		defer func() {
			cancel()
			_ = stream.Close() // nothing is left to learn from it
		}()
		for stream.Receive() {
			if said := value(stream.Msg()); said != nil && !yield(*said, nil) {
				return
			}
		}
		if err := stream.Err(); err != nil {
			yield(*new(T), explain(task, err))
		}
	}
}

// List returns all plugins that the daemon knows and the conditions of the daemon, as one consistent view.
func (c *Client) List(ctx context.Context) (Listing, error) { return c.ListTypes(ctx) }

// ListTypes is List of the plugins of some types, or with some roles; of all if there are none.
func (c *Client) ListTypes(ctx context.Context, types ...string) (Listing, error) {
	const task = "list the plugins"
	listing := Listing{Plugins: []Plugin{}, Conditions: []Condition{}}
	whole := func(m *patchbayv1.StreamPluginsResponse) **patchbayv1.StreamPluginsResponse { return &m }
	raw := func(_ string, err error) error { return err }
	for part, err := range follow(ctx, raw, task, c.control.StreamPlugins, &patchbayv1.StreamPluginsRequest{Types: types}, whole) {
		if connect.CodeOf(err) == connect.CodeUnimplemented { // the daemon is an older one
			answer, err := ask(ctx, c.explain, task, c.control.ListPlugins, &patchbayv1.ListPluginsRequest{Types: types})
			return Listing{Plugins: each(answer.GetPlugins(), pluginOf), Conditions: each(answer.GetConditions(), conditionOf)}, err
		}
		if err != nil {
			return Listing{}, c.explain(task, err)
		}
		listing.Plugins = append(listing.Plugins, each(part.GetPlugins(), pluginOf)...)
		listing.Conditions = append(listing.Conditions, each(part.GetConditions(), conditionOf)...)
	}
	return listing, nil
}

// Get returns every known instance of one plugin, newest first: at least one. For an unknown plugin the error is [ErrNotFound].
//
// Here and in Retry, ReleaseName and Wait, ptype is a type or a role. If it is empty, name is that of a launched plugin in the catalogue.
func (c *Client) Get(ctx context.Context, ptype, name string) ([]Plugin, error) {
	request := &patchbayv1.GetPluginRequest{Type: ptype, Name: name}
	answer, err := ask(ctx, c.explain, "get plugin "+pluginText(ptype, name), c.control.GetPlugin, request)
	return each(answer.GetPlugins(), pluginOf), err
}

// Retry immediately retries the instances of a plugin that wait for another attempt, and returns before the outcome is known. A plugin that
// is not known is [ErrNotFound].
func (c *Client) Retry(ctx context.Context, ptype, name string) error {
	request := &patchbayv1.RetryPluginRequest{Type: ptype, Name: name}
	_, err := ask(ctx, c.explain, "retry "+pluginText(ptype, name), c.control.RetryPlugin, request)
	return err
}

// ReleaseName frees the reserved name of a plugin that is gone.
func (c *Client) ReleaseName(ctx context.Context, ptype, name string) error {
	request := &patchbayv1.ReleaseNameRequest{Type: ptype, Name: name}
	_, err := ask(ctx, c.explain, "release "+pluginText(ptype, name), c.control.ReleaseName, request)
	return err
}

// Refusals returns the last refusal of each name whose plugin is gone and that has not been registered since: LastError is the reason, and
// Since the time.
func (c *Client) Refusals(ctx context.Context) ([]Plugin, error) {
	answer, err := ask(ctx, c.explain, "list the refusals", c.control.ListRefusals, &patchbayv1.ListRefusalsRequest{})
	return each(answer.GetPlugins(), pluginOf), err
}

// Events returns the events of the daemon in the order in which they happened. There is neither a gap nor a duplicate between past and new
// ones.
//
// The sequence is single-use: each iteration is a separate call. Without Follow it ends after the past events. An error is the last pair of
// the sequence: that of the context when it ends, [ErrNotRunning] when the daemon goes away, and [ErrBehind] when the iteration was too
// slow for the daemon to keep what it had not read.
func (c *Client) Events(ctx context.Context, options EventsOptions) iter.Seq2[Event, error] {
	request := &patchbayv1.WatchEventsRequest{
		Follow: options.Follow, Tail: options.Tail, Types: options.Types, Names: options.Names, Kinds: options.Kinds,
	}
	if !options.Since.IsZero() {
		request.Since = timestamppb.New(options.Since)
	}
	return follow(ctx, c.explain, "read the events", c.control.WatchEvents, request, func(m *patchbayv1.WatchEventsResponse) *Event {
		if m.GetEvent() == nil {
			return nil // it says only that the watch stands
		}
		return new(eventOf(m.GetEvent()))
	})
}

// Configuration returns the files and directories that the daemon uses, and its configuration.
func (c *Client) Configuration(ctx context.Context) (Configuration, error) {
	m, err := ask(ctx, c.explain, "get the configuration", c.control.GetConfiguration, &patchbayv1.GetConfigurationRequest{})
	return Configuration{
		PluginDirs: m.GetPluginDirs(), DeprecatedPluginDir: m.GetDeprecatedPluginDir(), State: m.GetState(),
		ControlSocket: m.GetControlSocket(), Effective: m.GetEffective(), Handlers: present(m.GetHandlers()),
	}, err
}

// A Part is a part of a file.
type Part struct {
	// Name is the name of the file; consecutive parts of one name are one file.
	Name string
	// Content are the next bytes of it.
	Content []byte
}

// Diagnose returns diagnostic files about the daemon's process, for a bug report. The sequence behaves like that of [Client.Events].
func (c *Client) Diagnose(ctx context.Context) iter.Seq2[Part, error] {
	partOf := func(m *patchbayv1.DiagnoseResponse) *Part { return &Part{m.GetName(), m.GetContent()} }
	return follow(ctx, c.explain, "diagnose the daemon", c.control.Diagnose, &patchbayv1.DiagnoseRequest{}, partOf)
}

// Reload makes the daemon read and apply its configuration again, and returns the keys whose values changed. If the configuration is
// invalid, the error says what is wrong and where, and nothing changes. It waits until the processes of changed plugins have been
// replaced, or could not be.
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	answer, err := ask(ctx, c.explain, "reload the configuration", c.control.Reload, &patchbayv1.ReloadRequest{})
	return Reloaded{Changed: present(answer.GetChanged()), NotReplaced: present(answer.GetNotReplaced())}, err
}

// Version says which build of the daemon answers, and since when it has been running.
func (c *Client) Version(ctx context.Context) (Version, error) {
	v, err := ask(ctx, c.explain, "get the version of the daemon", c.control.GetVersion, &patchbayv1.GetVersionRequest{})
	if err != nil {
		return Version{}, err
	}
	return Version{
		Version: v.GetVersion(), Commit: v.GetCommit(), GoVersion: v.GetGoVersion(), PID: int(v.GetPid()),
		StartTime: v.GetStartTime().AsTime(), Node: v.GetNode(),
	}, nil
}

// each returns what each message of a list says. The list is an array in JSON, never null.
func each[M, T any](messages []M, of func(M) T) []T {
	values := make([]T, len(messages))
	for i, m := range messages {
		values[i] = of(m)
	}
	return values
}

// present returns a list that is an array in JSON, never null.
func present[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// presentMap returns a map that is an object in JSON, never null.
func presentMap(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func timeOf(ts *timestamppb.Timestamp) *time.Time {
	if ts == nil {
		return nil
	}
	return new(ts.AsTime())
}
