package pluginwatcher_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta2"
)

func TestExamplePluginServesWhatItIsTold(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "plugin.sock")
	plugin := pluginwatcher.NewTestExamplePlugin("example", "DevicePlugin", socket, "v1beta1", "v1beta2")
	if err := plugin.Serve("v1beta1"); err != nil {
		t.Fatal(err)
	}
	defer stop(t, plugin)
	conn := connect(t, socket)

	info, err := registerapi.NewRegistrationClient(conn).GetInfo(t.Context(), &registerapi.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &registerapi.PluginInfo{
		Type: "DevicePlugin", Name: "example", Endpoint: socket, SupportedVersions: []string{"v1beta1", "v1beta2"},
	}
	if diff := cmp.Diff(want, info, protocmp.Transform()); diff != "" {
		t.Errorf("GetInfo (-want +got):\n%s", diff)
	}
	if _, err := v1beta1.NewExampleClient(conn).GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{}); err != nil {
		t.Errorf("the named service v1beta1: %v", err)
	}
	_, err = v1beta2.NewExampleClient(conn).GetExampleInfo(t.Context(), &v1beta2.ExampleRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("the service v1beta2, which was not named, answered %v, want code Unimplemented", err)
	}
}

func TestExamplePluginShowsStatuses(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "plugin.sock")
	plugin := pluginwatcher.NewTestExamplePlugin("example", "DevicePlugin", socket)
	if err := plugin.Serve(); err != nil {
		t.Fatal(err)
	}
	defer stop(t, plugin)
	client := registerapi.NewRegistrationClient(connect(t, socket))

	const told, kept = 100, 64
	for i := range told {
		request := &registerapi.RegistrationStatus{PluginRegistered: i == told-1, Error: strings.Repeat("x", i)}
		if _, err := client.NotifyRegistrationStatus(t.Context(), request); err != nil {
			t.Fatalf("status %d, unread: %v", i, err)
		}
	}
	for i := told - kept; i < told; i++ {
		got := <-plugin.Statuses()
		if len(got.GetError()) != i || got.GetPluginRegistered() != (i == told-1) {
			t.Fatalf("got status %d (registered: %t), want status %d", len(got.GetError()), got.GetPluginRegistered(), i)
		}
	}
	if n := len(plugin.Statuses()); n != 0 {
		t.Errorf("%d more statuses than were kept", n)
	}
}

// The moment between a bind and a listen is short, so one start in a few would meet it: many starts are tried.
func TestExamplePluginSocketIsListeningWhenItAppears(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "plugin.sock")
	plugin := pluginwatcher.NewTestExamplePlugin("example", "DevicePlugin", socket)
	for range 100 {
		dialed := make(chan error, 1)
		go func() { dialed <- dialOnceThere(t.Context(), socket) }()
		if err := plugin.Serve(); err != nil {
			t.Fatal(err)
		}
		err := <-dialed
		if entries := names(t, dir); !slices.Equal(entries, []string{"plugin.sock"}) {
			t.Errorf("the directory holds %q, want the socket only", entries)
		}
		stop(t, plugin)
		if err != nil {
			t.Fatalf("dial at the moment the socket appeared: %v", err)
		}
	}
}

// dialOnceThere connects to the socket as soon as there is a file at its path.
func dialOnceThere(ctx context.Context, socket string) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := os.Lstat(socket); err == nil {
			break
		}
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

func TestExamplePluginStop(t *testing.T) {
	t.Run("removes its socket and can serve again", func(t *testing.T) {
		dir := t.TempDir()
		plugin := pluginwatcher.NewTestExamplePlugin("example", "DevicePlugin", filepath.Join(dir, "plugin.sock"))
		for range 3 {
			if err := plugin.Serve("v1beta1", "v1beta2"); err != nil {
				t.Fatal(err)
			}
			stop(t, plugin)
			if entries := names(t, dir); len(entries) != 0 {
				t.Fatalf("the directory holds %q after Stop, want nothing", entries)
			}
		}
		stop(t, plugin)
	})
	t.Run("leaves the socket of its successor", func(t *testing.T) {
		socket := filepath.Join(t.TempDir(), "plugin.sock")
		older := pluginwatcher.NewTestExamplePlugin("older", "DevicePlugin", socket)
		if err := older.Serve(); err != nil {
			t.Fatal(err)
		}
		newer := pluginwatcher.NewTestExamplePlugin("newer", "DevicePlugin", socket)
		if err := newer.Serve(); err != nil {
			t.Fatal(err)
		}
		defer stop(t, newer)
		stop(t, older)
		info, err := registerapi.NewRegistrationClient(connect(t, socket)).GetInfo(t.Context(), &registerapi.InfoRequest{})
		if err != nil || info.GetName() != "newer" {
			t.Errorf("GetInfo = %v, %v; want the newer plugin", info, err)
		}
	})
	t.Run("does not mind that its socket is gone", func(t *testing.T) {
		socket := filepath.Join(t.TempDir(), "plugin.sock")
		plugin := pluginwatcher.NewTestExamplePlugin("example", "DevicePlugin", socket)
		if err := plugin.Serve(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
		stop(t, plugin)
	})
}

func TestExamplePluginServeErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, endpoint, service, want string
	}{
		{"no endpoint", "", "v1beta1", "no endpoint"},
		{"unknown service", filepath.Join(dir, "plugin.sock"), "v1beta3", `unknown service "v1beta3"`},
		{"a file in the way", file, "v1beta1", "is not a socket"},
		{"no directory", filepath.Join(dir, "absent", "plugin.sock"), "v1beta1", "no such file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			plugin := pluginwatcher.NewTestExamplePlugin("example", "DevicePlugin", test.endpoint)
			err := plugin.Serve(test.service)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Serve = %v, want an error with %q", err, test.want)
			}
			if entries := names(t, dir); !slices.Equal(entries, []string{"file"}) {
				t.Errorf("the directory holds %q, want what was there before", entries)
			}
		})
	}
	t.Run("serves already", func(t *testing.T) {
		plugin := pluginwatcher.NewTestExamplePlugin("example", "DevicePlugin", filepath.Join(dir, "plugin.sock"))
		if err := plugin.Serve(); err != nil {
			t.Fatal(err)
		}
		defer stop(t, plugin)
		if err := plugin.Serve(); err == nil || !strings.Contains(err.Error(), "serves already") {
			t.Errorf("second Serve = %v, want an error", err)
		}
	})
}

func TestNewExamplePluginIsARegistrationServer(t *testing.T) {
	plugin := pluginwatcher.NewExamplePlugin()
	var server registerapi.RegistrationServer = plugin
	info, err := server.GetInfo(t.Context(), &registerapi.InfoRequest{})
	if err != nil || info.GetName() == "" || info.GetType() == "" || info.GetEndpoint() != "" {
		t.Errorf("GetInfo = %v, %v; want a type and a name, and no endpoint: the socket itself", info, err)
	}
	if err := plugin.Serve(); err == nil {
		t.Error("Serve without an endpoint succeeded")
	}
}

func stop(t *testing.T, plugin interface{ Stop() error }) {
	t.Helper()
	if err := plugin.Stop(); err != nil {
		t.Error(err)
	}
}

func connect(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, entry := range entries {
		list = append(list, entry.Name())
	}
	return list
}
