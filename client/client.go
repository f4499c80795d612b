package client

import (
	"context"
	"net"
	"net/http"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// Client calls the daemon behind one control socket. All methods are safe for concurrent use. Each blocks until the daemon has answered or
// its context ends, and connects anew if the daemon was restarted in between; none repeats a call that failed.
type Client struct {
	socketPath string
	transport  *http.Transport
	rpc        patchbayv1connect.ControlServiceClient
}

// New returns a client of the daemon whose control socket is at the given path. It does not connect; a daemon that does not run
// is an error of the first call.
func New(socketPath string) *Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return sock.Dial(ctx, socketPath)
		},
		DisableCompression: true,
	}
	return &Client{
		socketPath: socketPath,
		transport:  transport,
		// The host is not looked up: the transport goes to the socket whatever it is.
		rpc: patchbayv1connect.NewControlServiceClient(&http.Client{Transport: transport}, "http://patchbay"),
	}
}

// Close closes the idle connections. Calls in progress are not disturbed, and the client stays usable.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// List returns all plugins that the daemon knows and the conditions of the daemon, as one consistent view.
func (c *Client) List(ctx context.Context) (Listing, error) {
	response, err := c.rpc.ListPlugins(ctx, connect.NewRequest(&patchbayv1.ListPluginsRequest{}))
	if err != nil {
		return Listing{}, c.explain("list the plugins", err)
	}
	return Listing{
		Plugins:    pluginsOf(response.Msg.GetPlugins()),
		Conditions: conditionsOf(response.Msg.GetConditions()),
	}, nil
}

// Get returns every known instance of one plugin, newest first: at least one. A plugin that is not known is [ErrNotFound].
func (c *Client) Get(ctx context.Context, ptype, name string) ([]Plugin, error) {
	response, err := c.rpc.GetPlugin(ctx, connect.NewRequest(&patchbayv1.GetPluginRequest{Type: ptype, Name: name}))
	if err != nil {
		return nil, c.explain("get plugin "+ptype+"/"+name, err)
	}
	return pluginsOf(response.Msg.GetPlugins()), nil
}

// Refusals returns the last refusal of each name that was not registered since and whose plugin is gone: LastError is the reason, and Since
// the time.
func (c *Client) Refusals(ctx context.Context) ([]Plugin, error) {
	response, err := c.rpc.ListRefusals(ctx, connect.NewRequest(&patchbayv1.ListRefusalsRequest{}))
	if err != nil {
		return nil, c.explain("list the refusals", err)
	}
	return pluginsOf(response.Msg.GetPlugins()), nil
}

// Configuration says with which files and directories a daemon works. All paths are absolute.
type Configuration struct {
	PluginDirs []string `json:"pluginDirs"`
	// DeprecatedPluginDir is empty if there is none.
	DeprecatedPluginDir string `json:"deprecatedPluginDir"`
	State               string `json:"state"`
	ControlSocket       string `json:"controlSocket"`
}

// Configuration asks the daemon with which files and directories it works.
func (c *Client) Configuration(ctx context.Context) (Configuration, error) {
	response, err := c.rpc.GetConfiguration(ctx, connect.NewRequest(&patchbayv1.GetConfigurationRequest{}))
	if err != nil {
		return Configuration{}, c.explain("get the configuration", err)
	}
	m := response.Msg
	return Configuration{
		PluginDirs: m.GetPluginDirs(), DeprecatedPluginDir: m.GetDeprecatedPluginDir(), State: m.GetState(),
		ControlSocket: m.GetControlSocket(),
	}, nil
}

// Reload has the daemon read its configuration anew and change to it. It returns the keys whose values changed. An error says what is wrong
// with the configuration, and where, and that nothing changed.
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	response, err := c.rpc.Reload(ctx, connect.NewRequest(&patchbayv1.ReloadRequest{}))
	if err != nil {
		return Reloaded{}, c.explain("reload the configuration", err)
	}
	changed := response.Msg.GetChanged()
	if changed == nil {
		changed = []string{} // an array in JSON, never null
	}
	return Reloaded{Changed: changed}, nil
}

// Version says which build of the daemon answers, and since when it has been running.
func (c *Client) Version(ctx context.Context) (Version, error) {
	response, err := c.rpc.GetVersion(ctx, connect.NewRequest(&patchbayv1.GetVersionRequest{}))
	if err != nil {
		return Version{}, c.explain("get the version of the daemon", err)
	}
	v := response.Msg
	return Version{
		Version:   v.GetVersion(),
		Commit:    v.GetCommit(),
		GoVersion: v.GetGoVersion(),
		PID:       int(v.GetPid()),
		StartTime: v.GetStartTime().AsTime(),
	}, nil
}
