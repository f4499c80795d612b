package sdk_test

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk"
)

func TestPluginIsChecked(t *testing.T) {
	good := sdk.Plugin{Type: "Greeter", Name: "hello", Versions: []string{"1"}, Register: func(grpc.ServiceRegistrar) {}}
	for want, change := range map[string]func(*sdk.Plugin){
		"Plugin.Type is empty":                    func(p *sdk.Plugin) { p.Type = "" },
		"has a slash":                             func(p *sdk.Plugin) { p.Type = "a/b" },
		"Plugin.Name is empty":                    func(p *sdk.Plugin) { p.Name = "" },
		`Plugin.Name "a b" has spaces`:            func(p *sdk.Plugin) { p.Name = "a b" },
		`Plugin.Name "a\xff" has characters that`: func(p *sdk.Plugin) { p.Name = "a\xff" },
		`Plugin.Name "a\x1b" has characters that`: func(p *sdk.Plugin) { p.Name = "a\x1b" },
		"4096 are allowed":                        func(p *sdk.Plugin) { p.Name = strings.Repeat("n", 4097) },
		"Plugin.Versions has 0 entries":           func(p *sdk.Plugin) { p.Versions = nil },
		"Plugin.Versions has 65 entries":          func(p *sdk.Plugin) { p.Versions = slices.Repeat([]string{"1"}, 65) },
		"Plugin.Versions[1] is empty":             func(p *sdk.Plugin) { p.Versions = []string{"1", ""} },
		"Plugin.Register is nil":                  func(p *sdk.Plugin) { p.Register = nil },
		`"relative" is not absolute`:              func(p *sdk.Plugin) { p.Endpoint = "relative" },
		"has more than permission bits":           func(p *sdk.Plugin) { p.Mode = 0o10000 << 10 },
		"is negative":                             func(p *sdk.Plugin) { p.Drain = -1 },
		"Plugin.Socket is empty":                  func(p *sdk.Plugin) {},
		"the registration service, which":         func(p *sdk.Plugin) { p.Register = registerRegistration },
	} {
		p := good
		change(&p)
		if err := sdk.Serve(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	// A health service of the plugin's own is not an error.
	good.Register = func(s grpc.ServiceRegistrar) { healthpb.RegisterHealthServer(s, health.NewServer()) }
	if err := sdk.Serve(t.Context(), good); err == nil || !strings.Contains(err.Error(), "Plugin.Socket is empty") {
		t.Errorf("with a health service: %v", err)
	}
}

func registerRegistration(s grpc.ServiceRegistrar) {
	registerapi.RegisterRegistrationServer(s, registerapi.UnimplementedRegistrationServer{})
}

// TestDependenciesAreFew lists all modules that a plugin is built from.
func TestDependenciesAreFew(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".", "./admission").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	allowed := []string{
		"github.com/patchbay-dev/patchbay",
		"golang.org/x/net",
		"golang.org/x/sys",
		"golang.org/x/text",
		"google.golang.org/genproto/googleapis/rpc",
		"google.golang.org/grpc",
		"google.golang.org/protobuf",
		"k8s.io/kubelet",
	}
	modules := slices.Compact(slices.Sorted(slices.Values(strings.Fields(string(out)))))
	if !slices.Equal(modules, allowed) {
		t.Errorf("a plugin is built from\n%s\nwant\n%s", strings.Join(modules, "\n"), strings.Join(allowed, "\n"))
	}
	out, err = exec.Command("go", "list", "-deps", ".", "./admission").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	own := []string{"api/patchbay/plugin/v1", "internal/callback", "internal/untrusted", "internal/grpcsock", "internal/launch/handshake", "internal/sock", "internal/systemd", "plugin", "sdk", "sdk/admission", "sdk/internal/launched",
		"sdk/internal/reflection"}
	for name := range strings.FieldsSeq(string(out)) {
		if path, ok := strings.CutPrefix(name, "github.com/patchbay-dev/patchbay/"); ok && !slices.Contains(own, path) {
			t.Errorf("a plugin is built with %s", path)
		}
		if strings.HasSuffix(name, "/descriptorpb") {
			t.Error("a plugin is linked with descriptor.proto, which takes 0.5 ms of each of its starts")
		}
	}
}

// TestRefuses checks what TestPluginIsChecked does not: options and paths that cannot work, and functions that are missing or do not return.
func TestRefuses(t *testing.T) {
	socket := filepath.Join(tempDir(t), "s")
	good := sdk.Plugin{Type: "Greeter", Name: "hello", Versions: []string{"1"}, Register: func(grpc.ServiceRegistrar) {}, Socket: socket}
	for want, change := range map[string]func(*sdk.Plugin){
		"Plugin.ServerOptions[1] is nil": func(p *sdk.Plugin) { p.ServerOptions = []grpc.ServerOption{grpc.EmptyServerOption{}, nil} },
		"Plugin.Endpoint":                func(p *sdk.Plugin) { p.Endpoint = "/a\x00" },
		"4096 are allowed":               func(p *sdk.Plugin) { p.Endpoint = "/" + strings.Repeat("a", 4096) },
		"invalid argument":               func(p *sdk.Plugin) { p.Socket += "\x00" },
		"no such file or directory":      func(p *sdk.Plugin) { p.Socket = filepath.Join(socket, "a", "b") },
		"Plugin.HandOver is negative":    func(p *sdk.Plugin) { p.HandOver = -1 },
	} {
		p := good
		change(&p)
		if err := sdk.Serve(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if err := sdk.Run(t.Context(), nil); err == nil {
		t.Error("Run accepted no function")
	}
	for range 2 {
		if _, err := sdk.Host(t.Context()); !errors.Is(err, sdk.ErrNotLaunched) {
			t.Error(err)
		}
		for _, err := range sdk.ListMetadata(t.Context(), plugin.Pin{}) {
			if !errors.Is(err, sdk.ErrNotLaunched) {
				t.Error(err)
			}
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sdk.Serve(ended, good); err != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
	for name, fail := range map[string]func(){"panics": func() { panic("oops") }, "ends its goroutine": runtime.Goexit} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			p := good
			p.Register = func(grpc.ServiceRegistrar) { fail() }
			t.Errorf("Register %s: Serve returned %v", name, sdk.Serve(t.Context(), p))
		}()
		<-done
		// Another plugin can serve at the same path.
		if err := sdk.Serve(ended, good); err != nil || len(files(t, filepath.Dir(socket))) > 0 {
			t.Errorf("after Register %s: %v, and there is %v", name, err, files(t, filepath.Dir(socket)))
		}
	}
}
