package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/node"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/daemon/telemetry"
	"github.com/patchbay-dev/patchbay/internal/suggest"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// source is the part of a [pluginruntime.Runtime] that the control API shows.
type source interface {
	Plugins() []plugin.Status
	PluginsNamed(name string) []plugin.Status
	Refusals() []plugin.Status
	Retry(ptype, name string) error
	Reservation(name plugin.Name) (plugin.Reservation, bool)
	ReleaseName(ctx context.Context, ptype, name string) error
	Conditions() []plugin.Condition
	// LastEvents returns the last n events in memory, PastEvents all that are kept, both oldest first.
	LastEvents(n int) []plugin.Event
	PastEvents() ([]plugin.Event, error)
	// LaunchedAs returns as what a launched plugin is registered, or was last.
	LaunchedAs(name string) (plugin.Name, bool)
	// Events delivers the last tail events and then new ones, in order, until ctx ends.
	Events(ctx context.Context, tail int) <-chan plugin.Event
}

// picture is what the control API and the status page show.
type picture struct {
	source   source
	launched launched
	node     *node.Node // nil if the node belongs to no fleet
	// catalogue has the metadata of what is launched; nil if nothing is.
	catalogue *metadata
	// views has the present view of source, past its past events.
	views *shared[*view]
	past  *shared[[]plugin.Event]
}

func newPicture(s source, l launched, n *node.Node, m *metadata) picture {
	p := picture{source: s, launched: l, node: n, catalogue: m}
	p.views = &shared[*view]{make: p.view}
	p.past = &shared[[]plugin.Event]{make: func() []plugin.Event {
		events, _ := s.PastEvents() // a condition says what is wrong with the file
		return events
	}}
	return p
}

// control answers the control API. It is a [patchbayv1connect.ControlServiceHandler]; what is documented in control.proto is not repeated
// here.
type control struct {
	picture
	naming

	// awaitReplaced blocks as long as callers of a plugin wait for its new process.
	awaitReplaced func(ctx context.Context, ptype, name string) error
	// calls takes what is not for the control API; nil refuses it.
	calls    http.Handler
	requests *requests
	lists    *lists
	reload   func(context.Context) ([]string, error)
	// shown returns the configuration in force as text.
	shown   func() string
	metrics *telemetry.Metrics
	config  Config
	started time.Time
}

func (c *control) GetVersion(context.Context, *patchbayv1.GetVersionRequest) (*patchbayv1.GetVersionResponse, error) {
	return c.version(), nil
}

func (c *control) version() *patchbayv1.GetVersionResponse {
	return &patchbayv1.GetVersionResponse{
		Version:   c.config.Build.Version,
		Commit:    c.config.Build.Commit,
		GoVersion: runtime.Version(),
		Pid:       int64(os.Getpid()),
		StartTime: timestamp(c.started),
		Node:      untrusted.Valid(node.Name(c.config.Fleet)),
	}
}

