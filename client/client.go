// Package client talks to a running Patchbay daemon over its control socket.
//
// Its methods make the calls of the control API, api/patchbay/v1, and return its messages. The client adds connections to plugins,
// sequences for streams, waiting with a result that says why a wait ended, and errors that say whether no daemon is running, the caller is
// not allowed, or the plugin is unknown. It does not start a daemon.
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

// follow returns a sequence of the values of a stream's messages. Messages for which value returns nil are skipped.
func follow[Q, A, T any](
	ctx context.Context, explain func(task string, err error) error, task string,
	open func(context.Context, *Q) (*connect.ServerStreamForClient[A], error), request *Q, value func(*A) *T,
) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		// The end of the context, and not reading to its end, is what ends a stream that is left early.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := open(ctx, request)
		if err != nil {
			yield(nil, explain(task, err))
			return
		}
		defer func() {
			cancel()
			_ = stream.Close() // nothing is left to learn from it
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

// message returns a message of a stream itself.
func message[A any](m *A) *A { return m }

// List returns the plugins of some types, or with some roles, and the conditions of the daemon, as one consistent view; all plugins if no
// type is named. They are ordered by type, name, and newest first within a name, the conditions by name.
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

// Get returns every known instance of one plugin, newest first: at least one. For an unknown plugin the error is [ErrNotFound].
//
// Here and in Retry, ReleaseName and Wait, ptype is a type or a role. If it is empty, name is that of a launched plugin in the catalogue.
func (c *Client) Get(ctx context.Context, ptype, name string) ([]*patchbayv1.Plugin, error) {
	request := &patchbayv1.GetPluginRequest{Type: ptype, Name: name}
	answer, err := ask(ctx, c.explain, "get plugin "+pluginText(ptype, name), c.control.GetPlugin, request)
	return answer.GetPlugins(), err
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
func (c *Client) Refusals(ctx context.Context) ([]*patchbayv1.Plugin, error) {
	answer, err := ask(ctx, c.explain, "list the refusals", c.control.ListRefusals, &patchbayv1.ListRefusalsRequest{})
	return answer.GetPlugins(), err
}

// Events returns the events of the daemon in the order in which they happened. There is neither a gap nor a duplicate between past and new
// ones.
//
// The sequence is single-use: each iteration is a separate call. Without Follow it ends after the past events. An error is the last pair of
// the sequence: that of the context when it ends, [ErrNotRunning] when the daemon goes away, and [ErrBehind] when the iteration was too
// slow for the daemon to keep what it had not read.
func (c *Client) Events(ctx context.Context, request *patchbayv1.WatchEventsRequest) iter.Seq2[*patchbayv1.Event, error] {
	// A message without an event only says that the daemon has begun to watch.
	return follow(ctx, c.explain, "read the events", c.control.WatchEvents, request, (*patchbayv1.WatchEventsResponse).GetEvent)
}

// Configuration returns the files and directories that the daemon uses, and its configuration.
func (c *Client) Configuration(ctx context.Context) (*patchbayv1.GetConfigurationResponse, error) {
	return ask(ctx, c.explain, "get the configuration", c.control.GetConfiguration, &patchbayv1.GetConfigurationRequest{})
}

// Diagnose returns diagnostic files about the daemon's process, for a bug report, in parts: consecutive parts of one name are one file. The
// sequence behaves like that of [Client.Events].
func (c *Client) Diagnose(ctx context.Context) iter.Seq2[*patchbayv1.DiagnoseResponse, error] {
	return follow(ctx, c.explain, "diagnose the daemon", c.control.Diagnose, &patchbayv1.DiagnoseRequest{}, message)
}

// Reload makes the daemon read and apply its configuration again, and returns the keys whose values changed. If the configuration is
// invalid, the error says what is wrong and where, and nothing changes. It waits until the processes of changed plugins have been
// replaced, or could not be.
func (c *Client) Reload(ctx context.Context) (*patchbayv1.ReloadResponse, error) {
	return ask(ctx, c.explain, "reload the configuration", c.control.Reload, &patchbayv1.ReloadRequest{})
}

// Version returns the build of the daemon that answers, and since when it has been running.
func (c *Client) Version(ctx context.Context) (*patchbayv1.GetVersionResponse, error) {
	return ask(ctx, c.explain, "get the version of the daemon", c.control.GetVersion, &patchbayv1.GetVersionRequest{})
}

// pluginText is how a plugin is written for people: TYPE/NAME, or NAME for one of the catalogue.
func pluginText(ptype, name string) string {
	if ptype == "" {
		return name
	}
	return ptype + "/" + name
}
