//go:build unix

package launcher_test

import (
	"context"
	"fmt"
	"slices"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// A plugin that does not serve is launched and stopped. For plugins that serve, Config also needs a plugin directory and Registrations; use
// the launcher of a patchbay.Runtime, which has both.
func ExampleLauncher() {
	h := &host.Host{}
	if err := h.Initialize(plugin.Config{}); err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close(context.Background())

	l := launcher.New(launcher.Config{Host: h, Observe: func(e plugin.Event) {
		if !good(e.Kind) {
			fmt.Println(e.Name, e.Kind, e.Message)
		}
	}})
	defer l.Close()
	err := l.Set([]launcher.Plugin{{
		Spec:     host.Spec{Name: "sleeper", Args: []string{"sleep", "60"}},
		NoSocket: true,
		Manual:   true,
		Restart:  plugin.RestartPolicy{Limit: 5},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := l.Start("sleeper"); err != nil {
		fmt.Println(err)
		return
	}
	show := func() {
		for _, p := range l.Plugins() {
			up := slices.Contains([]plugin.State{
				plugin.StateStarting, plugin.StateRunning, plugin.StateUnresponsive, plugin.StateUnlinked, plugin.StateStopping,
			}, p.State)
			fmt.Println(p.Name, "is up:", up, "stopped:", p.State == plugin.StateStopped)
		}
	}
	show()
	if err := l.Stop("sleeper"); err != nil {
		fmt.Println(err)
	}
	show()
	// Output:
	// sleeper is up: true stopped: false
	// sleeper is up: false stopped: true
}

// good says whether there is nothing to do about what happened.
func good(kind plugin.EventKind) bool {
	switch kind {
	case plugin.EventReady, plugin.EventAdopted, plugin.EventReplaced, plugin.EventStopped, plugin.EventResponsive, plugin.EventHealthy,
		plugin.EventIdle:
		return true
	default:
		return false
	}
}
