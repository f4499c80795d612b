//go:build unix

package pluginclient_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	library "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// restarting returns a client whose plugin is restarted after every end, soon.
func restarting(t *testing.T, c *library.ClientConfig) *pluginclient.Client {
	t.Helper()
	client := pluginclient.NewClient(c, func(p *launcher.Plugin) {
		p.Restart.Policy, p.Restart.Limit = plugin.RestartAlways, -1
		p.Restart.Backoff.Min, p.Restart.Backoff.Max = 10*time.Millisecond, 10*time.Millisecond
	})
	t.Cleanup(func() {
		client.Kill()
		collect(t)
	})
	return client
}

// TestCloseRestarted: Close of a protocol client ends its own process, and not what the plugin's later processes are used by.
func TestCloseRestarted(t *testing.T) {
	client := restarting(t, config("serve"))
	protocol, err := client.Client()
	if err != nil {
		t.Fatal(err)
	}
	var p *talker
	another := func(end func(pid string)) {
		t.Helper()
		pid := client.ID()
		end(pid)
		await(t, "another process", func() bool {
			got, err := again(client, &p)
			return err == nil && got != pid
		})
	}
	another(func(pid string) { kill(t, pid) })
	for range 2 {
		if err := protocol.Close(); err != nil { // of an earlier process
			t.Error(err)
		}
		answers(t, client.ID(), func() (string, error) { return p.ask("") })
		answers(t, client.ID(), func() (string, error) { return again(client, &p) })
		if protocol, err = client.Client(); err != nil {
			t.Fatal(err)
		}
		another(func(string) {
			if err := protocol.Close(); err != nil {
				t.Error(err)
			}
		})
		if protocol, err = client.Client(); err != nil {
			t.Fatal(err)
		}
		another(func(pid string) { kill(t, pid) })
	}
}

// TestLingers: calls reach the next process immediately, however long the last one has refused connections before it ended.
func TestLingers(t *testing.T) {
	client := restarting(t, config("lingers"))
	p := dispense(t, client)
	for range 3 {
		pid := client.ID()
		_, _ = p.ask("stop") // which may cut this very call
		for began := time.Now(); time.Since(began) < 2*time.Second; <-time.After(time.Millisecond) {
			if _, err := p.ask(""); err == nil && client.ID() != pid {
				t.Fatal("it has ended")
			}
		}
		kill(t, pid)
		await(t, "another process", func() bool { return client.ID() != pid })
		answers(t, client.ID(), func() (string, error) { return p.ask("") })
	}
}

// secret is what a host sends with each call, and only over TLS.
type secret struct{}

func (secret) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"secret": "tea"}, nil
}

func (secret) RequireTransportSecurity() bool { return true }

// TestGRPCDialOptions: the options of the host are those of the calls of what is dispensed, once.
func TestGRPCDialOptions(t *testing.T) {
	calls := 0
	c := config("serve")
	c.AutoMTLS = true
	c.GRPCDialOptions = []grpc.DialOption{grpc.WithPerRPCCredentials(secret{}), grpc.WithUnaryInterceptor(func(
		ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if strings.HasSuffix(method, "/GetExampleInfo") {
			calls++
		}
		return invoke(ctx, method, request, reply, conn, opts...)
	})}
	client := newClient(t, c)
	answers(t, os.Args[0], func() (string, error) { return dispense(t, client).ask("args") })
	if calls != 1 {
		t.Errorf("%d calls were seen, want 1", calls)
	}
}

// TestChangedDirectory: relative paths are those of the directory in which the host was when it started the plugin.
func TestChangedDirectory(t *testing.T) {
	dir := shortDir(t)
	t.Chdir(dir)
	c := config("serve")
	c.UnixSocketConfig = &library.UnixSocketConfig{TempDir: "."}
	c.Cmd.Dir = "."
	client := restarting(t, c)
	p := dispense(t, client)
	answers(t, dir, func() (string, error) { return p.ask("dir") })
	t.Chdir("/")
	pid := client.ID()
	kill(t, pid)
	await(t, "another process", func() bool {
		got, err := p.ask("")
		return err == nil && got != pid
	})
	answers(t, dir, func() (string, error) { return p.ask("dir") })
	client.Kill()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("after Kill there are %v, %v", left, err)
	}
}

// TestKillDuringBackoff: calls that wait for the next process return that the plugin was killed.
func TestKillDuringBackoff(t *testing.T) {
	client := pluginclient.NewClient(config("serve"), func(p *launcher.Plugin) { p.Restart.Backoff.Min = time.Hour })
	t.Cleanup(func() {
		client.Kill()
		collect(t)
	})
	p := dispense(t, client)
	kill(t, client.ID())
	waits := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := p.client.GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
		return status.Code(err) == codes.DeadlineExceeded
	}
	await(t, "that a call waits", waits)
	failed := make(chan error, 1)
	go func() {
		_, err := p.ask("")
		failed <- err
	}()
	await(t, "that another call waits", waits) // as the one before by then
	client.Kill()
	if err := <-failed; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the plugin was killed") {
		t.Error(err)
	}
}
