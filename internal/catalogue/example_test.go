package catalogue_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/plugin"
)

// greeter is a plugin as a configuration would describe it.
func greeter(command ...string) catalogue.Plugin {
	p := catalogue.Plugin{Name: "greeter", Command: command}
	p.SetDefaults()
	return p
}

// A host makes a catalogue of what is configured, and a new one when that has changed. Only the plugins that differ are touched.
func ExampleDiff() {
	before, err := catalogue.New([]catalogue.Plugin{greeter("/usr/lib/greeter")})
	if err != nil {
		fmt.Println(err)
		return
	}
	foreign := catalogue.Plugin{Name: "kv", Command: []string{"kv-plugin"}}
	foreign.SetDefaults()
	foreign.Protocol, foreign.Type = catalogue.ProtocolGoPlugin, "KV"
	foreign.GoPlugin.CookieKey, foreign.GoPlugin.CookieValue = "KV_PLUGIN", "hello"
	foreign.GoPlugin.ProtocolVersions = []int{1}
	after, err := catalogue.New([]catalogue.Plugin{foreign, greeter("/usr/lib/greeter", "--polite")})
	if err != nil {
		fmt.Println(err)
		return
	}
	changes := catalogue.Diff(before, after)
	for _, p := range changes.Added {
		fmt.Println("start", p.Name)
	}
	for _, p := range changes.Changed {
		fmt.Println("replace", p.Name, "by", p.Command)
	}
	// Output:
	// start kv
	// replace greeter by [/usr/lib/greeter --polite]
}

// Everything that is wrong is said at once, each with the field of the configuration.
func ExampleNew() {
	p := greeter("lib/greeter")
	p.Protocol = catalogue.ProtocolPatchbay
	p.Restart = plugin.RestartPolicy{
		Policy: plugin.RestartAlways, Limit: -1, Window: time.Hour,
		Backoff: plugin.Backoff{Min: time.Second, Max: time.Minute},
	}
	_, err := catalogue.New([]catalogue.Plugin{p})
	fmt.Println(err)
	field, _ := errors.AsType[*catalogue.FieldError](err)
	fmt.Println(field.Name, field.Field)
	// Output:
	// plugins[0].command: "lib/greeter" must be an absolute path, or a name without slashes that is looked up in PATH
	// plugins[0].restart.limit: it must be above zero
	// greeter command
}
