package journal_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/journal"
	"github.com/patchbay-dev/patchbay/plugin"
)

// kinds are all kinds of events that the journal logs, by their publisher, with the level and the state in their lines.
var kinds = map[string]map[string][2]string{
	"discovery": {
		"registered": {"INFO", "registered"}, "updated": {"INFO", "registered"}, "deregistered": {"INFO", "deregistered"},
		"superseded": {"INFO", "superseded"}, "restored": {"INFO", "restored"}, "ignored": {"INFO", "ignored"}, "released": {"INFO", ""},
		"refused": {"WARN", "refused"}, "failed": {"WARN", "backoff"}, "unreachable": {"WARN", "unreachable"}, "unlinked": {"WARN", "unlinked"},
		"degraded": {"WARN", "degraded"}, "recovered": {"INFO", "ok"},
	},
	"host": {
		"launched": {"INFO", "starting"}, "terminated": {"INFO", "terminated"}, "denied": {"WARN", ""}, "leftover": {"WARN", ""},
	},
	"launcher": {
		"failed": {"WARN", "failed"}, "stopped": {"INFO", "stopped"}, "replaced": {"INFO", "running"}, "replacing": {"INFO", "starting"},
		"ready": {"INFO", "running"}, "adopted": {"INFO", "running"}, "backoff": {"WARN", "backoff"},
		"busy": {"WARN", "backoff"}, "unresponsive": {"WARN", "unresponsive"}, "responsive": {"INFO", "running"}, "unhealthy": {"WARN", "running"},
		"healthy": {"INFO", "running"}, "idle": {"INFO", "idle"},
	},
}

// TestLines checks that every kind of event is logged in one line with the same keys, at level Warn if an operator may have to look.
func TestLines(t *testing.T) {
	source, err := os.ReadFile("../../plugin/event.go")
	if err != nil {
		t.Fatal(err)
	}
	unknown := map[string]bool{}
	for _, kind := range regexp.MustCompile(`(?m)^\tEvent\w+ +EventKind += "([^"]+)"`).FindAllSubmatch(source, -1) {
		unknown[string(kind[1])] = true
	}
	for publisher, want := range kinds {
		for kind, is := range want {
			delete(unknown, kind)
			checkLine(t, publisher, kind, is[0], is[1])
		}
	}
	// The journal does not log these kinds.
	for _, kind := range []string{"resync", "audit", "reloaded", "reload-failed", "fleet-call-denied"} {
		if !unknown[kind] {
			t.Errorf("the kind %q is not declared", kind)
		}
		delete(unknown, kind)
	}
	for kind := range unknown {
		t.Errorf("what is in the line of an event %q?", kind)
	}
}

// TestPassingLines checks that a state without an event of its own causes one event, and one line at level Debug with the same keys.
func TestPassingLines(t *testing.T) {
	for _, state := range []plugin.State{
		plugin.StateConnecting, plugin.StateWaiting, plugin.StateValidating, plugin.StateAdmitting, plugin.StateRegistering,
		plugin.StateNotifying, plugin.StateDeregistering,
	} {
		var out bytes.Buffer
		j := journal.New(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), "", nil, nil)
		j.Pass(plugin.Event{Kind: plugin.EventKind(state), Type: "T", Name: "n", Instance: "i", SocketPath: "/s"})
		j.Close()
		if past := j.Last(2); len(past) != 1 || string(past[0].Kind) != string(state) || past[0].Message == "" {
			t.Errorf("%s: the events are %v", state, past)
		}
		var got map[string]string
		if err := json.Unmarshal(out.Bytes(), &got); err != nil { // fails if there is more than one line
			t.Fatalf("%s: %v: %s", state, err, &out)
		}
		for key, want := range map[string]string{
			"level": "DEBUG", "msg": "plugin " + string(state), "event": string(state), "type": "T", "plugin": "n", "instance": "i",
			"state": string(state), "socket": "/s",
		} {
			if got[key] != want {
				t.Errorf("%s is %q, want %q", key, got[key], want)
			}
		}
		if got["reason"] == "" {
			t.Errorf("the line is %s", &out)
		}
	}
}

func checkLine(t *testing.T, publisher, kind, level, state string) {
	t.Helper()
	var out bytes.Buffer
	j := journal.New(slog.New(slog.NewJSONHandler(&out, nil)), "", nil, nil)
	defer j.Close()
	want := map[string]string{"level": level, "event": kind, "plugin": "n", "reason": "why"}
	switch publisher {
	case "host":
		j.ObserveLaunched(plugin.Event{Time: time.Now(), Kind: plugin.EventKind(kind), Name: "n", Message: "why"})
	case "launcher":
		j.ObserveLaunched(plugin.Event{Time: time.Now(), Kind: plugin.EventKind(kind), Name: "n", State: plugin.State(state), Message: "why"})
	default:
		want["type"], want["instance"] = "T", "i"
		j.Observe(plugin.Event{Time: time.Now(), Kind: plugin.EventKind(kind), Type: "T", Name: "n", Instance: "i", Message: "why"})
	}
	if state != "" {
		want["state"] = state
	}
	var got map[string]string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil { // fails if there is more than one line
		t.Fatalf("%s: %v: %s", kind, err, &out)
	}
	delete(got, "time")
	delete(got, "msg")
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s of %s: %s is %q, want %q", kind, publisher, key, got[key], value)
		}
		delete(got, key)
	}
	if len(got) > 0 {
		t.Errorf("%s of %s: the line also has %v", kind, publisher, got)
	}
	if past := j.Last(10); len(past) != 1 || string(past[0].Kind) != kind {
		t.Errorf("%s: the events are %v", kind, past)
	}
}
