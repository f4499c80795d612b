package runtime_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	hosting "github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/sdk/admission"
)

// serveAdmission is the main function of the admission plugin. What it does depends on the plugin's name, up to the first dash, and
// on whether the file exists that its argument names.
func serveAdmission() int {
	changed := func() bool {
		_, err := os.Stat(os.Args[1])
		return err == nil
	}
	err := admission.Serve(context.Background(), func(ctx context.Context, pin plugin.Pin, _ admission.Metadata) error {
		switch what, _, _ := strings.Cut(pin.PackageName, "-"); {
		case changed():
		case what == "no":
			return status.Error(codes.PermissionDenied, "it is not on the list")
		case what == "hang":
			<-ctx.Done()
			return errors.New("never told")
		case what == "crash":
			os.Exit(6)
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serveDiscovered is the main function of a plugin that nobody launched: it serves as its first argument at the path that is the second.
func serveDiscovered() int {
	p := pluginwatcher.NewTestExamplePlugin(os.Args[1], "T", os.Args[2], "v1beta1")
	if err := p.Serve("v1beta1"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := p.Stop(); err != nil {
		return 1
	}
	return 0
}

// newGuardedHost is a host with an admission plugin. It admits everything when the file exists.
func newGuardedHost(t *testing.T, timeout time.Duration) (h *host, file string) {
	t.Helper()
	t.Setenv(pluginEnv, "admission") // the admission plugin inherits it
	file = filepath.Join(t.TempDir(), "admit-all")
	h = &host{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db")}
	h.admission = func(host *hosting.Host) (plugin.AdmissionPlugin, error) {
		return hosting.NewAdmission(context.Background(), host, hosting.Spec{Args: []string{os.Args[0], file}}, timeout), nil
	}
	h.start()
	t.Cleanup(func() { h.end() })
	return h, file
}

// discover starts a process that serves, and returns it and the function that ends it.
func (h *host) discover(program, name string) (process *os.Process, stop func()) {
	h.t.Helper()
	cmd := exec.Command(program, name, filepath.Join(h.dir, name+".sock"))
	cmd.Env = append(os.Environ(), pluginEnv+"=discovered")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	ended := false
	stop = func() {
		if !ended {
			ended = true
			_ = in.Close()
			_ = cmd.Wait()
		}
	}
	h.t.Cleanup(stop)
	return cmd.Process, stop
}

// only returns the status of the plugin with a name.
func (h *host) only(name string) plugin.Status {
	for _, s := range h.rt.Plugins() {
		if s.Name == name {
			return s
		}
	}
	return plugin.Status{}
}

// instanceOf returns the instance ID of a program.
func instanceOf(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sealedexec.Digest(sha256.Sum256(content)).InstanceID()
}

func TestAdmitted(t *testing.T) {
	h, _ := newGuardedHost(t, 0)
	h.discover(os.Args[0], "ok-1")
	h.await("registered", "ok-1")
	h.serve("ok-2", "ok-2.sock") // by this process
	h.await("registered", "ok-2")
	h.set(launchable("serve"))
	h.running("registration")
	if err := h.call("launched"); err != nil {
		t.Errorf("call: %v", err)
	}
	if h.rt.Admission() == nil {
		t.Error("the Runtime has no admission plugin")
	}
}

func TestRefused(t *testing.T) {
	h, file := newGuardedHost(t, 0)
	h.discover(os.Args[0], "no-1")
	event := h.await(plugin.EventRefused, "no-1")
	pin := "no-1:" + instanceOf(t, os.Args[0])
	var s plugin.Status
	h.until("its rest between two attempts", func() bool {
		s = h.only("no-1")
		return s.State == plugin.StateRefused && !s.NextRetry.IsZero()
	})
	for _, text := range []string{event.Message, s.LastError} {
		if !strings.Contains(text, pin) || !strings.Contains(text, "it is not on the list") {
			t.Errorf("why it is refused: %q", text)
		}
	}
	if err := h.call("no-1"); !errors.Is(err, dynamicplugins.ErrNotFound) {
		t.Errorf("it is dispensed: %v", err)
	}
	// A final answer stands, until it is forgotten.
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.until("another refusal", func() bool { return h.only("no-1").Attempts > 2 })
	h.rt.Admission().ClearCache()
	h.await("registered", "no-1")
}

func TestRefusedWhenLaunched(t *testing.T) {
	h, _ := newGuardedHost(t, 0)
	p := launchable("serve")
	p.Name = "no-unit"
	h.set(p)
	event := h.await(plugin.EventBackoff, "no-unit")
	if pin := "no-unit:" + instanceOf(t, os.Args[0]); !strings.Contains(event.Message, pin) {
		t.Errorf("it is refused as %q, want %s", event.Message, pin)
	}
}

func TestNoAnswerIsNoAdmission(t *testing.T) {
	for name, why := range map[string]error{"hang-1": hosting.ErrTimeout, "crash-1": hosting.ErrCrashed} {
		t.Run(name, func(t *testing.T) {
			timeout := time.Minute
			if why == hosting.ErrTimeout { //nolint:errorlint // it is the same
				timeout = time.Second
			}
			h, file := newGuardedHost(t, timeout)
			h.discover(os.Args[0], name)
			if event := h.await(plugin.EventFailed, name); !strings.Contains(event.Message, why.Error()) {
				t.Errorf("it is not registered because of %q, want %q", event.Message, why)
			}
			if s := h.only(name); s.LastError == "" || s.RegisteredAt != (time.Time{}) {
				t.Errorf("status: %+v", s)
			}
			if slices.ContainsFunc(h.rt.LastEvents(100), func(e plugin.Event) bool { return e.Kind == plugin.EventRefused }) {
				t.Error("it was told of a refusal, and nobody refused it")
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			h.await("registered", name)
		})
	}
}

// TestHungCheckHoldsUpNoOther: what comes one by one beside a check that hangs is registered at once.
func TestHungCheckHoldsUpNoOther(t *testing.T) {
	h, _ := newGuardedHost(t, time.Hour)
	h.discover(os.Args[0], "hang-1")
	h.until("its check", func() bool { return h.only("hang-1").State == plugin.StateAdmitting })
	for _, name := range []string{"ok-1", "ok-2", "ok-3"} {
		h.discover(os.Args[0], name)
		h.await("registered", name)
	}
	if s := h.only("hang-1"); s.State != plugin.StateAdmitting {
		t.Errorf("the one that hangs is %+v", s)
	}
}

func TestPinIsOfWhatRuns(t *testing.T) {
	h, _ := newGuardedHost(t, 0)
	program := filepath.Join(t.TempDir(), "program")
	install := func(end string) {
		content, err := os.ReadFile(os.Args[0])
		if err == nil {
			err = os.WriteFile(program+".new", append(content, end...), 0o755)
		}
		if err == nil {
			err = os.Rename(program+".new", program)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var pins []string
	for _, end := range []string{"", "another"} {
		install(end)
		_, stop := h.discover(program, "no-1")
		message := h.await(plugin.EventRefused, "no-1").Message
		for slices.ContainsFunc(pins, func(pin string) bool { return strings.Contains(message, pin) }) {
			message = h.await(plugin.EventRefused, "no-1").Message // the program before was refused more than once
		}
		pin := "no-1:" + instanceOf(t, program)
		if !strings.Contains(message, pin) || slices.Contains(pins, pin) {
			t.Errorf("it is refused as %q, want %s, before it was %v", message, pin, pins)
		}
		pins = append(pins, pin)
		stop()
		h.until("its end", func() bool { return h.only("no-1").State == "" })
		h.unread = nil
	}
}

// pins is an admission plugin that admits everything and tells what it was asked.
type pins chan plugin.Pin

func (pins) Executable() string { return "" }

func (p pins) CheckAdmission(pin plugin.Pin) plugin.Promise {
	p <- pin
	return admitted{}
}

func (pins) ClearCache() {}

func (p pins) Close(context.Context) { close(p) }

type admitted struct{}

func (admitted) Wait(context.Context) error { return nil }

func TestLaunchedPluginHasThePinOfItsLaunch(t *testing.T) {
	asked := make(pins, 10)
	h := &host{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db")}
	h.admission = func(*hosting.Host) (plugin.AdmissionPlugin, error) { return asked, nil }
	h.start()
	t.Cleanup(func() { h.end() })
	h.set(launchable("serve"))
	h.running("registration")
	h.end()
	want := plugin.Pin{PackageName: "unit", InstanceID: instanceOf(t, os.Args[0])}
	n := 0
	for pin := range asked { // it is closed with the Runtime
		if n++; pin != want {
			t.Errorf("asked for %s, want %s", pin, want)
		}
	}
	if n != 2 {
		t.Errorf("asked %d times, want once before the launch and once before the registration", n)
	}
}

func TestNoAdmissionPlugin(t *testing.T) {
	no := errors.New("none available")
	err := (&pluginruntime.Runtime{
		Watcher:      &pipeline.Watcher{Dirs: []string{t.TempDir()}},
		NewAdmission: func(*hosting.Host) (plugin.AdmissionPlugin, error) { return nil, no },
	}).Open()
	if !errors.Is(err, no) {
		t.Errorf("New: %v", err)
	}
}

func TestNilAdmissionPlugin(t *testing.T) {
	err := (&pluginruntime.Runtime{
		Watcher:      &pipeline.Watcher{Dirs: []string{t.TempDir()}},
		NewAdmission: func(*hosting.Host) (plugin.AdmissionPlugin, error) { return nil, nil }, //nolint:nilnil // the mistake
	}).Open()
	if err == nil || !strings.Contains(err.Error(), "neither a plugin nor an error") {
		t.Errorf("it is taken: %v", err)
	}
}
