package sdktest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
	"github.com/patchbay-dev/patchbay/sdk/admission"
	"github.com/patchbay-dev/patchbay/sdk/sdktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// greeter is a plugin whose answers carry what ListMetadata says of a package, and whose log shows the calls.
type greeter struct {
	v1beta1.UnimplementedExampleServer
}

func (greeter) GetExampleInfo(ctx context.Context, r *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	sdk.Logger(ctx, nil).With("a", 1).WithGroup("g").Info("called", "request", r.Request)
	var values []string
	for m, err := range sdk.ListMetadata(ctx, plugin.Pin{PackageName: r.Request, InstanceID: "i"}) {
		if err != nil {
			return nil, err
		}
		values = append(values, m.Key+"="+string(m.Value))
	}
	return &v1beta1.ExampleResponse{Error: strings.Join(values, " ")}, nil
}

func greeterPlugin(change func(*sdk.Plugin)) func(context.Context) error {
	return func(ctx context.Context) error {
		p := sdk.Plugin{
			Type: "Greeter", Name: "hello", Versions: []string{"1.0.0"},
			Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, greeter{}) },
		}
		if change != nil {
			change(&p)
		}
		return sdk.Serve(ctx, p)
	}
}

func TestLaunchedPlugin(t *testing.T) {
	host := sdktest.NewHost(t, "Greeter")
	host.SetMetadata(plugin.Pin{PackageName: "p", InstanceID: "i"}, plugin.Metadata{Key: "k", Value: []byte("2")},
		plugin.Metadata{Key: "k", Value: []byte("1")})
	p := host.Launch(greeterPlugin(nil))
	registered := host.Registered("Greeter", "hello")
	if registered.Version != "1.0.0" {
		t.Errorf("registered is %+v", registered)
	}
	client := v1beta1.NewExampleClient(host.Conn("Greeter", "hello"))
	response, err := client.GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{Request: "p"})
	if err != nil || response.Error != "k=2 k=1" {
		t.Errorf("answer %v, %v", response, err)
	}
	host.Restart()
	host.Registered("Greeter", "hello")
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	host.Deregistered("Greeter", "hello")
	var messages []string
	for _, r := range p.Logs() {
		messages = append(messages, r.Message)
	}
	if !strings.Contains(strings.Join(messages, "\n"), "called") {
		t.Errorf("log %q has no call", messages)
	}
	if _, err := os.Stat(registered.SocketPath); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestRefusal(t *testing.T) {
	host := sdktest.NewHost(t, "Greeter")
	host.Refuse(errors.New("not today"))
	leaving := host.Start(greeterPlugin(func(p *sdk.Plugin) { p.Socket, p.ExitOnRefusal = host.Socket("a.sock"), true }))
	var refused *sdk.RefusedError
	if err := leaving.Wait(); !errors.As(err, &refused) || !strings.Contains(refused.Reason, "not today") {
		t.Errorf("the plugin that exits when it is refused returned %v", err)
	}
	staying := host.Start(greeterPlugin(func(p *sdk.Plugin) { p.Socket = host.Socket("b.sock") }))
	host.Refuse(nil)
	host.Registered("Greeter", "hello")
	if err := staying.Stop(); err != nil {
		t.Error(err)
	}
}

// TestRestarts has a plugin that notices nothing of many restarts but that it is registered again.
func TestRestarts(t *testing.T) {
	host := sdktest.NewHost(t, "Greeter")
	p := host.Launch(greeterPlugin(nil))
	const restarts = 5
	for range restarts {
		client := v1beta1.NewExampleClient(host.Conn("Greeter", "hello"))
		if _, err := client.GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{}); err != nil {
			t.Error(err)
		}
		host.Restart()
	}
	host.Registered("Greeter", "hello")
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

func TestUnknownTypeIsRefused(t *testing.T) {
	host := sdktest.NewHost(t, "Other")
	p := host.Start(greeterPlugin(func(p *sdk.Plugin) { p.Socket, p.ExitOnRefusal = host.Socket("a.sock"), true }))
	var refused *sdk.RefusedError
	if err := p.Wait(); !errors.As(err, &refused) {
		t.Errorf("the plugin returned %v", err)
	}
}

