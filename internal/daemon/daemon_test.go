package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// patience bounds how long a test waits for what should happen at once.
const patience = 2 * time.Minute

// configIn returns a configuration whose files are all in one new directory with a short path.
func configIn(t *testing.T) daemon.Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := daemon.Options{Build: daemon.Build{Version: "v1.2.3", Commit: "abc"}}
	c.SetDefaults()
	c.PluginDirs, c.State = []string{filepath.Join(dir, "plugins")}, filepath.Join(dir, "state.db")
	c.ControlSocket, c.Handlers = filepath.Join(dir, "control.sock"), map[string]string{"ExamplePlugin": daemon.HandlerAccept}
	return c
}

// start runs a daemon until the test ends or stop is called, which returns what Run returned.
func start(t *testing.T, cfg daemon.Options) (stop func() error) {
	t.Helper()
	d, err := daemon.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	select {
	case <-d.Ready():
	case err := <-ended:
		cancel()
		t.Fatalf("the daemon ended: %v", err)
	case <-time.After(patience):
		cancel()
		t.Fatal("the daemon does not become ready")
	}
	stopped := false
	stop = func() error {
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("the daemon does not end")
		}
	}
	t.Cleanup(func() {
		if !stopped {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
	return stop
}

func dial(t *testing.T, cfg daemon.Options) *client.Client {
	t.Helper()
	c := client.New(cfg.ControlSocket)
	t.Cleanup(c.Close)
	return c
}

func serveExample(t *testing.T, cfg daemon.Options, name string) (stop func()) {
	t.Helper()
	example := pluginwatcher.NewTestExamplePlugin(name, "ExamplePlugin", filepath.Join(cfg.PluginDirs[0], name+".sock"), "v1")
	if err := example.Serve(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		if err := example.Stop(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestFilesAndModes(t *testing.T) {
	cfg := configIn(t)
	stop := start(t, cfg)
	for path, want := range map[string]fs.FileMode{
		cfg.PluginDirs[0]: 0o750 | fs.ModeDir,
		cfg.State:         0o600,
		cfg.ControlSocket: 0o660 | fs.ModeSocket,
	} {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("mode of %s is %v, want %v", path, info.Mode(), want)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(cfg.ControlSocket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the control socket is still there: %v", err)
	}
}

func TestRemembers(t *testing.T) {
	cfg := configIn(t)
	stop := start(t, cfg)
	serveExample(t, cfg, "one")
	c := dial(t, cfg)
	before, err := c.Wait(within(t), "ExamplePlugin", "one", client.GoalRegistered)
	if err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	start(t, cfg)
	after, err := c.Wait(within(t), "ExamplePlugin", "one", client.GoalRegistered)
	if err != nil {
		t.Fatal(err)
	}
	if before.Instance == "" || before.Instance != after.Instance {
		t.Errorf("the instance was %q and is %q after a restart", before.Instance, after.Instance)
	}
}

// TestProtocols calls the same method in every protocol that the control socket speaks.
func TestProtocols(t *testing.T) {
	cfg := configIn(t)
	start(t, cfg)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return sock.Dial(ctx, cfg.ControlSocket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	h2c := transport.Clone()
	h2c.Protocols = new(http.Protocols)
	h2c.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h2c.CloseIdleConnections)

	for name, rpc := range map[string]patchbayv1connect.ControlServiceClient{
		"Connect over HTTP/1.1":  patchbayv1connect.NewControlServiceClient(&http.Client{Transport: transport}, "http://x"),
		"Connect over HTTP/2":    patchbayv1connect.NewControlServiceClient(&http.Client{Transport: h2c}, "http://x"),
		"Connect JSON":           patchbayv1connect.NewControlServiceClient(&http.Client{Transport: transport}, "http://x", connect.WithProtoJSON()),
		"gRPC":                   patchbayv1connect.NewControlServiceClient(&http.Client{Transport: h2c}, "http://x", connect.WithGRPC()),
		"gRPC-Web over HTTP/1.1": patchbayv1connect.NewControlServiceClient(&http.Client{Transport: transport}, "http://x", connect.WithGRPCWeb()),
	} {
		t.Run(name, func(t *testing.T) {
			response, err := rpc.GetVersion(within(t), &patchbayv1.GetVersionRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if got := response; got.GetVersion() != "v1.2.3" || got.GetCommit() != "abc" || got.GetPid() != int64(os.Getpid()) {
				t.Errorf("got %v", got)
			}
		})
	}

	t.Run("JSON by hand", func(t *testing.T) {
		request, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://x"+patchbayv1connect.ControlServiceListPluginsProcedure,
			strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK || !json.Valid(body) {
			t.Errorf("status %s, body %q, error %v", response.Status, body, err)
		}
	})

	t.Run("grpc-go", func(t *testing.T) {
		conn, err := grpc.NewClient("unix:"+cfg.ControlSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		response := &patchbayv1.GetPluginResponse{}
		err = conn.Invoke(within(t), patchbayv1connect.ControlServiceGetPluginProcedure,
			&patchbayv1.GetPluginRequest{Type: "CSIPlugin", Name: "none"}, response)
		if status.Code(err) != codes.NotFound {
			t.Errorf("got %v, want NotFound", err)
		}
	})
}

// TestStopEndsCalls stops the daemon while a follower and a waiter are connected.
func TestStopEndsCalls(t *testing.T) {
	cfg := configIn(t)
	stop := start(t, cfg)
	serveExample(t, cfg, "one")
	c := dial(t, cfg)
	followed, waited := make(chan error, 1), make(chan error, 1)
	following := make(chan struct{})
	ctx := within(t)
	go func() {
		var last error
		for event, err := range c.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true}) {
			if event.GetKind() == "registered" {
				close(following)
			}
			last = err
		}
		followed <- last
	}()
	go func() {
		_, err := c.Wait(ctx, "ExamplePlugin", "other", client.GoalRegistered)
		waited <- err
	}()
	<-following
	if err := stop(); err != nil {
		t.Error(err)
	}
	for name, ended := range map[string]chan error{"Events": followed, "Wait": waited} {
		if err := <-ended; !errors.Is(err, client.ErrNotRunning) {
			t.Errorf("%s: got %v, want %v", name, err, client.ErrNotRunning)
		}
	}
}

func TestSecondDaemon(t *testing.T) {
	first := configIn(t)
	start(t, first)
	for name, test := range map[string]struct {
		change func(*daemon.Options)
		want   error
	}{
		"same control socket": {func(c *daemon.Options) { c.ControlSocket = first.ControlSocket }, sock.ErrInUse},
		"same state":          {func(c *daemon.Options) { c.State = first.State }, boltstate.ErrLocked},
		"all the same":        {func(c *daemon.Options) { *c = first }, sock.ErrInUse},
	} {
		t.Run(name, func(t *testing.T) {
			second := configIn(t)
			test.change(&second)
			d, err := daemon.New(second)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Run(within(t)); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			for _, path := range []string{second.State, second.ControlSocket} {
				_, err := os.Lstat(path)
				if owned := path == first.State || path == first.ControlSocket; owned != (err == nil) {
					t.Errorf("%s: %v", path, err)
				}
			}
			if _, err := dial(t, first).Version(within(t)); err != nil {
				t.Errorf("the first daemon is disturbed: %v", err)
			}
		})
	}
}

func TestHTTP(t *testing.T) {
	var log bytes.Buffer
	cfg := configIn(t)
	cfg.HTTP = "localhost:0"
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	stop := start(t, cfg)
	_, address, _ := strings.Cut(log.String(), `msg="serving HTTP" address=`)
	address, _, _ = strings.Cut(address, "\n")
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	ready := func() (int, error) {
		request, err := http.NewRequestWithContext(within(t), http.MethodGet, "http://"+address+"/readyz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			return 0, err
		}
		// Read to the end, so that the connection is kept.
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, errors.Join(err, response.Body.Close())
	}
	if code, err := ready(); err != nil || code != http.StatusOK {
		t.Errorf("got %d, %v", code, err)
	}

	second := configIn(t)
	second.HTTP = address
	d, err := daemon.New(second)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Run(within(t)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("with an address in use: got %v", err)
	}
	if _, err := os.Lstat(second.PluginDirs[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a start that failed made the plugin directory: %v", err)
	}

	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := ready(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after the end: got %v", err)
	}
}

func TestConfig(t *testing.T) {
	for name, change := range map[string]func(*daemon.Options){
		"no plugin directory": func(c *daemon.Options) { c.PluginDirs = nil },
		"empty directory":     func(c *daemon.Options) { c.PluginDirs = []string{""} },
		"no state":            func(c *daemon.Options) { c.State = "" },
		"no control socket":   func(c *daemon.Options) { c.ControlSocket = "" },
		"same directory":      func(c *daemon.Options) { c.PluginDirs = append(c.PluginDirs, c.PluginDirs[0]+"/.") },
		"nested directory":    func(c *daemon.Options) { c.PluginDirs = append(c.PluginDirs, c.PluginDirs[0]+"/a") },
		"outer directory":     func(c *daemon.Options) { c.DeprecatedPluginDir = filepath.Dir(c.PluginDirs[0]) },
		"empty type":          func(c *daemon.Options) { c.Handlers = map[string]string{"": daemon.HandlerAccept} },
		"type with a slash":   func(c *daemon.Options) { c.Handlers = map[string]string{"a/b": daemon.HandlerAccept} },
		"unknown handler":     func(c *daemon.Options) { c.Handlers = map[string]string{"A": "none"} },
		"timeouts of no type": func(c *daemon.Options) { c.TypeTimeouts = map[string]plugin.Timeouts{"a/b": {}} },
		"public HTTP":         func(c *daemon.Options) { c.HTTP = "0.0.0.0:0" },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := configIn(t)
			change(&cfg)
			if _, err := daemon.New(cfg); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func ExampleNew() {
	_, err := daemon.New(daemon.Options{Loaded: config.Loaded{Config: config.Config{
		PluginDirs: []string{"/run/patchbay/plugins"},
		State:      "/var/lib/patchbay/state.db",
		Handlers:   map[string]string{"CSIPlugin": daemon.HandlerCSI, "DRAPlugin": daemon.HandlerDRA},
	}}})
	fmt.Println(err)
	// Output: the control socket has an empty path: name a file
}
