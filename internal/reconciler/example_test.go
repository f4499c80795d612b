package reconciler_test

import (
	"context"
	"fmt"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// memory is a transport to plugins made of memory: whoever is asked says what its socket is called.
type memory struct{ reconciler.Transport }

func (memory) Dial(_ context.Context, _ time.Duration, path string, _ plugin.SocketID) (reconciler.Conn, error) {
	return answering{path: path}, nil
}

func (memory) Source(string) plugin.Source { return plugin.SourceDiscovered }

func (memory) Latencies() (connecting, answering time.Duration) { return 0, 0 }

type answering struct {
	reconciler.Conn
	path string
}

func (a answering) GetInfo(context.Context, time.Duration) (plugin.Info, error) {
	return plugin.Info{Type: "ExamplePlugin", Name: "hello", Versions: []string{"v1"}}, nil
}
func (a answering) Notify(context.Context, time.Duration, bool, string) error { return nil }
func (a answering) Peer() plugin.Peer                                         { return plugin.Peer{} }
func (a answering) Account() plugin.Account                                   { return plugin.Account{} }
func (a answering) Watch(func()) (func(), error)                              { return func() {}, nil }
func (a answering) Close() error                                              { return nil }

// printing is a handler that says what it is called for.
type printing struct{}

func (printing) ValidatePlugin(name, endpoint string, _ []string) error {
	fmt.Println("validate", name, "at", endpoint)
	return nil
}

func (printing) RegisterPlugin(name, _ string, _ []string, _ *time.Duration) error {
	fmt.Println("register", name)
	return nil
}

func (printing) DeRegisterPlugin(name string) { fmt.Println("deregister", name) }

// A reconciler walks whatever is in the desired state of the world through the handler of its type. Package pluginwatcher puts sockets
// there as they appear; here a program does.
func Example() {
	desired := cache.NewDesired()
	events := make(chan plugin.Event, 10)
	r := reconciler.New(reconciler.Config{
		Desired: desired, Transport: memory{}, Slots: 4,
		Observe: func(e plugin.Event) { events <- e },
	})
	r.SetHandler("ExamplePlugin", printing{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()

	if err := desired.AddOrUpdatePlugin("/run/example/hello.sock"); err != nil {
		fmt.Println(err)
	}
	fmt.Println((<-events).Kind)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// validate hello at /run/example/hello.sock
	// register hello
	// registered
	// <nil>
}
