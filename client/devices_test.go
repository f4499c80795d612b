package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

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

func (s deviceService) ListDevices(
	context.Context, *connect.Request[patchbayv1.ListDevicesRequest],
) (*connect.Response[patchbayv1.ListDevicesResponse], error) {
	if s.err != nil {
		return nil, s.err
	}
	return connect.NewResponse(&patchbayv1.ListDevicesResponse{
		Devices:     []*patchbayv1.Device{{Resource: "example.com/gpu", Id: "a", Health: "healthy"}},
		Allocations: []*patchbayv1.DeviceAllocation{{Resource: "example.com/gpu", Owner: "o"}},
	}), nil
}

func (s deviceService) AllocateDevices(
	context.Context, *connect.Request[patchbayv1.AllocateDevicesRequest],
) (*connect.Response[patchbayv1.AllocateDevicesResponse], error) {
	if s.err != nil {
		return nil, s.err
	}
	return connect.NewResponse(&patchbayv1.AllocateDevicesResponse{Allocation: &patchbayv1.DeviceAllocation{
		Resource: "example.com/gpu", Owner: "build-17", Devices: []string{"gpu-3"},
		Answer: &patchbayv1.DeviceAnswer{CdiDevices: []string{"example.com/gpu=3"}},
	}}), nil
}

func (s deviceService) GetPreferredDevices(
	context.Context, *connect.Request[patchbayv1.GetPreferredDevicesRequest],
) (*connect.Response[patchbayv1.GetPreferredDevicesResponse], error) {
	return connect.NewResponse(&patchbayv1.GetPreferredDevicesResponse{Devices: []string{"gpu-3"}}), s.err
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

func TestDeviceListsAreNeverNull(t *testing.T) {
	listing, err := serveDevices(t, deviceService{}).ListDevices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(listing)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(strings.Replace(string(text), `"time":null`, "", 1), "null") {
		t.Errorf("a list is null: %s", text)
	}
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
		_, err := d.AllocateDevices(t.Context(), client.DeviceRequest{Resource: "example.com/gpu", Owner: "o"})
		if err == nil || c.want != nil && !errors.Is(err, c.want) || c.text != "" && err.Error() != c.text {
			t.Errorf("%v: got %v, want %q", code, err, c.text)
		}
		if errors.Is(err, client.ErrNotFound) {
			t.Errorf("%v: a device is no plugin: %v", code, err)
		}
	}
}
