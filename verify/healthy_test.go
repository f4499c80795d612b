//go:build linux

package verify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// manners is a correct behavior of a plugin for which a rule once failed.
type manners struct {
	socket func(dir string) string
	// heeds is how long the plugin has served when it begins to handle SIGTERM, like a plugin that first sets up what it cleans up later;
	// negative for never.
	heeds time.Duration
	// watches is set if the plugin watches its own directory, like a plugin that waits for kubelet.sock. With child, a child process does.
	watches, child bool
}

// bySecond returns a name like those of the sample device plugin of Kubernetes.
func bySecond(dir string) string { return filepath.Join(dir, fmt.Sprint("p.", time.Now().Unix())) }

func fixed(dir string) string { return filepath.Join(dir, "p.sock") }

var healthy = map[string]*manners{
	"names by the second": {socket: bySecond},
	"names anew":          {socket: func(dir string) string { return filepath.Join(dir, fmt.Sprint("p.", time.Now().UnixNano())) }},
	"heeds late":          {socket: fixed, heeds: 1500 * time.Millisecond},
	"heeds never":         {socket: fixed, heeds: -1},
	"watches itself":      {socket: fixed, watches: true},
	"has its child watch": {socket: fixed, watches: true, child: true},
}

func playHealthy(name string) error {
	m := healthy[name]
	dir := os.Getenv("PATCHBAY_PLUGIN_DIR")
	path := m.socket(dir)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if m.watches {
		fd, err := syscall.InotifyInit()
		if err != nil {
			return err
		}
		if _, err := syscall.InotifyAddWatch(fd, dir, syscall.IN_CREATE); err != nil {
			return err
		}
		if m.child {
			watch := os.NewFile(uintptr(fd), "inotify")
			cat := exec.Command("/bin/cat") // exits when its standard input ends, with the plugin
			cat.ExtraFiles = []*os.File{watch}
			if _, err := cat.StdinPipe(); err != nil {
				return err
			}
			if err := errors.Join(cat.Start(), watch.Close()); err != nil {
				return err
			}
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
	if err != nil {
		return err
	}
	f := newFake("Plain")
	f.server = f.newServer()
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(listener) }()
	if m.heeds < 0 {
		return <-served
	}
	<-time.After(m.heeds)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	f.server.Stop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // also that of another instance
		return err
	}
	return nil
}

// TestHealthyAreNotAccused verifies correct plugins for which a rule once failed. Only that rule is checked, so that it is checked right
// after a start.
func TestHealthyAreNotAccused(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string][]string{
		"names by the second": {"PRC006", "PRC007"},
		"names anew":          {"PRC006", "PRC007"},
		"heeds late":          {"PRC003", "PRC004", "PRC005"},
	} {
		for _, rule := range rules {
			t.Run(name+" "+rule, func(t *testing.T) {
				t.Parallel()
				got := resultOf(t, verifyProcess(t, name, Options{Rules: []string{rule}}), rule)
				if got.Status != Passed {
					t.Errorf("%s is %s: %s", rule, got.Status, got.Reason)
				}
			})
		}
	}
}

// TestLateOnce: a socket that refuses connections at one of several starts does not fail the rule.
func TestLateOnce(t *testing.T) {
	t.Parallel()
	report := verifyProcess(t, lateOnce, Options{Rules: []string{"PRC001", "PRC002", "REG"}})
	if got := resultOf(t, report, "PRC002"); got.Status != Warned || !strings.Contains(got.Reason, "when it was started again") {
		t.Errorf("%s: %s", got.Status, got.Reason)
	}
	if report.Count(Failed) > 0 {
		t.Error(describe(report))
	}
}

// TestHeedsNever: a plugin without a handler for SIGTERM fails, although it had time to install one.
func TestHeedsNever(t *testing.T) {
	t.Parallel()
	report := verifyProcess(t, "heeds never", Options{Rules: []string{"PRC003", "PRC004"}})
	for rule, want := range map[string]Status{"PRC003": Warned, "PRC004": Failed} {
		if got := resultOf(t, report, rule); got.Status != want {
			t.Errorf("%s is %s, want %s: %s", rule, got.Status, want, got.Reason)
		}
	}
}

// TestOwnProcessIsNoHost: the plugin and its child processes may watch the directory. Any other process that does is taken for a host.
func TestOwnProcessIsNoHost(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for what, tc := range map[string]struct {
		plugin  string
		elsehow func(t *testing.T, dir string)
		want    Status
	}{
		"itself":               {"watches itself", func(*testing.T, string) {}, Passed},
		"its child":            {"has its child watch", func(*testing.T, string) {}, Passed},
		"itself and a host":    {"watches itself", watchElsewhere, Warned},
		"a host, before it is": {"heeds never", watchElsewhere, Warned},
	} {
		t.Run(what, func(t *testing.T) {
			dir := shortDir(t)
			tc.elsehow(t, dir)
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Env = append(os.Environ(), fakeEnv+"="+tc.plugin, "PATCHBAY_PLUGIN_DIR="+dir, "GORACE=atexit_sleep_ms=0")
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // it was killed
			}()
			path := fixed(dir)
			for end := time.Now().Add(time.Minute); ; {
				if _, err := sock.Probe(t.Context(), path); err == nil {
					break
				} else if time.Now().After(end) {
					t.Fatal(err)
				}
				<-time.After(time.Millisecond)
			}
			report, err := Run(t.Context(), Target{Socket: path}, Options{Rules: []string{"ENV001"}})
			if err != nil {
				t.Fatal(err)
			}
			if got := resultOf(t, report, "ENV001"); got.Status != tc.want {
				t.Errorf("ENV001 is %s, want %s: %s", got.Status, tc.want, got.Reason)
			}
		})
	}
}