func (c *control) GetPlugin(ctx context.Context, request *patchbayv1.GetPluginRequest) (*patchbayv1.GetPluginResponse, error) {
	asked, err := c.askedFor(request)
	if err != nil {
		return nil, err
	}
	plugins := c.get(asked)
	if len(plugins) == 0 { // calls wait for the new process, and begin with this
		if s, is := c.launchedBefore(asked); is {
			was, _ := c.source.LaunchedAs(s.Name)
			if err := c.awaitReplaced(ctx, was.Type, was.Name); err != nil {
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
func (c *control) get(asked plugin.Name) []*patchbayv1.Plugin {
	plugins := each(c.instances(asked), c.describer())
	announced := c.announced(asked)
	for _, refusal := range c.source.Refusals() {
		if refusal.PluginName() == announced {
			plugins = append(plugins, refusalMessage(refusal))
		}
	}
	return plugins
}

func (c *control) unknown(asked plugin.Name) error {
	if asked.Type == "" {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("the launched plugin has not registered; "+
			"\"patchbay status %s\" says what it does", untrusted.Valid(asked.Name)))
	}
	if s, is := c.launchedBefore(asked); is {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("it is not registered: it is launched as %s, which is %s; "+
			"\"patchbay status %s\" says more", untrusted.Valid(s.Name), s.State, untrusted.Valid(s.Name)))
	}
	what, announced := errors.New("no such plugin is known"), c.announced(asked)
	// Root and the daemon's user may take any name, and their own are the rule: of those nothing is said.
	if r, ok := c.source.Reservation(announced); ok && r.Owner.UID != 0 && r.Owner.UID != uint32(os.Geteuid()) {
		what = fmt.Errorf("%w; the name is reserved for user %d, whose plugin had it last, until %s, or until \"patchbay release\"",
			what, r.Owner.UID, r.Until.UTC().Format(time.RFC3339))
	} else {
		known := each(slices.Concat(c.source.Plugins(), c.source.Refusals()), func(s plugin.Status) string { return s.PluginName().String() })
		what = fmt.Errorf("%w%s", what, didYouMean(asked.String(), known))
	}
	return connect.NewError(connect.CodeNotFound, what)
}

func (c *control) ListRefusals(context.Context, *patchbayv1.ListRefusalsRequest) (*patchbayv1.ListRefusalsResponse, error) {
	return &patchbayv1.ListRefusalsResponse{Plugins: each(c.source.Refusals(), refusalMessage)}, nil
}

func (c *control) GetConfiguration(context.Context, *patchbayv1.GetConfigurationRequest) (*patchbayv1.GetConfigurationResponse, error) {
	return c.configuration(), nil
}

func (c *control) configuration() *patchbayv1.GetConfigurationResponse {
	return &patchbayv1.GetConfigurationResponse{
		PluginDirs: validAll(c.config.PluginDirs), DeprecatedPluginDir: untrusted.Valid(c.config.DeprecatedPluginDir),
		State: untrusted.Valid(c.config.State), ControlSocket: untrusted.Valid(c.config.ControlSocket), Effective: untrusted.Valid(c.shown()),
		Handlers: validAll(slices.Sorted(maps.Keys(c.handlers()))),
	}
}

func (c *control) ListConditions(context.Context, *patchbayv1.ListConditionsRequest) (*patchbayv1.ListConditionsResponse, error) {
	return &patchbayv1.ListConditionsResponse{Conditions: each(c.source.Conditions(), conditionMessage)}, nil
}

func (c *control) Reload(ctx context.Context, _ *patchbayv1.ReloadRequest) (*patchbayv1.ReloadResponse, error) {
	changed, err := c.reload(ctx)
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

// awaitReplacements waits until the processes are replaced whose plugins a reload has changed, and returns why any could not be.
func (c *control) awaitReplacements(ctx context.Context, changed []string) (failed []string) {
	for _, key := range changed {
		name, isPlugin := strings.CutPrefix(key, "plugins.")
		if !isPlugin {
			continue
		}
		if err := c.launched.AwaitReplacement(ctx, name); err != nil && !errors.Is(err, launcher.ErrUnknown) { // or it was removed
			failed = append(failed, err.Error())
		}
	}
	return failed
}

// instances returns what is known of one plugin, newest first.
func (c *control) instances(asked plugin.Name) []plugin.Status {
	if asked.Type != "" {
		return slices.DeleteFunc(c.source.PluginsNamed(asked.Name), func(s plugin.Status) bool { return !c.means(asked, s) })
	}
	socket, _ := c.launchedAt(asked.Name)
	return slices.DeleteFunc(c.source.Plugins(), func(s plugin.Status) bool {
		return s.Type == "" || socket == "" || s.SocketPath != socket // or it is launched, and has not said what it is
	})
}

// didYouMean asks for the known name that is most like one that is not, if there is one.
func didYouMean(name string, known []string) string {
	meant, ok := suggest.To(name, known)
	if !ok {
		return ""
	}
	return "; did you mean " + strconv.Quote(untrusted.Valid(meant)) + "?"
}

// askedFor returns the plugin that a request names. Without a type it is a launched plugin, which must be one of the catalogue.
func (c *control) askedFor(request interface {
	GetType() string
	GetName() string
}) (asked plugin.Name, err error) {
	asked = plugin.Name{Type: request.GetType(), Name: request.GetName()}
	if asked.Name == "" {
		return asked, connect.NewError(connect.CodeInvalidArgument, errors.New("the request names no plugin: set type and name"))
	}
	if asked.Type == "" {
		if _, known := c.launchedAt(asked.Name); !known {
			return asked, c.notLaunched(asked.Name, "; a plugin that registered by itself is named TYPE/NAME")
		}
	}
	return asked, nil
}

// anyOf says whether a value passes a filter; an empty filter lets everything pass.
func anyOf(filter []string, value string) bool {
	return len(filter) == 0 || slices.Contains(filter, value)
}

// ended returns the error of a call whose context ended or whose source of events ran dry, which happens when the daemon stops.
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
