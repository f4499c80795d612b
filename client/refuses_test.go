package client_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/client"
)

// TestRefuses checks that every method of a client whose path cannot be a control socket fails with ErrNotRunning, also after Close, that
// what cannot be asked is refused, and that a context which has ended is its error.
func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, path := range map[string]string{
		"no path": "", "a path that is not there": filepath.Join(dir, "none"), "a file": file, "a relative path": "none",
		"a long path": dir + strings.Repeat("/a", 200),
	} {
		c := client.New(path)
		for range 2 {
			for call, do := range calls(c) {
				if err := do(t.Context()); !errors.Is(err, client.ErrNotRunning) {
					t.Errorf("%s, %s: %v", name, call, err)
				}
				if err := do(ended); !errors.Is(err, context.Canceled) && !errors.Is(err, client.ErrNotRunning) {
					t.Errorf("%s, %s with a context that has ended: %v", name, call, err)
				}
			}
			c.Close()
		}
	}
	c := client.New(filepath.Join(dir, "none"))
	for what, err := range map[string]error{
		"a goal": second(c.Wait(t.Context(), "T", "foo", "x")), "a count": second(c.WaitFleet(t.Context(), client.FleetFilter{}, -1)),
		"no type": second(c.Conn("", "foo")), "no name": second(c.FleetConn("T", "", "")), "neither": second(c.FleetConnByLabels("", "", nil)),
	} {
		if err == nil || errors.Is(err, client.ErrNotRunning) {
			t.Errorf("%s: %v", what, err)
		}
	}
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	if _, err := c.Wait(late, "T", "foo", client.GoalRegistered); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("after the deadline: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// calls are the methods of a client with nothing to say.
func calls(c *client.Client) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"List":             func(ctx context.Context) error { return second(c.List(ctx)) },
		"Get":              func(ctx context.Context) error { return second(c.Get(ctx, "", "")) },
		"Retry":            func(ctx context.Context) error { return c.Retry(ctx, "", "") },
		"ReleaseName":      func(ctx context.Context) error { return c.ReleaseName(ctx, "", "") },
		"Refusals":         func(ctx context.Context) error { return second(c.Refusals(ctx)) },
		"Configuration":    func(ctx context.Context) error { return second(c.Configuration(ctx)) },
		"Wait":             func(ctx context.Context) error { return second(c.Wait(ctx, "", "", client.GoalDeregistered)) },
		"ListLaunched":     func(ctx context.Context) error { return second(c.ListLaunched(ctx)) },
		"Launch":           func(ctx context.Context) error { return second(c.Launch(ctx, "")) },
		"Stop":             func(ctx context.Context) error { return second(c.Stop(ctx, "")) },
		"ListDevices":      func(ctx context.Context) error { return second(c.ListDevices(ctx)) },
		"AllocateDevices":  func(ctx context.Context) error { return second(c.AllocateDevices(ctx, client.DeviceRequest{})) },
		"ReleaseDevices":   func(ctx context.Context) error { return second(c.ReleaseDevices(ctx, "", "")) },
		"PreferredDevices": func(ctx context.Context) error { return second(c.PreferredDevices(ctx, client.DeviceRequest{})) },
		"DrainNode":        func(ctx context.Context) error { return c.DrainNode(ctx, "") },
		"FleetLocks":       func(ctx context.Context) error { return second(c.FleetLocks(ctx)) },
		"WaitFleet":        func(ctx context.Context) error { return second(c.WaitFleet(ctx, client.FleetFilter{}, 0)) },
		"Events": func(ctx context.Context) (last error) {
			for _, err := range c.Events(ctx, client.EventsOptions{}) {
				last = err
			}
			return last
		},
		"Logs": func(ctx context.Context) (last error) {
			for _, err := range c.Logs(ctx, "", client.LogsOptions{}) {
				last = err
			}
			return last
		},
		"WatchFleet": func(ctx context.Context) (last error) {
			for _, err := range c.WatchFleet(ctx, client.FleetFilter{}, false, nil) {
				last = err
			}
			return last
		},
	}
}
