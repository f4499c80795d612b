package client_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/client"
)

// deviceService answers every call with an error, or with as little as there can be.
type deviceService struct {
	patchbayv1connect.UnimplementedDeviceServiceHandler
	err error
}

func (s deviceService) ListDevices(context.Context, *patchbayv1.ListDevicesRequest) (*patchbayv1.ListDevicesResponse, error) {
	if s.err != nil {
		return nil, s.err
	}
	return &patchbayv1.ListDevicesResponse{
		Devices:     []*patchbayv1.Device{{Resource: "example.com/gpu", Id: "a", Health: "healthy"}},
		Allocations: []*patchbayv1.DeviceAllocation{{Resource: "example.com/gpu", Owner: "o"}},
	}, nil
}

func (s deviceService) AllocateDevices(context.Context, *patchbayv1.AllocateDevicesRequest) (*patchbayv1.AllocateDevicesResponse, error) {
	if s.err != nil {
		return nil, s.err
	}
	return &patchbayv1.AllocateDevicesResponse{Allocation: &patchbayv1.DeviceAllocation{
		Resource: "example.com/gpu", Owner: "build-17", Devices: []string{"gpu-3"},
		Answer: &patchbayv1.DeviceAnswer{CdiDevices: []string{"example.com/gpu=3"}},
	}}, nil
}

func (s deviceService) GetPreferredDevices(
	context.Context, *patchbayv1.GetPreferredDevicesRequest,
) (*patchbayv1.GetPreferredDevicesResponse, error) {
	return &patchbayv1.GetPreferredDevicesResponse{Devices: []string{"gpu-3"}}, s.err
}

func serveDevices(t *testing.T, s deviceService) *client.Client {
	t.Helper()
	path := socketPath(t)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(patchbayv1connect.NewDeviceServiceHandler(s))
	server := &http.Server{Handler: mux}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	c := client.New(path)
	t.Cleanup(func() {
		c.Close()
		_ = server.Close() // says nothing that matters
		<-ended
	})
	return c
}

func TestDeviceErrors(t *testing.T) {
	for code, c := range map[connect.Code]struct {
		want error
		text string
	}{
		connect.CodeNotFound:           {client.ErrDeviceNotFound, "cannot allocate example.com/gpu for o: no such device or allocation is known: why"},
		connect.CodeAlreadyExists:      {client.ErrAllocated, "cannot allocate example.com/gpu for o: the owner has devices of that resource already: why"},
		connect.CodeFailedPrecondition: {nil, "cannot allocate example.com/gpu for o: why"},
		connect.CodeInvalidArgument:    {nil, "cannot allocate example.com/gpu for o: why"},
		connect.CodeUnavailable:        {client.ErrNotRunning, ""},
	} {
		d := serveDevices(t, deviceService{err: connect.NewError(code, errors.New("why"))})
		_, err := d.AllocateDevices(t.Context(), &patchbayv1.AllocateDevicesRequest{Resource: "example.com/gpu", Owner: "o"})
		if err == nil || c.want != nil && !errors.Is(err, c.want) || c.text != "" && err.Error() != c.text {
			t.Errorf("%v: got %v, want %q", code, err, c.text)
		}
		if errors.Is(err, client.ErrNotFound) {
			t.Errorf("%v: a device is no plugin: %v", code, err)
		}
	}
}

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
		"a goal": second(c.Wait(t.Context(), "T", "foo", "x")), "a count": second(c.WaitFleet(t.Context(), nil, -1)),
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
		"List":          func(ctx context.Context) error { return second(c.List(ctx)) },
		"Get":           func(ctx context.Context) error { return second(c.Get(ctx, "", "")) },
		"Retry":         func(ctx context.Context) error { return c.Retry(ctx, "", "") },
		"ReleaseName":   func(ctx context.Context) error { return c.ReleaseName(ctx, "", "") },
		"Refusals":      func(ctx context.Context) error { return second(c.Refusals(ctx)) },
		"Configuration": func(ctx context.Context) error { return second(c.Configuration(ctx)) },
		"Wait":          func(ctx context.Context) error { return second(c.Wait(ctx, "", "", client.GoalDeregistered)) },
		"ListLaunched":  func(ctx context.Context) error { return second(c.ListLaunched(ctx)) },
		"Launch":        func(ctx context.Context) error { return second(c.Launch(ctx, "")) },
		"Stop":          func(ctx context.Context) error { return second(c.Stop(ctx, "")) },
		"ListDevices":   func(ctx context.Context) error { return second(c.ListDevices(ctx)) },
		"AllocateDevices": func(ctx context.Context) error {
			return second(c.AllocateDevices(ctx, &patchbayv1.AllocateDevicesRequest{}))
		},
		"ReleaseDevices": func(ctx context.Context) error { return second(c.ReleaseDevices(ctx, "", "")) },
		"PreferredDevices": func(ctx context.Context) error {
			return second(c.PreferredDevices(ctx, &patchbayv1.GetPreferredDevicesRequest{}))
		},
		"DrainNode":  func(ctx context.Context) error { return c.DrainNode(ctx, "") },
		"FleetLocks": func(ctx context.Context) error { return second(c.FleetLocks(ctx)) },
		"WaitFleet":  func(ctx context.Context) error { return second(c.WaitFleet(ctx, nil, 0)) },
		"Events": func(ctx context.Context) (last error) {
			for _, err := range c.Events(ctx, &patchbayv1.WatchEventsRequest{}) {
				last = err
			}
			return last
		},
		"Logs": func(ctx context.Context) (last error) {
			for _, err := range c.Logs(ctx, &patchbayv1.ReadLogsRequest{}) {
				last = err
			}
			return last
		},
		"WatchFleet": func(ctx context.Context) (last error) {
			for _, err := range c.WatchFleet(ctx, &patchbayv1.WatchFleetRequest{}) {
				last = err
			}
			return last
		},
	}
}
