package runtime_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	hosting "github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// script is a launched plugin that is a shell script and does not serve.
func script(text string, args ...string) launcher.Plugin {
	return launcher.Plugin{
		Spec: hosting.Spec{
			Name: "unit", Args: append([]string{"/bin/sh", "-c", text, "sh"}, args...), Env: []string{"PATH=" + os.Getenv("PATH")},
		},
		NoSocket: true,
		Restart:  plugin.RestartPolicy{Policy: plugin.RestartNever},
	}
}

// TestStopTimeoutIsHowLongAPluginMayTake gives a plugin more time than any default is, which it takes, because it heeds SIGTERM only and
// then has something to do.
func TestStopTimeoutIsHowLongAPluginMayTake(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	note := filepath.Join(t.TempDir(), "note")
	p := script(`trap 'sleep 3; echo done > "$1"; exit' TERM; : > "$1"; while :; do sleep 0.1; done`, note)
	p.StopTimeout = time.Minute
	h.set(p)
	h.until("the trap", func() bool { _, err := os.Stat(note); return err == nil })
	if err := h.rt.Launcher().Stop("unit"); err != nil {
		t.Fatal(err)
	}
	if said, err := os.ReadFile(note); err != nil || string(said) != "done\n" {
		t.Errorf("the plugin left %q, %v: it was killed before its StopTimeout", said, err)
	}
}

// TestManualSurvivorIsNotForgotten adopts a plugin that is not started with the launcher, but was by an operator.
func TestManualSurvivorIsNotForgotten(t *testing.T) {
	h := newHost(t)
	h.survivors = t.TempDir()
	h.end()
	h.start()
	surviving := launchable("serve")
	surviving.Survive, surviving.Manual = true, true
	h.set(surviving)
	if err := h.rt.Launcher().Start("unit"); err != nil {
		t.Fatal(err)
	}
	before := h.running("registration")
	h.end()
	h.start()
	h.set(surviving)
	if after := h.running("adoption"); after.PID != before.PID {
		t.Errorf("after the restart it is %+v, before %+v", after, before)
	}
	if err := h.rt.Launcher().Stop("unit"); err != nil {
		t.Fatal(err)
	}
	if alive(before.PID) {
		t.Errorf("process %d is alive after Stop", before.PID)
	}
}

// TestSupersededPluginIsRunning launches two plugins that register under one name, so that often the second one has taken over before the
// launcher has looked at the first one.
func TestSupersededPluginIsRunning(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	other := launchable("serve")
	other.Name = "other"
	// stoodBack: it came so late that it was never registered, and waits behind the other one.
	stoodBack := func(socket string) bool {
		return slices.ContainsFunc(h.rt.Plugins(), func(s plugin.Status) bool {
			return s.SocketPath == socket && s.State == plugin.StateSuperseded && s.RegisteredAt.IsZero()
		})
	}
	for range 8 {
		h.set(launchable("serve"), other)
		h.until("both", func() bool {
			return !slices.ContainsFunc(h.rt.Launcher().Plugins(), func(s plugin.LaunchStatus) bool {
				return s.State != plugin.StateRunning && !stoodBack(s.Socket)
			})
		})
		h.set()
		h.until("their end", func() bool { return len(h.rt.Registry().Instances("T", "launched")) == 0 })
	}
}

// TestRemovedDirectory: a launched plugin is registered again when somebody has removed the plugin directory, or only its socket.
func TestRemovedDirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.set(launchable("serve"))
	for _, remove := range []func(socket string) error{os.Remove, func(string) error { return os.RemoveAll(h.dir) }} {
		before := h.running("registration")
		if err := remove(before.Socket); err != nil {
			t.Fatal(err)
		}
		h.within(4*patience, "another registration", func() bool { // a directory that is remade may be seen late
			s := h.unit()
			return s.State == plugin.StateRunning && s.PID != before.PID && !alive(before.PID)
		})
		h.until("one instance", func() bool {
			now := h.rt.Registry().Instances("T", "launched")
			return len(now) == 1 && now[0].Info.ConnectionInfo.SocketPath == h.unit().Socket
		})
	}
}

// TestReplacementThatEndsSaysWhy does not wait for one that has ended already.
func TestReplacementThatEndsSaysWhy(t *testing.T) {
	h := newHost(t)
	h.set(launchable("serve"))
	before := h.running("registration")
	for behaviour, why := range map[string]string{"crash": "the flux is empty", "quit": "ended by itself", "": "no such file"} {
		bad := launchable(behaviour)
		bad.StartTimeout = 10 * patience
		bad.Restart = plugin.RestartPolicy{Policy: plugin.RestartAlways, Backoff: plugin.Backoff{Min: 10 * patience}}
		if behaviour == "" {
			bad.Args = []string{filepath.Join(t.TempDir(), "nothing")}
		}
		h.set(bad)
		h.until("the failure of the replacement", func() bool { return strings.Contains(h.unit().ReplacementError, why) })
		if s := h.unit(); s.PID != before.PID {
			t.Errorf("it is %+v, want process %d as before", s, before.PID)
		}
	}
}

