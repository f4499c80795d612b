package client

import (
	"context"
	"iter"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// Launched is a plugin that the daemon launches.
type Launched struct {
	// Name is its name in the catalogue.
	Name string `json:"name"`
	// State is its state, for example "running". States that this package does not know may be added.
	State string     `json:"state"`
	Since *time.Time `json:"since"`
	// PID is its process; zero if it has none.
	PID int `json:"pid"`
	// SocketPath is the socket it serves; empty if it does not serve.
	SocketPath string `json:"socketPath"`
	// Health is what it reports through grpc.health.v1, for example "serving".
	Health string `json:"health"`
	// Restarts counts the automatic restarts since its last deliberate start or restart.
	Restarts  int        `json:"restarts"`
	NextStart *time.Time `json:"nextStart"`
	// LastError says how its last process ended, or why its process is not ready.
	LastError string `json:"lastError"`
	// ReplacementError says why its last replacement failed, until another one succeeds or somebody starts or stops it.
	ReplacementError string `json:"replacementError"`
	// Metadata are those of its entry in the catalogue.
	Metadata map[string]string `json:"metadata"`
}

// LogRecord is one record of what a launched plugin printed or logged.
type LogRecord struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	// Level is -4 for debug, 0 for info, 4 for warning and 8 for error, as in log/slog.
	Level      int            `json:"level"`
	Message    string         `json:"message"`
	Attributes []LogAttribute `json:"attributes"`
	// Source is "stdout", "stderr", or "log" for what the plugin logged through its host.
	Source string `json:"source"`
}

// LogAttribute is one attribute of a record.
type LogAttribute struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// ListLaunched returns the plugins that the daemon launches, ordered by name.
func (c *Client) ListLaunched(ctx context.Context) ([]Launched, error) {
	answer, err := ask(ctx, c.explain, "list the launched plugins", c.control.ListLaunched, &patchbayv1.ListLaunchedRequest{})
	return each(answer.GetPlugins(), launchedOf), err
}

// Launch starts a launched plugin that is not running. The name is the one in the catalogue or TYPE/NAME as it registered, as in all
// methods for launched plugins. For an unknown plugin the error is [ErrNotFound].
func (c *Client) Launch(ctx context.Context, name string) (Launched, error) {
	answer, err := ask(ctx, c.explain, "launch "+name, c.control.LaunchPlugin, &patchbayv1.LaunchPluginRequest{Name: name})
	return launchedOf(answer.GetPlugin()), err
}

// Stop ends a launched plugin and returns when it has ended.
func (c *Client) Stop(ctx context.Context, name string) (Launched, error) {
	answer, err := ask(ctx, c.explain, "stop "+name, c.control.StopPlugin, &patchbayv1.StopPluginRequest{Name: name})
	return launchedOf(answer.GetPlugin()), err
}

// Restart replaces the plugin's process, without downtime if the plugin serves, or starts a plugin that is not running.
func (c *Client) Restart(ctx context.Context, name string) (Launched, error) {
	answer, err := ask(ctx, c.explain, "restart "+name, c.control.RestartPlugin, &patchbayv1.RestartPluginRequest{Name: name})
	return launchedOf(answer.GetPlugin()), err
}

// LogsOptions selects the records of [Client.Logs]. The zero value selects all past records that are kept.
type LogsOptions struct {
	// Follow continues with new records after the past ones.
	Follow bool
	// Tail limits the past records to the newest ones, oldest first; nil for all that are kept.
	Tail *uint32
}

// Logs returns what a launched plugin printed and logged, in order. The sequence ends like that of [Client.Events].
func (c *Client) Logs(ctx context.Context, name string, options LogsOptions) iter.Seq2[LogRecord, error] {
	request := &patchbayv1.ReadLogsRequest{Name: name, Follow: options.Follow, Tail: options.Tail}
	return follow(ctx, c.explain, "read the log of "+name, c.control.ReadLogs, request, func(m *patchbayv1.ReadLogsResponse) *LogRecord {
		if m.GetRecord() == nil {
			return nil // it says only that the stream stands
		}
		return new(recordOf(m.GetRecord()))
	})
}

func launchedOf(p *patchbayv1.LaunchedPlugin) Launched {
	return Launched{
		Name: p.GetName(), State: p.GetState(), Since: timeOf(p.GetSince()), PID: int(p.GetPid()), SocketPath: p.GetSocketPath(),
		Health: p.GetHealth(), Restarts: int(p.GetRestarts()), NextStart: timeOf(p.GetNextStart()), LastError: p.GetLastError(),
		Metadata: p.GetMetadata(), ReplacementError: p.GetReplacementError(),
	}
}

func recordOf(r *patchbayv1.LogRecord) LogRecord {
	return LogRecord{
		Seq: r.GetSeq(), Time: r.GetTime().AsTime(), Level: int(r.GetLevel()), Message: r.GetMessage(), Source: r.GetSource(),
		Attributes: each(r.GetAttributes(), func(a *patchbayv1.LogAttribute) LogAttribute {
			return LogAttribute{Key: a.GetKey(), Value: a.GetValue()}
		}),
	}
}
