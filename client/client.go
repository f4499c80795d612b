// Package client calls a running Patchbay daemon through its control socket.
//
// The methods of a [Client] correspond to those of the control API, api/patchbay/v1, and return its messages. In addition, the package
// provides gRPC connections to plugins, iterators over streams, waiting for plugins, and errors that distinguish whether no daemon is
// running, the caller is not allowed, or the plugin is unknown. It does not start a daemon.
package client

import (
	"context"
	"iter"
	"net"
	"net/http"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
)

// Client calls the daemon at one control socket. All methods are safe for concurrent use. Each blocks until the daemon has answered or its
// context is done. A client connects again after the daemon was restarted, but does not retry a call that failed.
//
// The error of every method wraps [ErrNotRunning] if no daemon serves the socket, [ErrPermission] if this user may not connect, [ErrDenied]
// if the user does not have the necessary role, [ErrNotFound] if the plugin is unknown, and ctx.Err() if the context is done. Further
// errors are documented with the methods.
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
	const address = "http://patchbay" // not resolved: the transport always dials the socket
	return &Client{
		socketPath: socketPath,
		transport:  transport,
		control:    patchbayv1connect.NewControlServiceClient(calls, address),
		devices:    patchbayv1connect.NewDeviceServiceClient(calls, address),
		fleet:      patchbayv1connect.NewFleetServiceClient(calls, address),
	}
}

// Close closes idle connections. It does not disturb calls in progress, and the client can still be used.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// ask makes one call. After an error the response is nil, whose getters return zero values.
func ask[Q, A any](
	ctx context.Context, explain func(task string, err error) error, task string, call func(context.Context, *Q) (*A, error), request *Q,
) (*A, error) {
	response, err := call(ctx, request)
	if err != nil {
		return nil, explain(task, err)
	}
	return response, nil
}

// follow returns an iterator over the values of a stream's messages. It skips messages for which value returns nil.
func follow[Q, A, T any](
	ctx context.Context, explain func(task string, err error) error, task string,
	open func(context.Context, *Q) (*connect.ServerStreamForClient[A], error), request *Q, value func(*A) *T,
) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		// If the caller stops early, cancel the stream rather than read the rest.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := open(ctx, request)
		if err != nil {
			yield(nil, explain(task, err))
			return
		}
		defer func() {
			cancel()
			_ = stream.Close() // Err has the error
		}()
		for stream.Receive() {
			if v := value(stream.Msg()); v != nil && !yield(v, nil) {
				return
			}
		}
		if err := stream.Err(); err != nil {
			yield(nil, explain(task, err))
		}
	}
}

// message returns the message itself, as a value for follow.
func message[A any](m *A) *A { return m }

// List returns the plugins that have one of the types, or all plugins if there are none, and the conditions of the daemon, as one
// consistent view. A type may be a role. Plugins are ordered by type and name, and by age with the newest first; conditions by name.
func (c *Client) List(ctx context.Context, types ...string) (*patchbayv1.ListPluginsResponse, error) {
	listing := &patchbayv1.ListPluginsResponse{}
	request := &patchbayv1.StreamPluginsRequest{Types: types}
	for part, err := range follow(ctx, c.explain, "list the plugins", c.control.StreamPlugins, request, message) {
		if err != nil {
			return nil, err
		}
		listing.Plugins = append(listing.Plugins, part.GetPlugins()...)
		listing.Conditions = append(listing.Conditions, part.GetConditions()...)
	}
	return listing, nil
}

// Get returns all known instances of a plugin, newest first. The error for an unknown plugin is [ErrNotFound].
//
// Here and in Retry, ReleaseName and Wait, ptype is a type or a role. If it is empty, name is that of a launched plugin in the catalogue.
func (c *Client) Get(ctx context.Context, ptype, name string) ([]*patchbayv1.Plugin, error) {
	request := &patchbayv1.GetPluginRequest{Type: ptype, Name: name}
	answer, err := ask(ctx, c.explain, "get plugin "+pluginText(ptype, name), c.control.GetPlugin, request)
	return answer.GetPlugins(), err
}

// Retry immediately retries the instances of a plugin that wait for another attempt, and returns before the outcome is known. The error for
// an unknown plugin is [ErrNotFound].
func (c *Client) Retry(ctx context.Context, ptype, name string) error {
	request := &patchbayv1.RetryPluginRequest{Type: ptype, Name: name}
	_, err := ask(ctx, c.explain, "retry "+pluginText(ptype, name), c.control.RetryPlugin, request)
	return err
}

// ReleaseName ends the reservation of the name of a plugin that no longer exists.
func (c *Client) ReleaseName(ctx context.Context, ptype, name string) error {
	request := &patchbayv1.ReleaseNameRequest{Type: ptype, Name: name}
	_, err := ask(ctx, c.explain, "release "+pluginText(ptype, name), c.control.ReleaseName, request)
	return err
}

