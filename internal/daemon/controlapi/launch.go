package controlapi

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/suggest"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Launcher is the part of a [launcher.Launcher] that the control API needs.
type Launcher interface {
	Plugins() []plugin.LaunchStatus
	Start(name string) error
	Stop(name string) error
	Restart(ctx context.Context, name string) error
	AwaitReplacement(ctx context.Context, name string) error
	Log(name string) (plugin.Log, error)
}

func (c service) ListLaunched(context.Context, *patchbayv1.ListLaunchedRequest) (*patchbayv1.ListLaunchedResponse, error) {
	return &patchbayv1.ListLaunchedResponse{Plugins: c.Launched()}, nil
}

func (c service) LaunchPlugin(ctx context.Context, request *patchbayv1.LaunchPluginRequest) (*patchbayv1.LaunchPluginResponse, error) {
	now, err := c.operate(ctx, request.GetName(), c.Launcher.Start)
	return &patchbayv1.LaunchPluginResponse{Plugin: now}, err
}

func (c service) StopPlugin(ctx context.Context, request *patchbayv1.StopPluginRequest) (*patchbayv1.StopPluginResponse, error) {
	now, err := c.operate(ctx, request.GetName(), c.Launcher.Stop)
	return &patchbayv1.StopPluginResponse{Plugin: now}, err
}

func (c service) RestartPlugin(ctx context.Context, request *patchbayv1.RestartPluginRequest) (*patchbayv1.RestartPluginResponse, error) {
	now, err := c.operate(ctx, request.GetName(), func(name string) error { return c.Launcher.Restart(ctx, name) })
	return &patchbayv1.RestartPluginResponse{Plugin: now}, err
}

// operate calls do for a launched plugin and returns the plugin's state afterwards.
func (c service) operate(
	ctx context.Context, name string, do func(name string) error,
) (*patchbayv1.LaunchedPlugin, error) {
	name, err := c.launchedName(name)
	if err != nil {
		return nil, err
	}
	if err := do(name); err != nil {
		return nil, failure(ctx, err)
	}
	if s, ok := c.Names.Launched(name); ok {
		return c.launchedMessage(s), nil
	}
	return nil, failure(ctx, fmt.Errorf("%s: %w", name, launcher.ErrUnknown)) // removed from the catalogue by a reload
}

func (c service) ReadLogs(
	ctx context.Context, request *patchbayv1.ReadLogsRequest, stream *connect.ServerStream[patchbayv1.ReadLogsResponse],
) error {
	name, err := c.launchedName(request.GetName())
	if err != nil {
		return err
	}
	log, err := c.Launcher.Log(name)
	if err != nil {
		return failure(ctx, err)
	}
	tail := -1 // all
	if request.Tail != nil {
		tail = int(request.GetTail())
	}
	var records iter.Seq[plugin.LogRecord]
	switch {
	case request.GetFollow():
		if err := stream.Send(&patchbayv1.ReadLogsResponse{}); err != nil {
			return err
		}
		records = log.Follow(ctx, tail)
	case tail == 0:
		return nil
	default:
		records = slices.Values(log.Tail(tail))
	}
	for r := range records {
		if err := stream.Send(&patchbayv1.ReadLogsResponse{Record: recordMessage(r)}); err != nil {
			return err
		}
	}
	if request.GetFollow() {
		return ended(ctx)
	}
	return nil
}

// launchedName returns the catalogue name of the launched plugin that a request names.
func (c service) launchedName(name string) (string, error) {
	if name == "" {
		return "", connect.NewError(connect.CodeInvalidArgument, errors.New("the request names no plugin: set name"))
	}
	s, ok := c.Names.InCatalogue(name)
	if !ok {
		return "", c.notLaunched(name, "")
	}
	return s.Name, nil
}

// notLaunched returns the error for a name that is not in the catalogue.
func (c service) notLaunched(name, hint string) error {
	known := each(c.Launcher.Plugins(), func(s plugin.LaunchStatus) string { return s.Name })
	return connect.NewError(connect.CodeNotFound, errors.New(
		"the catalogue, the key plugins of the configuration, has no plugin of this name"+suggest.Hint(untrusted.Valid(name), known)+hint))
}

func (c service) launchedMessage(s plugin.LaunchStatus) *patchbayv1.LaunchedPlugin {
	return &patchbayv1.LaunchedPlugin{
		Name: untrusted.Valid(s.Name), State: string(s.State), Since: timestamp(s.Since), Pid: int64(s.PID),
		SocketPath: untrusted.Valid(s.Socket),
		Health:     string(s.ServingStatus), Restarts: uint32(max(s.Restarts, 0)), NextStart: timestamp(s.NextStart),
		LastError: untrusted.Valid(s.LastError), Metadata: c.metadata(s.Name), ReplacementError: untrusted.Valid(s.ReplacementError),
		OverallHealth: healthOf(s.Health()),
	}
}

func recordMessage(r plugin.LogRecord) *patchbayv1.LogRecord {
	record := &patchbayv1.LogRecord{
		Seq: r.Seq, Time: timestamp(r.Time), Level: int32(r.Level), Message: untrusted.Valid(r.Message), Source: r.Source,
	}
	for _, a := range r.Attrs {
		record.Attributes = append(record.Attributes, &patchbayv1.LogAttribute{Key: untrusted.Valid(a.Key),
			Value: untrusted.Valid(a.Value.String())})
	}
	return record
}
