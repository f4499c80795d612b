package sdk_test

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk"
)

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
		// Its place is free.
		if err := sdk.Serve(ended, good); err != nil || len(files(t, filepath.Dir(socket))) > 0 {
			t.Errorf("after Register %s: %v, and there is %v", name, err, files(t, filepath.Dir(socket)))
		}
	}
}
