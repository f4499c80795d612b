package handlertest

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/cache"
)

// unruly is a handler whose RegisterPlugin does what a test says.
type unruly struct{ register func() }

func (unruly) ValidatePlugin(string, string, []string) error { return nil }

func (u unruly) RegisterPlugin(string, string, []string, *time.Duration) error {
	u.register()
	return nil
}

func (unruly) DeRegisterPlugin(string) {}

// TestRefuses checks that Run returns an error for a Config that cannot work and for functions in it that do not return a handler.
func TestRefuses(t *testing.T) {
	quiet := func(string) (cache.PluginHandler, error) { return unruly{func() {}}, nil }
	v1 := []string{"v1"}
	for want, config := range map[string]Config{
		"it needs NewHandler,":                             {Versions: v1},
		"NewHandler, Versions,":                            {NewHandler: quiet},
		"Patience that is not":                             {NewHandler: quiet, Versions: v1, Patience: -1},
		"neither a handler nor":                            {Versions: v1, NewHandler: func(string) (cache.PluginHandler, error) { return nil, nil }}, //nolint:nilnil // the case itself
		"cannot create the handler: oops":                  {Versions: v1, NewHandler: func(string) (cache.PluginHandler, error) { return nil, errors.New("oops") }},
		"it panicked: oh":                                  {Versions: v1, NewHandler: func(string) (cache.PluginHandler, error) { panic("oh") }},
		"it ended its goroutine":                           {Versions: v1, NewHandler: func(string) (cache.PluginHandler, error) { runtime.Goexit(); return nil, nil }}, //nolint:nilnil // the case itself
		"it panicked: services":                            {Versions: v1, NewHandler: quiet, Serve: func(grpc.ServiceRegistrar, string) { panic("services") }},
		"it panicked: name":                                {Versions: v1, NewHandler: quiet, Name: func(int) string { panic("name") }},
		"RegisterPlugin(n) did not return: it panicked: h": {Versions: v1, NewHandler: handlerThat(func() { panic("h") }), Name: func(int) string { return "n" }},
		"RegisterPlugin(m) did not return: it ended":       {Versions: v1, NewHandler: handlerThat(runtime.Goexit), Name: func(int) string { return "m" }},
	} {
		// One case suffices: each begins with a handler and a plugin.
		all := cases
		cases = slices.Clone(cases[:1])
		ended := make(chan error, 1)
		go func() {
			defer close(ended)
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("%s: Run panicked: %v", want, r)
				}
			}()
			ended <- Run(config)
		}()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
		cases = all
	}
}

func handlerThat(register func()) func(string) (cache.PluginHandler, error) {
	return func(string) (cache.PluginHandler, error) { return unruly{register}, nil }
}
