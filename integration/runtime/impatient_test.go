package runtime_test

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/plugin"
)

// slow is a handler whose calls of RegisterPlugin wait for the test.
type slow struct {
	entered, finish chan struct{}

	mu    sync.Mutex
	calls []string
}

var _ cache.PluginHandler = (*slow)(nil)

func (s *slow) ValidatePlugin(string, string, []string) error { return nil }

func (s *slow) RegisterPlugin(name, _ string, _ []string, _ *time.Duration) error {
	s.note("+" + name)
	s.entered <- struct{}{}
	<-s.finish
	return nil
}

func (s *slow) DeRegisterPlugin(name string) { s.note("-" + name) }

// await waits until the last call is a certain one.
func (s *slow) await(t *testing.T, call string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		last := s.calls[len(s.calls)-1]
		s.mu.Unlock()
		if last == call {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the last call is %s, want %s", last, call)
		}
	}
}

func (s *slow) note(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
}

// introduced is the registration service of a plugin.
type introduced struct {
	registerapi.UnimplementedRegistrationServer
}

func (introduced) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: "T", Name: "impatient", SupportedVersions: []string{"v1beta1"}}, nil
}

func (introduced) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// serveImpatient serves a plugin that ends as a process does: its connections break, and its socket is removed.
func (h *host) serveImpatient() (exit func()) {
	h.t.Helper()
	listener, err := net.Listen("unix", filepath.Join(h.dir, "impatient.sock"))
	if err != nil {
		h.t.Fatal(err)
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, introduced{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // ends with Stop
	exit = sync.OnceFunc(func() {
		server.Stop()
		serving.Wait()
	})
	h.t.Cleanup(exit)
	return exit
}

// TestPluginThatDoesNotWait: a plugin that ends because its handler takes long after GetInfo leaves nothing behind: no instance that is dead
// and no register without its deregister. It is registered if it waits when it is back.
func TestPluginThatDoesNotWait(t *testing.T) {
	handler := &slow{entered: make(chan struct{}), finish: make(chan struct{})}
	h := &host{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db"), handler: handler}
	h.start()
	t.Cleanup(func() { h.end() })
	for range 3 {
		exit := h.serveImpatient()
		<-handler.entered
		exit()
		handler.finish <- struct{}{}
		handler.await(t, "-impatient")
		if in := h.rt.Registry().Instances("T", "impatient"); len(in) != 0 {
			t.Errorf("a plugin that ended is registered: %+v", in)
		}
	}
	exit := h.serveImpatient()
	<-handler.entered
	handler.finish <- struct{}{}
	h.await(plugin.EventRegistered, "impatient")
	exit()
	handler.await(t, "-impatient")
	handler.mu.Lock()
	defer handler.mu.Unlock()
	for i, call := range handler.calls {
		if want := []string{"+impatient", "-impatient"}[i%2]; call != want {
			t.Fatalf("the calls of the handler are %v", handler.calls)
		}
	}
}
