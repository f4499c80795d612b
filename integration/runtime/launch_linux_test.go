package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay"
	hosting "github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

func launchable(behaviour string) launcher.Plugin {
	return launcher.Plugin{
		Spec: hosting.Spec{Name: "unit", Args: []string{os.Args[0]}, Env: []string{pluginEnv + "=" + behaviour}},
		Restart: plugin.RestartPolicy{
			Policy: plugin.RestartAlways, Backoff: plugin.Backoff{Min: 10 * time.Millisecond, Max: 10 * time.Millisecond}, Limit: 3,
		},
	}
}

// unit returns the status of the launched plugin.
func (h *host) unit() plugin.LaunchStatus {
	for _, s := range h.rt.Launcher().Plugins() {
		if s.Name == "unit" {
			return s
		}
	}
	return plugin.LaunchStatus{}
}

func (h *host) set(plugins ...launcher.Plugin) {
	h.t.Helper()
	if err := h.rt.Launcher().Set(plugins); err != nil && !errors.Is(err, launcher.ErrProgram) {
		h.t.Fatal(err)
	}
}

// until waits until a condition holds, which may change with each event.
func (h *host) until(what string, holds func() bool) {
	h.t.Helper()
	h.within(patience, what, holds)
}

func (h *host) within(patience time.Duration, what string, holds func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	events := h.rt.Events(ctx, 0)
	for !holds() {
		tick := time.NewTimer(20 * time.Millisecond) // not every change of a launched plugin is an event
		select {
		case _, open := <-events:
			if !open {
				h.t.Fatalf("%s did not come about: %+v", what, h.rt.Plugins())
			}
		case <-tick.C:
		}
		tick.Stop()
	}
}

