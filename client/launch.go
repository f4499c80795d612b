package client

import (
	"context"
	"iter"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

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
