// Plugin is a plugin in a process of its own:
//
//	plugin serve TYPE NAME VERSION [SOCKET]
//	plugin admit NAME...
//
// The first serves the example service, whose answer is the version. A version of "-" is the word in the last [rig.MarkSize] bytes of the
// program. The second is an admission plugin that refuses the packages of these names.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
	"github.com/patchbay-dev/patchbay/sdk/admission"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "plugin:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) > 0 && args[0] == "admit":
		return admission.Serve(context.Background(), func(_ context.Context, pin plugin.Pin, _ admission.Metadata) error {
			if slices.Contains(args[1:], pin.PackageName) {
				return fmt.Errorf("%s is refused by name", pin.PackageName)
			}
			return nil
		})
	case len(args) < 4 || args[0] != "serve":
		return fmt.Errorf("cannot be run with arguments %q: want serve TYPE NAME VERSION [SOCKET] or admit NAME", args)
	}
	version := args[3]
	if version == "-" {
		var err error
		if version, err = rig.Mark("/proc/self/exe"); err != nil {
			return err
		}
	}
	p := sdk.Plugin{
		Type: args[1], Name: args[2], Versions: []string{version},
		Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, rig.Example(version)) },
	}
	if len(args) > 4 {
		p.Socket = args[4]
	}
	return sdk.Serve(context.Background(), p)
}