func (h *host) running(what string) plugin.LaunchStatus {
	h.t.Helper()
	h.until(what, func() bool { return h.unit().State == plugin.StateRunning })
	return h.unit()
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestLaunchedPluginTakesTheOneRoad(t *testing.T) {
	h := newHost(t)
	h.set(launchable("serve"))
	unit := h.running("registration")
	i := slices.IndexFunc(h.rt.Plugins(), func(s plugin.Status) bool { return s.Name == "launched" })
	if i < 0 || len(h.rt.Plugins()) != 1 {
		t.Fatalf("plugins are %+v, want the launched one and no other", h.rt.Plugins())
	}
	if s := h.rt.Plugins()[i]; s.Source != plugin.SourceLaunched || s.State != plugin.StateRegistered || s.SocketPath != unit.Socket {
		t.Errorf("the plugin is %+v, want it registered and launched, at %s", s, unit.Socket)
	}
	log, err := h.rt.Launcher().Log("unit")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(log.Tail(0), func(r plugin.LogRecord) bool { return strings.Contains(r.Message, "hello from the plugin") }) {
		t.Errorf("the log is %+v, want what the plugin printed", log.Tail(0))
	}

	if err := h.rt.Launcher().Stop("unit"); err != nil {
		t.Fatal(err)
	}
	if alive(unit.PID) {
		t.Errorf("process %d is alive after Stop", unit.PID)
	}
	if _, err := os.Lstat(unit.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there after Stop: %v", err)
	}
	h.until("deregistration", func() bool { return len(h.rt.Registry().Instances("T", "launched")) == 0 })
	if s := h.unit(); s.State != plugin.StateStopped || s.PID != 0 {
		t.Errorf("after Stop it is %+v", s)
	}
	if err := h.rt.Launcher().Start("unit"); err != nil {
		t.Fatal(err)
	}
	if s := h.unit(); s.PID == 0 {
		t.Errorf("when Start has returned it is %+v", s)
	}
	h.running("second start")
}

// TestZeroPluginIsRegistered: of a plugin no more has to be said than what to execute.
func TestZeroPluginIsRegistered(t *testing.T) {
	h := newHost(t)
	p := launcher.Plugin{Spec: launchable("serve").Spec}
	h.set(p)
	h.running("registration")
	if s := h.listed(); s.State != plugin.StateRegistered || s.Source != plugin.SourceLaunched {
		t.Errorf("the plugin is %+v, want it registered", s)
	}
}

// TestLateHandlerStartsBlockedPlugin: a plugin whose type has no handler ends, and is started when there is one.
func TestLateHandlerStartsBlockedPlugin(t *testing.T) {
	h := newHost(t)
	h.rt.RemoveHandler("T")
	h.set(launchable("serve"))
	h.until("the refusal", func() bool { return h.unit().LastError != "" })
	if s := h.unit(); !strings.Contains(s.LastError, "registration as T/launched was refused: no handler registered for plugin type: T") {
		t.Errorf("it is %+v, want the registration it waits for, and why that was refused", s)
	}
	for resting := []plugin.State{plugin.StateFailed, plugin.StateBlocked}; !slices.Contains(resting, h.unit().State); {
		if pid := h.unit().PID; pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		h.until("an end", func() bool { return h.unit().State != plugin.StateStarting || h.unit().LastError != "" })
	}
	if s := h.unit(); s.State != plugin.StateBlocked || s.Restarts != 0 || !strings.Contains(s.LastError, "T/launched") {
		t.Errorf("it is %+v, want it blocked by the registration of T/launched, without a restart", s)
	}
	h.rt.AddHandler("T", patchbay.AcceptHandler())
	h.running("a start when there is a handler")
}

// TestIntroducedPluginIsNotAsked: a plugin of the SDK says who it is before it serves, and is only told that it is registered.
func TestIntroducedPluginIsNotAsked(t *testing.T) {
	h := newHost(t)
	h.set(launchable("serve"))
	h.running("registration")
	log, err := h.rt.Launcher().Log("unit")
	if err != nil {
		t.Fatal(err)
	}
	printed := func(what string) func() bool {
		return func() bool {
			return slices.ContainsFunc(log.Tail(0), func(r plugin.LogRecord) bool { return r.Message == what })
		}
	}
	h.until("the line about the call", printed("called: NotifyRegistrationStatus"))
	if printed("called: GetInfo")() {
		t.Errorf("it was asked who it is: %+v", log.Tail(0))
	}
}

func TestLaunchedPluginIsStartedAgain(t *testing.T) {
	h := newHost(t)
	h.set(launchable("serve"))
	first := h.running("registration")
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.until("another life", func() bool { s := h.unit(); return s.State == plugin.StateRunning && s.PID != first.PID })
	if s := h.unit(); s.Restarts != 1 || !strings.Contains(s.LastError, "killed") {
		t.Errorf("it is %+v, want one restart because it was killed", s)
	}
	if _, err := os.Lstat(first.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of the killed process is still there: %v", err)
	}
}

func TestLaunchedPluginThatCannotRunFails(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.set(launchable("crash"))
	h.until("giving up", func() bool { return h.unit().State == plugin.StateFailed })
	if s := h.unit(); !strings.Contains(s.LastError, "the flux is empty") || !strings.Contains(s.LastError, "exit status 3") {
		t.Errorf("its last error is %q, want its exit status and last line of standard error", s.LastError)
	}
	if s := h.rt.Plugins(); len(s) != 1 || s[0].Name != "unit" || s[0].State != "failed" || s[0].Source != plugin.SourceLaunched {
		t.Errorf("plugins are %+v, want the failed one", s)
	}
	// A change of its configuration does not start one that has failed; an operator does.
	h.set(launchable("serve"))
	if err := h.rt.Launcher().Restart(t.Context(), "unit"); err != nil {
		t.Fatal(err)
	}
	if s := h.running("a new start"); s.Restarts != 0 {
		t.Errorf("after the restart by hand it is %+v, want no restarts", s)
	}
}

// TestStartDuringPause: whoever starts a plugin that waits for its next life is told what happens then.
func TestStartDuringPause(t *testing.T) {
	h := newHost(t)
	p := launchable("serve")
	program := filepath.Join(t.TempDir(), "program")
	p.Args = []string{program}
	p.Restart = plugin.RestartPolicy{Policy: plugin.RestartAlways, Backoff: plugin.Backoff{Min: patience, Max: patience}}
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	h.set(p)
	h.until("a pause", func() bool { return h.unit().State == plugin.StateBackoff })
	if err := h.rt.Launcher().Start("unit"); err != nil {
		t.Errorf("with a program that fails: %v", err)
	}
	h.until("a pause", func() bool { return h.unit().State == plugin.StateBackoff })
	if err := errors.Join(os.Remove(program), os.Symlink(os.Args[0], program)); err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Launcher().Start("unit"); err != nil {
		t.Fatal(err)
	}
	if s := h.running("the start"); s.PID == 0 {
		t.Errorf("it is %+v", s)
	}
}

func TestFailedPluginsDoNotHoldUpTheEnd(t *testing.T) {
	h := newHost(t)
	h.set(launchable("crash"))
	h.until("giving up", func() bool { return h.unit().State == plugin.StateFailed })
	if err := h.rt.Launcher().Stop("unit"); err != nil {
		t.Fatal(err)
	}
	if s := h.unit(); s.State != plugin.StateStopped {
		t.Errorf("after Stop it is %+v", s)
	}
	h.set()
	h.set(launchable("crash"))
	h.until("giving up again", func() bool { return h.unit().State == plugin.StateFailed })
	h.end()
}

func TestRefusedPluginSaysWhy(t *testing.T) {
	h := newHost(t)
	h.rt.RemoveHandler("T")
	p := launchable("serve")
	p.Restart.Window = 100 * time.Millisecond
	h.set(p)
	h.until("refusal", func() bool { return strings.Contains(h.unit().LastError, "no handler registered") })
	h.rt.AddHandler("T", patchbay.AcceptHandler())
	h.running("registration")
	h.until("recovery", func() bool { return h.unit().LastError == "" })
}

func TestBadReplacementLeavesTheOldOne(t *testing.T) {
	h := newHost(t)
	h.set(launchable("serve"))
	before := h.running("registration")
	for _, behaviour := range []string{"crash", "mute"} {
		bad := launchable(behaviour)
		bad.StartTimeout = time.Second
		h.set(bad)
		h.until("the failure of the replacement", func() bool { return strings.Contains(h.unit().ReplacementError, plugin.ErrReplacement.Error()) })
		if s := h.unit(); s.PID != before.PID || s.State != plugin.StateRunning {
			t.Errorf("after a replacement that is %s it is %+v, want process %d as before", behaviour, s, before.PID)
		}
	}
	h.set()
	h.until("its end", func() bool { return !alive(before.PID) })
	if len(h.rt.Launcher().Plugins()) != 0 {
		t.Errorf("launched plugins are %+v, want none", h.rt.Launcher().Plugins())
	}
	if err := h.rt.Launcher().Stop("unit"); !errors.Is(err, launcher.ErrUnknown) {
		t.Errorf("Stop of a plugin that is not to be launched: %v", err)
	}
}

func TestLaunchedPluginsEndWithTheRuntime(t *testing.T) {
	h := newHost(t)
	silent := launchable("mute")
	silent.Name, silent.NoSocket = "silent", true
	h.set(launchable("serve"), silent)
	pid := h.running("registration").PID
	var other int
	h.until("the other one", func() bool {
		for _, s := range h.rt.Launcher().Plugins() {
			if s.Name == "silent" && s.State == plugin.StateRunning {
				other = s.PID
			}
		}
		return other != 0
	})
	h.end()
	if alive(pid) || alive(other) {
		t.Errorf("processes %d and %d: alive %t and %t after the end of the runtime", pid, other, alive(pid), alive(other))
	}
	if left, err := filepath.Glob(filepath.Join(h.dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("the plugin directory has %q, %v", left, err)
	}
}

func TestSurvivorIsTakenOver(t *testing.T) {
	h := newHost(t)
	h.survivors = t.TempDir()
	h.end()
	h.start()
	surviving := launchable("serve")
	surviving.Survive = true
	h.set(surviving)
	before := h.running("registration")
	id := h.rt.Registry().Instances("T", "launched")[0].Info.AllocID
	h.end()
	if !alive(before.PID) {
		t.Fatalf("process %d ended with the runtime", before.PID)
	}
	h.start()
	h.set(surviving)
	after := h.running("adoption")
	if after.PID != before.PID || after.Socket != before.Socket {
		t.Errorf("after the restart it is %+v, before %+v", after, before)
	}
	if now := h.rt.Registry().Instances("T", "launched"); len(now) != 1 || now[0].Info.AllocID != id {
		t.Errorf("instances are %+v, want %s as before", now, id)
	}
	if err := h.rt.Launcher().Stop("unit"); err != nil {
		t.Fatal(err)
	}
	if alive(before.PID) {
		t.Errorf("process %d is alive after Stop", before.PID)
	}
}

func TestHungPluginIsSeenAndStartedAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := launchable("serve")
	h.set(p)
	before := h.running("registration")
	stopped := func() bool { return h.unit().State == plugin.StateUnresponsive }
	if err := syscall.Kill(before.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h.until("unresponsiveness", stopped)
	if err := syscall.Kill(before.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	h.until("recovery", func() bool { return h.unit().State == plugin.StateRunning })
	if s := h.unit(); s.PID != before.PID || s.Restarts != 0 {
		t.Errorf("after it was slow it is %+v, want process %d as before", s, before.PID)
	}

	p.Restart.Unresponsive = true
	h.set(p)
	h.until("replacement", func() bool { s := h.unit(); return s.PID != before.PID && s.State == plugin.StateRunning })
	hung := h.unit()
	if err := syscall.Kill(hung.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h.until("another life", func() bool { s := h.unit(); return s.PID != hung.PID && s.State == plugin.StateRunning })
	if alive(hung.PID) {
		t.Errorf("process %d, which hung, is alive", hung.PID)
	}
}

// TestBusyPluginIsNotHung: a plugin that handles one call at a time answers no health check during a call, and is not restarted for that.
func TestBusyPluginIsNotHung(t *testing.T) {
	t.Parallel()
	for name, upgrade := range map[string]plugin.Upgrade{"itself": plugin.UpgradeSideBySide, "behind a front": plugin.UpgradeHandover} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			p := launchable("single")
			p.Restart.Unresponsive = true
			p.Upgrade = upgrade
			h.set(p)
			before := h.running("registration")
			conn, err := h.rt.Registry().Conn(t.Context(), "T", "launched")
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				answer, err := v1beta1.NewExampleClient(conn).GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{})
				if err != nil || answer.GetError() != fmt.Sprint(before.PID) {
					t.Errorf("a call that outlasts eight health checks: %v, %v, want the answer of process %d", answer, err, before.PID)
				}
			}
			if s := h.unit(); s.PID != before.PID || s.State != plugin.StateRunning {
				t.Errorf("after the calls it is %+v, want process %d as before", s, before.PID)
			}
		})
	}
}

