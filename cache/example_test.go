package cache_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
)

// Whoever acts on the desired state takes its changes instead of polling it.
func ExampleDesiredStateOfWorld() {
	desired := cache.NewDesired()
	changes := desired.Changes()

	if err := desired.AddOrUpdatePlugin("/run/plugins/foo.sock"); err != nil {
		panic(err)
	}
	<-changes.C()
	for _, c := range changes.Take() {
		fmt.Println(c.Path, c.Info != nil)
	}
	// Output: /run/plugins/foo.sock true
}

// The desired state as the kubelet's users know it: the sockets that exist.
func ExampleNewDesiredStateOfWorld() {
	desired := cache.NewDesiredStateOfWorld()
	fmt.Println(desired.AddOrUpdatePlugin(""))
	if err := desired.AddOrUpdatePlugin("/run/plugins/foo.sock"); err != nil {
		panic(err)
	}
	for _, info := range desired.GetPluginsToRegister() {
		fmt.Println(info.SocketPath, desired.PluginExists(info.SocketPath))
	}
	desired.RemovePlugin("/run/plugins/foo.sock")
	fmt.Println(desired.PluginExists("/run/plugins/foo.sock"))
	// Output:
	// socket path is empty
	// /run/plugins/foo.sock true
	// false
}

// The actual state: the plugins that are registered. A socket that was made again has another timestamp.
func ExampleActualStateOfWorld() {
	actual := cache.NewActualStateOfWorld()
	foo := cache.PluginInfo{SocketPath: "/run/plugins/foo.sock", Name: "foo", Timestamp: time.Unix(1, 0)}
	if err := actual.AddPlugin(foo); err != nil {
		panic(err)
	}
	fmt.Println(actual.PluginExistsWithCorrectTimestamp(foo))
	foo.Timestamp = time.Unix(2, 0)
	fmt.Println(actual.PluginExistsWithCorrectTimestamp(foo))
	actual.RemovePlugin(foo.SocketPath)
	fmt.Println(len(actual.GetRegisteredPlugins()))
	// Output:
	// true
	// false
	// 0
}

func ExamplePluginInfo_GenerateMsg() {
	foo := cache.PluginInfo{SocketPath: "/run/plugins/foo.sock", Name: "foo", Type: "CSIPlugin", Timestamp: time.Unix(1, 0).UTC()}
	simple, detailed := foo.GenerateMsg("Registering", "at the start")
	fmt.Println(simple)
	fmt.Println(detailed == foo.GenerateMsgDetailed("Registering", "at the start"))
	// Output:
	// Registering plugin at "/run/plugins/foo.sock" at the start
	// true
}

func ExamplePluginInfo_GenerateError() {
	foo := cache.PluginInfo{SocketPath: "/run/plugins/foo.sock", Name: "foo", Type: "CSIPlugin", Timestamp: time.Unix(1, 0).UTC()}
	simple, _ := foo.GenerateError("Cannot register", cache.ErrRetry)
	fmt.Println(simple)
	fmt.Println(foo.GenerateErrorDetailed("Cannot register", cache.ErrRetry))
	fmt.Println(errors.Is(simple, cache.ErrRetry))
	// Output:
	// Cannot register plugin at "/run/plugins/foo.sock": not ready yet, retry later
	// Cannot register plugin at "/run/plugins/foo.sock" (plugin details: type "CSIPlugin", name "foo", appeared 1970-01-01T00:00:01Z as number 0, handler <nil>): not ready yet, retry later
	// true
}

// A handler that cannot take a plugin yet says so, and is asked again.
func Example_errRetry() {
	err := fmt.Errorf("the volume manager is starting: %w", cache.ErrRetry)
	fmt.Println(errors.Is(err, cache.ErrRetry))
	// Output: true
}
