package device_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/handlers/device"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk"
)

// host is a Runtime whose handler for device plugins serves kubelet.sock.
type host struct {
	*patchbay.Runtime
	*device.Handler
	t    *testing.T
	stop func()
}

// startHost starts a host in a directory, with a state.
func startHost(t *testing.T, dir string, store device.Store, admit func(name string) error) *host {
	t.Helper()
	plugins := filepath.Join(dir, "plugins")
	h := &device.Handler{Store: store, SocketDir: filepath.Join(dir, "sockets"), PluginDir: plugins}
	if err := h.Open(); err != nil {
		t.Fatal(err)
	}
	rt, err := patchbay.New(patchbay.Config{PluginDirs: []string{plugins}})
	if err != nil {
		t.Fatal(err)
	}
	if admit == nil {
		rt.AddHandler(registerapi.DevicePlugin, h)
	} else {
		rt.AddHandler(registerapi.DevicePlugin, &picky{Handler: h, admit: admit})
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	r := &host{Runtime: rt, Handler: h, t: t}
	r.stop = func() {
		cancel()
		if err := errors.Join(<-ended, h.Close()); err != nil {
			t.Error(err)
		}
		r.stop = func() {}
	}
	t.Cleanup(func() { r.stop() })
	return r
}

// picky validates more than the handler does.
type picky struct {
	*device.Handler
	admit func(name string) error
}

func (p *picky) ValidatePlugin(name, endpoint string, versions []string) error {
	return errors.Join(p.admit(name), p.Handler.ValidatePlugin(name, endpoint, versions))
}

// registerOlder calls Register on kubelet.sock.
func registerOlder(t *testing.T, dir string, request *pluginapi.RegisterRequest) error {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "sockets", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, request)
	return err
}

func older(name, endpoint string) *pluginapi.RegisterRequest {
	return &pluginapi.RegisterRequest{Version: "v1beta1", ResourceName: name, Endpoint: endpoint}
}

func (r *host) has(want string) {
	r.t.Helper()
	eventually(r.t, r.Handler, want)
}

// registered returns the plugins that are registered.
func (r *host) registered() (current []plugin.Status) {
	for _, p := range r.Plugins() {
		if p.State == plugin.StateRegistered && p.Current {
			current = append(current, p)
		}
	}
	return current
}

func (r *host) untilRegistered(n int) {
	r.t.Helper()
	until(r.t, r.Handler, fmt.Sprint(n, " are registered"), func() bool { return len(r.registered()) == n && len(r.Plugins()) == n },
		func() string { return fmt.Sprintf("%+v", r.Plugins()) })
}

func TestOlderWayTakesTheOneRoad(t *testing.T) {
	dir := tempDir(t)
	store := newMemory()
	r := startHost(t, dir, store, nil)
	f := newFake("a")
	f.options = nil // those of Register count
	f.prepare = func([]string) error { return nil }
	endpoint := filepath.Join(dir, "sockets", "one.sock")
	stop := serveAt(t, endpoint, f.register)
	request := older(resource, "one.sock")
	request.Options = &pluginapi.DevicePluginOptions{PreStartRequired: true}
	if err := registerOlder(t, dir, request); err != nil {
		t.Fatal(err)
	}
	r.has("a:healthy")
	r.untilRegistered(1)
	all := r.registered()
	if len(all) != 1 || all[0].Type != "DevicePlugin" || all[0].Name != resource || all[0].Endpoint != endpoint ||
		all[0].Version != "v1beta1" {
		t.Fatalf("registered are %+v", all)
	}
	if entries := r.Registry().Instances("DevicePlugin", resource); len(entries) != 1 {
		t.Errorf("in the registry are %+v", entries)
	}
	if _, err := r.Allocate(t.Context(), device.Request{Resource: resource, Owner: "one"}); err != nil {
		t.Error(err)
	}
	if f.called("PreStartContainer") != 1 {
		t.Error("the options of Register do not count")
	}

	// A second time is a re-registration, and leaves one announcement.
	if err := registerOlder(t, dir, request); err != nil {
		t.Fatal(err)
	}
	r.untilRegistered(1)
	r.has("a:healthy:one")

	// An upgrade under another name takes over, and the older one takes over again when it goes.
	newer := newFake("a", "b")
	stopNewer := serveAt(t, filepath.Join(dir, "sockets", "two.sock"), newer.register)
	if err := registerOlder(t, dir, older(resource, "two.sock")); err != nil {
		t.Fatal(err)
	}
	r.has("a:healthy:one b:healthy")
	stopNewer()
	r.has("a:healthy:one")
	r.untilRegistered(1)

	// When it dies, the allocation stays, and nothing of the announcement.
	stop()
	r.has("a:unavailable:one")
	r.untilRegistered(0)
	until(t, r.Handler, "no announcement is left", func() bool {
		left, err := filepath.Glob(filepath.Join(dir, "plugins", "*", "*.sock"))
		return err == nil && len(left) == 0
	}, func() string { return "" })
	r.stop()
	if len(store.values) != 1 {
		t.Errorf("the store has %q, want the allocation", store.values)
	}
}

