package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/patchbay-dev/patchbay"
	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/nearest"
)

// source is what the control API shows: the part of a [patchbay.Runtime] that it needs.
type source interface {
	Plugins() []patchbay.PluginStatus
	Refusals() []patchbay.PluginStatus
	Conditions() []patchbay.Condition
	// LastEvents returns the last n events, oldest first.
	LastEvents(n int) []patchbay.Event
	// Events delivers the last tail events and then new ones, in order, until ctx ends.
	Events(ctx context.Context, tail int) <-chan patchbay.Event
}

// paths are where the daemon works, absolute.
type paths struct {
	pluginDirs                                []string
	deprecatedPluginDir, state, controlSocket string
}

// paths returns those of the configuration, which do not change while the daemon runs.
func (c Config) paths() (paths, error) {
	p := paths{pluginDirs: slices.Clone(c.PluginDirs), deprecatedPluginDir: c.DeprecatedPluginDir, state: c.StatePath,
		controlSocket: c.ControlSocket}
	all := []*string{&p.deprecatedPluginDir, &p.state, &p.controlSocket}
	for i := range p.pluginDirs {
		all = append(all, &p.pluginDirs[i])
	}
	for _, path := range all {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return paths{}, fmt.Errorf("cannot tell where %s is: %w", *path, err)
		}
		*path = abs
	}
	return p, nil
}

// control answers the control API. What is documented in control.proto is not repeated here.
type control struct {
	source   source
	launched launched
	// calls takes what is not for the control API; nil refuses it.
	calls http.Handler
	fleet *fleetMember // nil if the node belongs to no fleet
	// handlers returns the handlers by plugin type.
	handlers func() map[string]cache.PluginHandler
	reload   func(context.Context) ([]string, error)
	paths    paths
	build    Build
	started  time.Time
}

// GetVersion implements patchbayv1connect.ControlServiceHandler.
func (c *control) GetVersion(
	context.Context, *connect.Request[patchbayv1.GetVersionRequest],
) (*connect.Response[patchbayv1.GetVersionResponse], error) {
	return connect.NewResponse(&patchbayv1.GetVersionResponse{
		Version:   c.build.Version,
		Commit:    c.build.Commit,
		GoVersion: runtime.Version(),
		Pid:       int64(os.Getpid()),
		StartTime: timestamp(c.started),
	}), nil
}

// ListPlugins implements patchbayv1connect.ControlServiceHandler.
func (c *control) ListPlugins(
	_ context.Context, request *connect.Request[patchbayv1.ListPluginsRequest],
) (*connect.Response[patchbayv1.ListPluginsResponse], error) {
	wanted := request.Msg
	response := &patchbayv1.ListPluginsResponse{Conditions: conditionMessages(c.source.Conditions())}
	for _, status := range c.source.Plugins() {
		if anyOf(wanted.GetTypes(), status.Type) && anyOf(wanted.GetNames(), status.Name) &&
			anyOf(wanted.GetStates(), string(status.State)) {
			response.Plugins = append(response.Plugins, pluginMessage(status))
		}
	}
	return connect.NewResponse(response), nil
}

// GetPlugin implements patchbayv1connect.ControlServiceHandler.
func (c *control) GetPlugin(
	_ context.Context, request *connect.Request[patchbayv1.GetPluginRequest],
) (*connect.Response[patchbayv1.GetPluginResponse], error) {
	ptype, name := request.Msg.GetType(), request.Msg.GetName()
	if err := requirePlugin(ptype, name); err != nil {
		return nil, err
	}
	response := &patchbayv1.GetPluginResponse{}
	for _, status := range c.instances(ptype, name) {
		response.Plugins = append(response.Plugins, pluginMessage(status))
	}
	for _, refusal := range c.source.Refusals() {
		if refusal.Type == ptype && refusal.Name == name {
			response.Plugins = append(response.Plugins, refusalMessage(refusal))
		}
	}
	if len(response.Plugins) == 0 {
		var known []string
		for _, status := range c.source.Plugins() {
			known = append(known, status.Type+"/"+status.Name)
		}
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such plugin is known"+didYouMean(ptype+"/"+name, known)))
	}
	return connect.NewResponse(response), nil
}