func TestAdmissions(t *testing.T) {
	host := sdktest.NewHost(t)
	good, bad := plugin.Pin{PackageName: "good", InstanceID: "1"}, plugin.Pin{PackageName: "bad", InstanceID: "1"}
	host.SetMetadata(good, plugin.Metadata{Key: "other"}, plugin.Metadata{Key: "signed", AttachedAt: time.Unix(1, 0)})
	p := host.Launch(func(ctx context.Context) error {
		return admission.Serve(ctx, func(ctx context.Context, pin plugin.Pin, md admission.Metadata) error {
			if pin.PackageName == "panic" {
				panic("oops")
			}
			for m, err := range md.List(ctx, "signed") {
				if err != nil || m.AttachedAt.Unix() == 1 {
					return err
				}
			}
			return errors.New("not signed")
		})
	})
	if err := p.CheckAdmission(t.Context(), good); err != nil {
		t.Error(err)
	}
	if err := p.CheckAdmission(t.Context(), bad); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "not signed") {
		t.Errorf("refusal: %v", err)
	}
	err := p.CheckAdmission(t.Context(), plugin.Pin{PackageName: "panic"})
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "oops") {
		t.Errorf("panic: %v", err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if err := p.CheckAdmission(t.Context(), good); status.Code(err) != codes.Aborted {
		t.Errorf("check after the end: %v", err)
	}
}

// TestStartedPluginHasNoHost has the calls that need a host fail with the error for it.
func TestStartedPluginHasNoHost(t *testing.T) {
	host := sdktest.NewHost(t, "Greeter")
	p := host.Start(func(ctx context.Context) error {
		return sdk.Run(ctx, func(ctx context.Context) error {
			_, err := sdk.Host(ctx)
			return err
		})
	})
	if err := p.Wait(); !errors.Is(err, sdk.ErrNotLaunched) {
		t.Errorf("Host: %v", err)
	}
	p = host.Start(func(ctx context.Context) error {
		return admission.Serve(ctx, func(context.Context, plugin.Pin, admission.Metadata) error { return nil })
	})
	if err := p.Wait(); !errors.Is(err, sdk.ErrNotLaunched) {
		t.Errorf("admission.Serve: %v", err)
	}
	if err := p.CheckAdmission(t.Context(), plugin.Pin{}); err == nil || !strings.Contains(err.Error(), "Launch") {
		t.Errorf("CheckAdmission: %v", err)
	}
	if got := filepath.Dir(host.Socket("x")); got == "." {
		t.Errorf("Socket is in %q", got)
	}
}

// failing is a test that has to fail.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Fatal(...any)          { f.failed = true; runtime.Goexit() }
func (f *failing) Fatalf(string, ...any) { f.failed = true; runtime.Goexit() }

// TestRefuses checks that a missing function fails the test, and that what may be called twice or late returns.
func TestRefuses(t *testing.T) {
	f := &failing{TB: t}
	host := sdktest.NewHost(f, "T")
	for name, do := range map[string]func(){
		"Start":        func() { host.Start(nil) },
		"Launch":       func() { host.Launch(nil) },
		"Registered":   func() { host.Registered("", "foo") },
		"Conn of none": func() { host.Conn("T", "") },
	} {
		f.failed = false
		done := make(chan struct{})
		go func() {
			defer close(done)
			do()
		}()
		if <-done; !f.failed {
			t.Errorf("%s was accepted", name)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p := host.Launch(func(context.Context) error { runtime.Goexit(); return nil })
	for range 2 {
		if p.Wait() == nil || p.Stop() == nil || p.CheckAdmission(t.Context(), plugin.Pin{}) == nil {
			t.Error("a plugin that did not return has no error")
		}
		if p.CheckAdmission(ended, plugin.Pin{}) == nil || len(p.Logs()) > 0 {
			t.Error("a plugin that did not return answers")
		}
		host.Refuse(nil)
		host.SetMetadata(plugin.Pin{})
		host.Restart()
	}
	if alone := host.Start(func(context.Context) error { return nil }); alone.CheckAdmission(t.Context(), plugin.Pin{}) == nil || alone.Stop() != nil {
		t.Error("a plugin that was not launched answers, or fails")
	}
}