// kubelet.sock is a new file after a restart, and plugins that register again are used again.
func TestOlderWayAfterARestart(t *testing.T) {
	dir := tempDir(t)
	store := newMemory()
	r := startHost(t, dir, store, nil)
	before, err := sock.Stat(filepath.Join(dir, "sockets", "kubelet.sock"))
	if err != nil || before.Mode.Perm() != 0o600 {
		t.Fatal(before, err)
	}
	f := newFake("a")
	serveAt(t, filepath.Join(dir, "sockets", "one.sock"), f.register)
	if err := registerOlder(t, dir, older(resource, "one.sock")); err != nil {
		t.Fatal(err)
	}
	r.has("a:healthy")
	if _, err := r.Allocate(t.Context(), device.Request{Resource: resource, Owner: "one"}); err != nil {
		t.Error(err)
	}
	r.stop()
	if _, err := os.Lstat(filepath.Join(dir, "sockets", "kubelet.sock")); err == nil {
		t.Error("kubelet.sock is left")
	}

	r = startHost(t, dir, store, nil)
	after, err := sock.Stat(filepath.Join(dir, "sockets", "kubelet.sock"))
	if err != nil || after.ID == before.ID {
		t.Errorf("kubelet.sock is %v, and was %v: %v", after, before, err)
	}
	r.has("a:unavailable:one")
	if err := registerOlder(t, dir, older(resource, "one.sock")); err != nil {
		t.Fatal(err)
	}
	r.has("a:healthy:one")
	r.untilRegistered(1)
}

