package daemon_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// TestUnservedRegistration reproduces PAINS 115: a CSI driver without a registrar is named as what it is, and is not asked again soon.
func TestUnservedRegistration(t *testing.T) {
	config := configIn(t)
	if err := os.MkdirAll(config.PluginDirs[0], 0o750); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(config.PluginDirs[0], "driver.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); method != "/csi.v1.Identity/GetPluginInfo" {
			return status.Errorf(codes.Unimplemented, "unknown method %s", method)
		}
		return status.Error(codes.FailedPrecondition, "not ready yet") // that is an answer too
	}))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	start(t, config)
	c := dial(t, config)
	const want = "it serves csi.v1.Identity and no registration; a registrar has to register it"
	for event, err := range c.Events(within(t), &patchbayv1.WatchEventsRequest{Follow: true, Tail: new(uint32(100))}) {
		if err != nil {
			t.Fatal(err)
		}
		if event.Kind == "failed" && event.SocketPath == path {
			if !strings.HasSuffix(event.Message, want) {
				t.Errorf("the event says %q, want %q", event.Message, want)
			}
			break
		}
	}
	listing, err := c.List(within(t))
	if err != nil || len(listing.Plugins) != 1 {
		t.Fatalf("%+v, %v", listing.Plugins, err)
	}
	// From a pause of 30 s on "patchbay status" says that somebody has to see to it, as doctor does.
	if p := listing.Plugins[0]; !strings.HasSuffix(p.LastError, want) || p.NextRetry == nil || p.NextRetry.AsTime().Sub(p.Since.AsTime()) < 30*time.Second {
		t.Errorf("%+v", p)
	}
}