// Refusals returns the last refusal of each plugin that no longer exists and has not been registered since. LastError is the reason, and
// Since the time.
func (c *Client) Refusals(ctx context.Context) ([]*patchbayv1.Plugin, error) {
	answer, err := ask(ctx, c.explain, "list the refusals", c.control.ListRefusals, &patchbayv1.ListRefusalsRequest{})
	return answer.GetPlugins(), err
}

// Events returns the events of the daemon in order. There is neither a gap nor a duplicate between past and new events.
//
// The sequence is single-use: each iteration is a separate call. Without Follow it ends after the past events. An error is the last pair of
// the sequence: ctx.Err() when the context is done, [ErrNotRunning] when the daemon stops, and [ErrBehind] when events were lost because
// the iteration was too slow.
func (c *Client) Events(ctx context.Context, request *patchbayv1.WatchEventsRequest) iter.Seq2[*patchbayv1.Event, error] {
	// The daemon sends a message without an event when it has begun to watch.
	return follow(ctx, c.explain, "read the events", c.control.WatchEvents, request, (*patchbayv1.WatchEventsResponse).GetEvent)
}

// Configuration returns the files and directories that the daemon uses, and its whole configuration as text.
func (c *Client) Configuration(ctx context.Context) (*patchbayv1.GetConfigurationResponse, error) {
	return ask(ctx, c.explain, "get the configuration", c.control.GetConfiguration, &patchbayv1.GetConfigurationRequest{})
}

// Diagnose returns files about the daemon's process for a bug report. Consecutive parts with the same name belong to one file. The sequence
// behaves like that of [Client.Events].
func (c *Client) Diagnose(ctx context.Context) iter.Seq2[*patchbayv1.DiagnoseResponse, error] {
	return follow(ctx, c.explain, "diagnose the daemon", c.control.Diagnose, &patchbayv1.DiagnoseRequest{}, message)
}

// Reload makes the daemon read and apply its configuration again, and returns the keys whose values changed. If the configuration is
// invalid, nothing changes, and the error has the reasons and their positions. Reload waits until the processes of changed plugins are
// replaced or could not be replaced.
func (c *Client) Reload(ctx context.Context) (*patchbayv1.ReloadResponse, error) {
	return ask(ctx, c.explain, "reload the configuration", c.control.Reload, &patchbayv1.ReloadRequest{})
}

// Version returns the build of the daemon and the time of its start.
func (c *Client) Version(ctx context.Context) (*patchbayv1.GetVersionResponse, error) {
	return ask(ctx, c.explain, "get the version of the daemon", c.control.GetVersion, &patchbayv1.GetVersionRequest{})
}

// ListLaunched returns the plugins that the daemon launches, ordered by name.
func (c *Client) ListLaunched(ctx context.Context) ([]*patchbayv1.LaunchedPlugin, error) {
	answer, err := ask(ctx, c.explain, "list the launched plugins", c.control.ListLaunched, &patchbayv1.ListLaunchedRequest{})
	return answer.GetPlugins(), err
}

// Launch starts a launched plugin that is not running. The name is the one in the catalogue or TYPE/NAME as it registered, as in all
// methods for launched plugins. For an unknown plugin the error is [ErrNotFound].
func (c *Client) Launch(ctx context.Context, name string) (*patchbayv1.LaunchedPlugin, error) {
	answer, err := ask(ctx, c.explain, "launch "+name, c.control.LaunchPlugin, &patchbayv1.LaunchPluginRequest{Name: name})
	return answer.GetPlugin(), err
}

// Stop stops a launched plugin and returns when its process has ended.
func (c *Client) Stop(ctx context.Context, name string) (*patchbayv1.LaunchedPlugin, error) {
	answer, err := ask(ctx, c.explain, "stop "+name, c.control.StopPlugin, &patchbayv1.StopPluginRequest{Name: name})
	return answer.GetPlugin(), err
}

// Restart replaces the plugin's process, or starts a plugin that is not running. A plugin that serves has no downtime.
func (c *Client) Restart(ctx context.Context, name string) (*patchbayv1.LaunchedPlugin, error) {
	answer, err := ask(ctx, c.explain, "restart "+name, c.control.RestartPlugin, &patchbayv1.RestartPluginRequest{Name: name})
	return answer.GetPlugin(), err
}

// Logs returns what a launched plugin printed and logged, in order: the records that are kept, or the newest Tail of them if Tail is set,
// and with Follow also new records. The sequence behaves like that of [Client.Events].
func (c *Client) Logs(ctx context.Context, request *patchbayv1.ReadLogsRequest) iter.Seq2[*patchbayv1.LogRecord, error] {
	// The daemon sends a message without a record when the stream is open.
	task := "read the log of " + request.GetName()
	return follow(ctx, c.explain, task, c.control.ReadLogs, request, (*patchbayv1.ReadLogsResponse).GetRecord)
}

// pluginText formats a plugin as TYPE/NAME, or as NAME for one of the catalogue.
func pluginText(ptype, name string) string {
	if ptype == "" {
		return name
	}
	return ptype + "/" + name
}