func TestOlderWayRefuses(t *testing.T) {
	dir := tempDir(t)
	r := startHost(t, dir, newMemory(), func(name string) error {
		if name == "example.com/unwanted" {
			return errors.New("not this one")
		}
		return nil
	})
	serveAt(t, filepath.Join(dir, "outside.sock"), newFake("x").register)
	serveAt(t, filepath.Join(dir, "sockets", "good.sock"), newFake("a").register)
	stop := serveAt(t, filepath.Join(dir, "sockets", "dead.sock"), newFake("a").register)
	stop()
	if err := os.Symlink(filepath.Join(dir, "outside.sock"), filepath.Join(dir, "sockets", "link.sock")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sockets", "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	serveAt(t, filepath.Join(dir, "sockets", "other.sock")) // no device plugin
	oldVersion := older(resource, "good.sock")
	oldVersion.Version = "v1alpha1"
	long := older(resource, strings.Repeat("x", 20<<10))
	for what, c := range map[string]struct {
		request *pluginapi.RegisterRequest
		code    codes.Code
	}{
		"another version": {oldVersion, codes.InvalidArgument},
		"no resource":     {older("gadget", "good.sock"), codes.InvalidArgument},
		"no endpoint":     {older(resource, ""), codes.InvalidArgument},
		"up":              {older(resource, "../outside.sock"), codes.InvalidArgument},
		"absolute":        {older(resource, filepath.Join(dir, "outside.sock")), codes.InvalidArgument},
		"the directory":   {older(resource, "."), codes.InvalidArgument},
		"the parent":      {older(resource, ".."), codes.InvalidArgument},
		"itself":          {older(resource, "kubelet.sock"), codes.InvalidArgument},
		"its lock":        {older(resource, ".kubelet.sock.lock"), codes.InvalidArgument},
		"a NUL":           {older(resource, "a\x00b"), codes.InvalidArgument},
		"an escape":       {older(resource, "\x1b[31m"), codes.InvalidArgument},
		"long":            {long, codes.ResourceExhausted},
		"a long name":     {older(resource, strings.Repeat("x", 256)), codes.InvalidArgument},
		"nothing":         {older(resource, "none.sock"), codes.FailedPrecondition},
		"dead":            {older(resource, "dead.sock"), codes.FailedPrecondition},
		"a link":          {older(resource, "link.sock"), codes.FailedPrecondition},
		"a file":          {older(resource, "file"), codes.FailedPrecondition},
		"no plugin":       {older(resource, "other.sock"), codes.FailedPrecondition},
		"not admitted":    {older("example.com/unwanted", "good.sock"), codes.FailedPrecondition},
	} {
		err := registerOlder(t, dir, c.request)
		if status.Code(err) != c.code {
			t.Errorf("%s: got %v, want %v", what, err, c.code)
		}
		if err != nil && (len(err.Error()) > 1000 || strings.ContainsRune(err.Error(), '\x1b')) {
			t.Errorf("%s: the error is %q", what, err)
		}
	}
	if err := registerOlder(t, dir, older(resource, "good.sock")); err != nil {
		t.Error(err)
	}
	r.has("a:healthy")
	r.untilRegistered(1)
}

// A plugin about which Register could not wait for the decision is not told that it is refused, and so has no reason to register again.
func TestOlderWayRefusedUnheard(t *testing.T) {
	t.Parallel() // it waits for 5 s
	dir := tempDir(t)
	var refused atomic.Int64
	var wanted atomic.Bool
	decide := make(chan struct{})
	r := startHost(t, dir, newMemory(), func(string) error {
		<-decide
		if wanted.Load() {
			return nil
		}
		refused.Add(1)
		return errors.New("not now")
	})
	stop := serveAt(t, filepath.Join(dir, "sockets", "one.sock"), newFake("a").register)
	err := registerOlder(t, dir, older(resource, "one.sock"))
	close(decide)
	if err != nil {
		t.Fatal(err)
	}
	until(t, r.Handler, "it is refused again and again", func() bool { return refused.Load() >= 3 },
		func() string { return fmt.Sprintf("refused %d times", refused.Load()) })
	wanted.Store(true)
	r.has("a:healthy")
	r.untilRegistered(1)
	r.stop()
	stop()
}

// One that ends while it is refused is forgotten.
func TestOlderWayEndsWhileRefused(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	decide := make(chan struct{})
	r := startHost(t, dir, newMemory(), func(string) error {
		<-decide
		return errors.New("not now")
	})
	stop := serveAt(t, filepath.Join(dir, "sockets", "one.sock"), newFake("a").register)
	err := registerOlder(t, dir, older(resource, "one.sock"))
	stop()
	close(decide)
	if err != nil {
		t.Fatal(err)
	}
	r.untilRegistered(0)
	until(t, r.Handler, "no announcement is left", func() bool {
		left, err := filepath.Glob(filepath.Join(dir, "plugins", "*", "*.sock"))
		return err == nil && len(left) == 0
	}, func() string { return "" })
}

// The newer way, through the plugin directory, and both at once.
func TestPluginDirectory(t *testing.T) {
	dir := tempDir(t)
	r := startHost(t, dir, newMemory(), nil)
	f := newFake("a", "b")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- sdk.Serve(ctx, sdk.Plugin{
			Type: registerapi.DevicePlugin, Name: resource, Versions: []string{"v1beta1"},
			Socket: filepath.Join(dir, "plugins", "gadget.sock"), Register: f.register,
		})
	}()
	r.has("a:healthy b:healthy")
	if _, err := r.Allocate(t.Context(), device.Request{Resource: resource, Owner: "one"}); err != nil {
		t.Error(err)
	}
	serveAt(t, filepath.Join(dir, "sockets", "older.sock"), newFake("b", "c").register)
	if err := registerOlder(t, dir, older(resource, "older.sock")); err != nil {
		t.Fatal(err)
	}
	r.has("a:missing:one b:healthy c:healthy")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	r.untilRegistered(1)
	r.has("a:missing:one b:healthy c:healthy")
}

func TestSocketDirNeedsAPluginDir(t *testing.T) {
	if err := (&device.Handler{SocketDir: tempDir(t)}).Open(); err == nil || !strings.Contains(err.Error(), "set PluginDir") {
		t.Errorf("got %v", err)
	}
	dir := tempDir(t)
	plugins := tempDir(t)
	newHandler(t, &device.Handler{SocketDir: dir, PluginDir: plugins})
	if err := (&device.Handler{SocketDir: dir, PluginDir: plugins}).Open(); !errors.Is(err, sock.ErrInUse) {
		t.Errorf("a second one: %v", err)
	}
}