// TestLogRateChangesWithoutARestart lets a plugin say more, and the plugin notices nothing.
func TestLogRateChangesWithoutARestart(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := script(`i=0; while :; do i=$((i+1)); echo $i; done`)
	p.LogRate = 1
	h.set(p)
	h.until("a process", func() bool { return h.unit().PID != 0 })
	before := h.unit().PID
	log, err := h.rt.Launcher().Log("unit")
	if err != nil {
		t.Fatal(err)
	}
	h.until("drops", func() bool { return log.Stats().Dropped > 0 })
	kept := func() uint64 { s := log.Stats(); return s.Lines - s.Dropped }
	begin := kept()
	p.LogRate = -1
	h.set(p)
	h.until("more than the burst", func() bool { return kept() > begin+10_000 })
	if all := h.rt.Host().Plugins(); len(all) != 1 || all[0].PID() != before {
		t.Errorf("%d processes run, want process %d as before and no other", len(all), before)
	}
}

// TestPluginThatComesBackAwaitsItsEnd takes a plugin out of the configuration and puts it back while it still ends.
func TestPluginThatComesBackAwaitsItsEnd(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	p := script(`mkdir "$1/alone" || exit 9; trap 'sleep 0.3; rmdir "$1/alone"; exit' TERM; : > "$1/up"; while :; do sleep 0.1; done`, dir)
	p.StopTimeout = 5 * time.Second // on a busy machine what it does at its end takes long
	h.set(p)
	h.until("the trap", func() bool { _, err := os.Stat(filepath.Join(dir, "up")); return err == nil })
	before := h.unit().PID
	h.set()
	h.set(p)
	if s := h.running("its return"); s.PID == before || s.LastError != "" {
		t.Errorf("it is %+v, want another process than %d, which ran alone", s, before)
	}
}

// TestSurvivorThatCannotBeReached: it is tried again, and does not run beside another life of its plugin for longer than it has to. A
// plugin that was stopped stays so.
func TestSurvivorThatCannotBeReached(t *testing.T) {
	t.Parallel()
	const (
		startedAnew = "the plugin is restarted"
		notStarted  = "nothing was started meanwhile"
		stopped     = "the plugin was stopped"
		crashes     = "its other life does not get along with it"
		removed     = "the plugin was taken out"
		ended       = "the host has ended before"
	)
	for _, name := range []string{startedAnew, notStarted, stopped, crashes, removed, ended} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.survivors = t.TempDir()
			h.end()
			h.start()
			surviving := launchable("serve")
			if name == crashes {
				surviving = script(`mkdir "$1/alone" || exit 9; while :; do sleep 0.1; done`, t.TempDir())
				surviving.Restart = plugin.RestartPolicy{Policy: plugin.RestartAlways, Backoff: plugin.Backoff{Min: 10 * patience}}
			}
			surviving.Survive, surviving.Manual = true, name == notStarted
			h.set(surviving)
			if err := h.rt.Launcher().Start("unit"); err != nil {
				t.Fatal(err)
			}
			before := h.running("registration")
			h.end()
			mend := silence(t, h.survivors)
			h.start()
			switch name {
			case startedAnew:
				h.set(surviving)
				another := h.running("another life")
				mend()
				h.until("the end of the survivor", func() bool { return !alive(before.PID) })
				if s := h.unit(); s.PID != another.PID || !alive(another.PID) {
					t.Errorf("it was %+v and is %+v", another, s)
				}
			case notStarted:
				h.set(surviving)
				mend()
				if after := h.running("adoption"); after.PID != before.PID {
					t.Errorf("after the restart it is %+v, before %+v", after, before)
				}
			case stopped:
				h.set(surviving)
				h.running("another life")
				if err := h.rt.Launcher().Stop("unit"); err != nil {
					t.Fatal(err)
				}
				mend()
				h.until("the end of the survivor", func() bool { return !alive(before.PID) })
				if s := h.unit(); s.State != plugin.StateStopped {
					t.Errorf("it was stopped and is %+v", s)
				}
			case crashes:
				h.set(surviving)
				h.until("a crash", func() bool { return h.unit().State == plugin.StateBackoff })
				mend()
				if after := h.running("adoption"); after.PID != before.PID {
					t.Errorf("after the restart it is %+v, before %+v", after, before)
				}
			case removed:
				h.set(surviving)
				h.running("another life")
				h.set()
				mend()
				h.until("the end of the survivor", func() bool { return !alive(before.PID) })
			case ended:
				h.set(surviving)
				h.running("another life")
				h.end() // does not wait for who does not answer
				mend()
				if !alive(before.PID) {
					t.Error("the survivor did not survive")
				}
				h.start()
				h.set(surviving)
				h.running("adoption")
			}
			if name == removed {
				return
			}
			adopted := h.unit().PID == before.PID
			if err := h.rt.Launcher().Stop("unit"); err != nil {
				t.Fatal(err)
			}
			if adopted && alive(before.PID) {
				t.Errorf("process %d is alive after Stop", before.PID)
			}
			h.until("the end of the survivor", func() bool { return !alive(before.PID) })
		})
	}
}

// silence puts a socket where nobody says anything in the place of a survivor's.
func silence(t *testing.T, dir string) (mend func()) {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(dir, "*.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("the sockets of survivors are %q, %v", sockets, err)
	}
	aside := sockets[0] + ".aside"
	if err := os.Rename(sockets[0], aside); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("unix", sockets[0])
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := errors.Join(silent.Close(), os.Rename(aside, sockets[0])); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSurviveWithoutDirectory(t *testing.T) {
	h := newHost(t)
	surviving := launchable("")
	surviving.Survive = true
	err := h.rt.Launcher().Set([]launcher.Plugin{surviving})
	if err == nil || !strings.Contains(err.Error(), "set the StateDir of the host") || len(h.rt.Launcher().Plugins()) != 0 {
		t.Errorf("got %v, and %+v", err, h.rt.Launcher().Plugins())
	}
}