func TestOutdatedSurvivorIsReplaced(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.survivors = t.TempDir()
	h.end()
	h.start()
	surviving := launchable("serve")
	surviving.Survive = true
	h.set(surviving)
	before := h.running("registration")
	h.end()
	h.start()
	surviving.Env = append(surviving.Env, "CHANGED=1")
	h.set(surviving)
	h.until("the replacement", func() bool { s := h.unit(); return s.State == plugin.StateRunning && s.PID != before.PID })
	h.until("the end of the old one", func() bool { return !alive(before.PID) })
	if err := h.rt.Launcher().Stop("unit"); err != nil {
		t.Fatal(err)
	}
}

func TestRestartOfWhatDoesNotServe(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	alone := launchable("mute")
	alone.NoSocket = true
	h.set(alone)
	before := h.running("start")
	if err := h.rt.Launcher().Restart(t.Context(), "unit"); err != nil {
		t.Fatal(err)
	}
	if s := h.unit(); s.PID == before.PID || alive(before.PID) {
		t.Errorf("after the restart it is %+v, and process %d is alive: %t", s, before.PID, alive(before.PID))
	}
}

// TestProgramThatCannotBeExecuted: whoever configures it is told, and it runs as soon as it can.
func TestProgramThatCannotBeExecuted(t *testing.T) {
	h := newHost(t)
	p := launchable("serve")
	program := filepath.Join(t.TempDir(), "program")
	p.Args = []string{program}
	other := launchable("serve")
	other.Name = "other"
	err := h.rt.Launcher().Set([]launcher.Plugin{p, other})
	if !errors.Is(err, launcher.ErrProgram) || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "cannot launch plugin unit: ") {
		t.Errorf("without the program: %v", err)
	}
	h.until("the failure", func() bool { return h.unit().State == plugin.StateBlocked })
	counts := map[plugin.EventKind]int{}
	for _, e := range h.rt.LastEvents(1000) {
		if e.Name == "unit" {
			counts[e.Kind]++
		}
	}
	// It is reported once, and not tried again.
	if want := map[plugin.EventKind]int{plugin.EventFailed: 1}; !maps.Equal(counts, want) {
		t.Errorf("events %v, want %v", counts, want)
	}
	if err := os.WriteFile(program, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Launcher().Set([]launcher.Plugin{p, other}); !errors.Is(err, launcher.ErrProgram) || !errors.Is(err, os.ErrPermission) {
		t.Errorf("with a file that is no program: %v", err)
	}
	if err := errors.Join(os.Remove(program), os.Symlink(os.Args[0], program)); err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Launcher().Set([]launcher.Plugin{p, other}); err != nil {
		t.Error(err)
	}
	h.running("its start")
}

// TestExitEvents: each exit is one event, with the exit status and the last line of standard error; each back-off is one event.
func TestExitEvents(t *testing.T) {
	h := newHost(t)
	h.set(launchable("crash"))
	h.until("giving up", func() bool { return h.unit().State == plugin.StateFailed })
	counts := map[plugin.EventKind]int{}
	for _, e := range h.rt.LastEvents(1000) {
		counts[e.Kind]++
		if e.Kind != "launched" && !strings.Contains(e.Message, "exit status 3; last stderr line: cannot go on: the flux is empty") {
			t.Errorf("event %s says %q", e.Kind, e.Message)
		}
	}
	if want := map[plugin.EventKind]int{"launched": 4, "terminated": 4, "backoff": 3, "failed": 1}; !maps.Equal(counts, want) {
		t.Errorf("events %v, want %v", counts, want)
	}
}
