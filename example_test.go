package patchbay_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// A host discovers a plugin, registers it and calls it.
func Example() {
	dir, err := os.MkdirTemp("", "patchbay")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	gone := make(chan string, 1)
	handler := patchbay.HandlerFuncs{
		Validate: func(name, endpoint string, versions []string) error {
			fmt.Println("validate", name, versions)
			return nil
		},
		Register: func(ctx context.Context, name, endpoint string, versions []string) error {
			fmt.Println("register", name)
			return nil
		},
		Deregister: func(name string) {
			fmt.Println("deregister", name)
			gone <- name
		},
	}
	rt, err := patchbay.New(patchbay.Config{
		PluginDirs: []string{dir},
		Handlers:   map[string]cache.PluginHandler{"GreeterPlugin": handler},
		// Clients are made on a connection that all callers of a plugin share and that follows its upgrades.
		RegistryOptions: []dynamicplugins.Option{
			dynamicplugins.WithConnDispenser("GreeterPlugin",
				func(_ *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
					return v1beta1.NewExampleClient(conn), nil
				}),
		},
	})
	if err != nil {
		panic(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()

	// Usually the plugin is another process, whose socket may appear at any time.
	greeter := pluginwatcher.NewTestExamplePlugin("hello", "GreeterPlugin", filepath.Join(dir, "hello.sock"), "v1beta1")
	if err := greeter.Serve("v1beta1"); err != nil {
		panic(err)
	}

	if err := rt.WaitForPlugins(ctx, plugin.Name{Type: "GreeterPlugin", Name: "hello"}); err != nil {
		panic(err)
	}
	client, err := dynamicplugins.Dispense[v1beta1.ExampleClient](rt.Registry(), "GreeterPlugin", "hello")
	if err != nil {
		panic(err)
	}
	_, err = client.GetExampleInfo(ctx, &v1beta1.ExampleRequest{Request: "hi"})
	fmt.Println("call", err)

	if err := greeter.Stop(); err != nil {
		panic(err)
	}
	<-gone
	cancel()
	fmt.Println("end", <-ended)
	// Output:
	// validate hello [v1beta1]
	// register hello
	// call <nil>
	// deregister hello
	// end <nil>
}

// Count attempts to register plugins, and events that were lost because a reader was too slow.
func ExampleObserver() {
	var registered, failed, lost atomic.Int64
	rt, err := patchbay.New(patchbay.Config{
		PluginDirs: []string{os.TempDir()},
		Observer: patchbay.Observer{
			Attempt: func(a plugin.Attempt) {
				if a.Result == plugin.ResultRegistered {
					registered.Add(1)
				} else {
					failed.Add(1)
				}
			},
			FileEventsLost: func() { lost.Add(1) },
			Resync:         func() { lost.Add(1) },
		},
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(len(rt.Plugins()), registered.Load(), failed.Load(), lost.Load())
	// Output: 0 0 0 0
}

// A dispenser creates a client of any kind for each caller, without a shared connection.
func ExampleConfig() {
	rt, err := patchbay.New(patchbay.Config{
		PluginDirs: []string{os.TempDir()},
		Dispensers: map[string]dynamicplugins.PluginDispenser{
			"WebPlugin": func(info *dynamicplugins.PluginInfo) (any, error) {
				socket := info.ConnectionInfo.SocketPath
				dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "unix", socket)
				}
				return &http.Client{Transport: &http.Transport{DialContext: dial}}, nil
			},
		},
	})
	if err != nil {
		panic(err)
	}
	registry := rt.Registry()
	defer registry.Shutdown()
	err = registry.RegisterPlugin(&dynamicplugins.PluginInfo{ // the Runtime does this for a discovered plugin
		Type: "WebPlugin", Name: "pages", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/not/there.sock"},
	})
	if err != nil {
		panic(err)
	}
	client, err := dynamicplugins.Dispense[*http.Client](registry, "WebPlugin", "pages")
	if err != nil {
		panic(err)
	}
	answer, err := client.Get("http://pages/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close()
	fmt.Println(answer.Status)
	// Output: Get "http://pages/": dial unix /run/not/there.sock: connect: no such file or directory
}
