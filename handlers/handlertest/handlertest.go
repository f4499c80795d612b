// Package handlertest is the conformance suite for implementations of cache.PluginHandler: run a [Suite] on yours.
//
// It calls a handler in every way the pipeline may, with plugins that behave, fail, hang, die and get replaced, and checks that
//
//   - every call may be repeated, and comes for plugins that the handler does not know;
//   - a new handler over the same state, after a crash at any moment, accepts its plugins again;
//   - no lock is held across a call: a hung plugin only delays its own name;
//   - a failed RegisterPlugin leaves nothing behind: no connection, no goroutine, no instance, without DeRegisterPlugin;
//   - InstanceGone closes the connections to that endpoint and no others;
//   - RegisterPluginContext ends with its context, and what it left running does not;
//   - versions and names that the handler does not support are refused;
//   - different names do not interfere with each other, also under the race detector;
//   - after all plugins were deregistered, and after Close, nothing is left.
//
// It cannot check what the handler does with a plugin; that is for the handler's own tests.
package handlertest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/cache"
)

// Suite is the conformance suite for one handler. NewHandler and Versions are required.
type Suite struct {
	// NewHandler makes a handler that keeps its state, if it has any, in the directory dir. The suite calls it again for the same
	// directory, after it has closed the handler if that is an io.Closer, to recreate the handler over the same state. Timeouts of the
	// handler should be shorter than Patience.
	NewHandler func(dir string) (cache.PluginHandler, error)
	// Versions are versions that the handler supports; the suite's plugins announce them.
	Versions []string
	// Serve registers the services of a plugin that behaves well. If it is nil, the plugins of the suite are gRPC servers without services.
	Serve Services
	// Name returns the name of plugin i, different for different i. If it is nil, plugins are called plugin-0.example.com and so on.
	Name func(i int) string
	// WrongVersions are lists of versions each of which ValidatePlugin must refuse; WrongNames are names that it must refuse.
	WrongVersions [][]string
	WrongNames    []string
	// WrongPlugins are plugins that RegisterPlugin must refuse, by what is wrong with them. In addition, the suite has plugins that cannot
	// be connected to, whose calls all fail, or that hang up; the handler may register those.
	WrongPlugins map[string]Services
	// HoldsConnection says that the handler keeps a connection to the endpoint of every registered plugin.
	HoldsConnection bool
	// Has, if it is not nil, reports whether the handler has an instance of a plugin.
	Has func(h cache.PluginHandler, pluginName string) bool
	// Patience is how long the suite waits for what must happen soon (default 20 s). A correct handler never makes it wait that long.
	Patience time.Duration
}

// Services registers gRPC services of the plugin with that name.
type Services func(s grpc.ServiceRegistrar, pluginName string)

// Test runs the suite, each case as a subtest with a handler and a directory of its own. It counts goroutines: nothing else may run at the
// same time in the test's process.
func (suite Suite) Test(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := suite.run(c)
			switch {
			case errors.Is(err, errNotApplicable):
				t.Skip(err)
			case err != nil:
				t.Error(err)
			}
		})
	}
}

// Run is Test for programs that are not tests, for example one that checks third-party handlers. It blocks until the suite has ended, and
// returns what is wrong with the handler, with the name of each case that failed.
func (suite Suite) Run() error {
	var errs []error
	for _, c := range cases {
		if err := suite.run(c); err != nil && !errors.Is(err, errNotApplicable) {
			errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
		}
	}
	return errors.Join(errs...)
}
