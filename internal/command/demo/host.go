package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta2"
)

const callTimeout = 2 * time.Second

// clients are what the dispenser of the example type hands out: the example services on the shared connection of a plugin.
type clients struct {
	v1beta1 v1beta1.ExampleClient
	v1beta2 v1beta2.ExampleClient
}

// Host is the daemon of the demo. It reports events and answers, one JSON object a line, on stdout, and takes requests from stdin, one a
// line: "call NAME VERSION" calls the example service of a plugin, "begin NAME VERSION" calls it over and over until "end". It returns when
// ctx ends or stdin is closed.
func Host(ctx context.Context, stdin io.Reader, stdout io.Writer, pluginDir, state string) error {
	store, err := boltstate.Open(state)
	if err != nil {
		return err
	}
	rt, err := patchbay.New(patchbay.Config{
		PluginDirs: []string{pluginDir},
		State:      store,
		RegistryOptions: []dynamicplugins.Option{
			dynamicplugins.WithConnDispenser(pluginType, func(_ *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
				return clients{v1beta1.NewExampleClient(conn), v1beta2.NewExampleClient(conn)}, nil
			}),
		},
	})
	if err != nil {
		return errors.Join(err, store.Close())
	}
	rt.AddHandler(pluginType, patchbay.AcceptHandler())

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := &reporter{enc: json.NewEncoder(stdout)}
	var running sync.WaitGroup
	events := rt.Events(ctx, 0)
	running.Go(func() {
		for e := range events {
			out.report(report{Event: string(e.Kind), Name: e.Name, Instance: e.Instance, Message: e.Message})
		}
	})
	var runErr error
	running.Go(func() {
		runErr = rt.Run(ctx)
		cancel()
	})
	requests := make(chan string)
	go func() {
		defer close(requests)
		for lines := bufio.NewScanner(stdin); lines.Scan(); {
			requests <- lines.Text()
		}
	}()
	serveRequests(ctx, rt.Registry(), requests, out)
	cancel()
	running.Wait()
	return errors.Join(runErr, store.Close())
}

// reporter writes reports, one at a time. A reader that is gone is noticed by the end of stdin.
type reporter struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (r *reporter) report(line report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.enc.Encode(line)
}

// serveRequests answers requests until ctx ends or there are no more.
func serveRequests(ctx context.Context, registry *dynamicplugins.Store, requests <-chan string, out *reporter) {
	end := func() (calls, failed int, err error) { return 0, 0, errors.New("nothing has begun") }
	for {
		var request string
		var ok bool
		select {
		case <-ctx.Done():
			return
		case request, ok = <-requests:
			if !ok {
				return
			}
		}
		answer := report{Answer: request}
		var err error
		switch words := strings.Fields(request); {
		case len(words) == 3 && words[0] == "call":
			answer.Calls = 1
			err = call(ctx, registry, words[1], words[2])
		case len(words) == 3 && words[0] == "begin":
			end = callOver(ctx, registry, words[1], words[2])
		case len(words) == 1 && words[0] == "end":
			answer.Calls, answer.Failed, err = end()
		default:
			err = fmt.Errorf("unknown request %q", request)
		}
		if err != nil {
			answer.Error = err.Error()
		}
		out.report(answer)
	}
}

// call dispenses a client for a plugin and calls its example service of a version.
func call(ctx context.Context, registry *dynamicplugins.Store, name, version string) error {
	c, err := dynamicplugins.Dispense[clients](registry, pluginType, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if version == "v1beta2" {
		_, err = c.v1beta2.GetExampleInfo(ctx, &v1beta2.ExampleRequest{})
	} else {
		_, err = c.v1beta1.GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
	}
	return err
}

// callOver calls a plugin over and over until the function that it returns is called, which says how often, and how it went.
func callOver(ctx context.Context, registry *dynamicplugins.Store, name, version string) (end func() (calls, failed int, err error)) {
	ctx, cancel := context.WithCancel(ctx)
	var calling sync.WaitGroup
	var calls, failed int
	var last error
	calling.Go(func() {
		for ctx.Err() == nil {
			err := call(ctx, registry, name, version)
			if ctx.Err() != nil {
				return
			}
			calls++
			if err != nil {
				failed++
				last = err
			}
		}
	})
	return func() (int, int, error) {
		cancel()
		calling.Wait()
		return calls, failed, last
	}
}