// ListRefusals implements patchbayv1connect.ControlServiceHandler.
func (c *control) ListRefusals(
	context.Context, *connect.Request[patchbayv1.ListRefusalsRequest],
) (*connect.Response[patchbayv1.ListRefusalsResponse], error) {
	response := &patchbayv1.ListRefusalsResponse{}
	for _, refusal := range c.source.Refusals() {
		response.Plugins = append(response.Plugins, refusalMessage(refusal))
	}
	return connect.NewResponse(response), nil
}

// GetConfiguration implements patchbayv1connect.ControlServiceHandler.
func (c *control) GetConfiguration(
	context.Context, *connect.Request[patchbayv1.GetConfigurationRequest],
) (*connect.Response[patchbayv1.GetConfigurationResponse], error) {
	return connect.NewResponse(&patchbayv1.GetConfigurationResponse{
		PluginDirs: validAll(c.paths.pluginDirs), DeprecatedPluginDir: valid(c.paths.deprecatedPluginDir), State: valid(c.paths.state),
		ControlSocket: valid(c.paths.controlSocket),
	}), nil
}

// ListConditions implements patchbayv1connect.ControlServiceHandler.
func (c *control) ListConditions(
	context.Context, *connect.Request[patchbayv1.ListConditionsRequest],
) (*connect.Response[patchbayv1.ListConditionsResponse], error) {
	return connect.NewResponse(&patchbayv1.ListConditionsResponse{Conditions: conditionMessages(c.source.Conditions())}), nil
}

// Reload implements patchbayv1connect.ControlServiceHandler.
func (c *control) Reload(
	ctx context.Context, _ *connect.Request[patchbayv1.ReloadRequest],
) (*connect.Response[patchbayv1.ReloadResponse], error) {
	changed, err := c.reload(ctx)
	switch {
	case err == nil:
		for i := range changed {
			changed[i] = valid(changed[i])
		}
		return connect.NewResponse(&patchbayv1.ReloadResponse{Changed: changed}), nil
	case errors.Is(err, errStopping):
		return nil, connect.NewError(connect.CodeUnavailable, errStopping)
	case ctx.Err() != nil:
		return nil, ended(ctx)
	}
	return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New(valid(err.Error())))
}

// instances returns what is known of one plugin, newest first. The type is that under which it registered, or one of its roles.
func (c *control) instances(ptype, name string) []patchbay.PluginStatus {
	return slices.DeleteFunc(c.source.Plugins(), func(s patchbay.PluginStatus) bool {
		return s.Name != name || s.Type != ptype && !slices.Contains(s.Registration.Roles, ptype)
	})
}

// didYouMean asks for the known name that is most like one that is not, if there is one.
func didYouMean(name string, known []string) string {
	meant, ok := nearest.To(name, known)
	if !ok {
		return ""
	}
	return "; did you mean " + strconv.Quote(valid(meant)) + "?"
}

func requirePlugin(ptype, name string) error {
	if ptype == "" || name == "" {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the request names no plugin: set type and name"))
	}
	return nil
}

// anyOf says whether a value passes a filter; an empty filter lets everything pass.
func anyOf(filter []string, value string) bool {
	return len(filter) == 0 || slices.Contains(filter, value)
}

// ended returns the error of a call whose context ended or whose source of events ran dry, which happens when the daemon stops.
func ended(ctx context.Context) error {
	switch err := context.Cause(ctx); {
	case err == nil || errors.Is(err, errStopping):
		return connect.NewError(connect.CodeUnavailable, errStopping)
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	case isDenial(err):
		return connect.NewError(connect.CodePermissionDenied, err)
	default:
		return connect.NewError(connect.CodeCanceled, err)
	}
}
