package pluginwatcher_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// A watcher hands a plugin to the handler of its type, from the socket to its end.
func ExampleNewWatcher() {
	dir, err := os.MkdirTemp("", "plugins")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	handler := pluginwatcher.NewExampleHandler([]string{"v1beta1"}, false)
	watcher := pluginwatcher.NewWatcher(dir, "")
	watcher.AddHandler("DevicePlugin", handler)
	if err := watcher.Start(); err != nil {
		panic(err)
	}

	plugin := pluginwatcher.NewTestExamplePlugin("fpga", "DevicePlugin", filepath.Join(dir, "fpga.sock"), "v1beta1")
	if err := plugin.Serve("v1beta1"); err != nil {
		panic(err)
	}
	calls := handler.EventChan("fpga")
	fmt.Println(<-calls)
	fmt.Println(<-calls)
	fmt.Println("told that it is registered:", (<-plugin.Statuses()).PluginRegistered)

	if err := plugin.Stop(); err != nil {
		panic(err)
	}
	fmt.Println(<-calls)
	if err := watcher.Stop(); err != nil {
		panic(err)
	}
	// Output:
	// ValidatePlugin
	// RegisterPlugin
	// told that it is registered: true
	// DeRegisterPlugin
}

// An example plugin may also be registered with a server of the caller's.
func ExampleNewExamplePlugin() {
	info, err := pluginwatcher.NewExamplePlugin().GetInfo(context.Background(), nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(info.Type, info.Name, info.SupportedVersions)
	// Output: ExamplePlugin example-plugin [v1beta1 v1beta2]
}
