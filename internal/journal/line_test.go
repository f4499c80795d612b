package journal_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/journal"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/launcher"
)

// kinds are all kinds of events, by who tells of them, with the level and the state in their lines.
var kinds = map[string]map[string][2]string{
	"../discover/machine/types.go": {
		"registered": {"INFO", "registered"}, "updated": {"INFO", "registered"}, "deregistered": {"INFO", "deregistered"},
		"superseded": {"INFO", "superseded"}, "restored": {"INFO", "restored"}, "ignored": {"INFO", "ignored"}, "released": {"INFO", ""},
		"refused": {"WARN", "refused"}, "failed": {"WARN", "backoff"}, "unreachable": {"WARN", "unreachable"}, "unlinked": {"WARN", "unlinked"},
	},
	"../discover/pipeline/watcher.go": {"degraded": {"WARN", "degraded"}, "recovered": {"INFO", "ok"}},
	"../../host/host.go": {
		"launched": {"INFO", "starting"}, "terminated": {"INFO", "terminated"}, "denied": {"WARN", ""}, "leftover": {"WARN", ""},
	},
	"../launch/machine/types.go": {
		"failed": {"WARN", "failed"}, "stopped": {"INFO", "stopped"}, "replaced": {"INFO", "running"}, "replacing": {"INFO", "starting"},
		"ready": {"INFO", "running"}, "adopted": {"INFO", "running"}, "backoff": {"WARN", "backoff"},
		"busy": {"WARN", "backoff"}, "unresponsive": {"WARN", "unresponsive"}, "responsive": {"INFO", "running"}, "unhealthy": {"WARN", "running"},
		"healthy": {"INFO", "running"}, "idle": {"INFO", "idle"},
	},
}

// TestLines: every kind of event is one line with the same keys, at the level that says whether somebody should look.
func TestLines(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^\tEvent\w+ +\S*EventKind += "([^"]+)"`)
	for file, want := range kinds {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := declared.FindAllSubmatch(source, -1)
		if len(found) != len(want) {
			t.Errorf("%s declares %d kinds of events, and %d are known here", file, len(found), len(want))
		}
		for _, kind := range found {
			kind := string(kind[1])
			is, known := want[kind]
			if !known {
				t.Errorf("what is in the line of an event %q of %s?", kind, file)
				continue
			}
			checkLine(t, file, kind, is[0], is[1])
		}
	}
}

// TestPassingLines: a state in passing is one event, and one line at level Debug with the same keys as every other.
func TestPassingLines(t *testing.T) {
	for _, state := range []reconciler.State{
		reconciler.StateConnecting, reconciler.StateWaiting, reconciler.StateValidating, reconciler.StateAdmitting, reconciler.StateRegistering,
		reconciler.StateNotifying, reconciler.StateDeregistering,
	} {
		var out bytes.Buffer
		j := journal.New(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), "", nil, nil)
		j.Pass(reconciler.Event{Kind: reconciler.EventKind(state), Type: "T", Name: "n", Instance: "i", SocketPath: "/s"})
		j.Close()
		if past := j.Last(2); len(past) != 1 || string(past[0].Kind) != string(state) || past[0].Message == "" {
			t.Errorf("%s: the events are %v", state, past)
		}
		var got map[string]string
		if err := json.Unmarshal(out.Bytes(), &got); err != nil { // of more than one line, too
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

func checkLine(t *testing.T, file, kind, level, state string) {
	t.Helper()
	var out bytes.Buffer
	j := journal.New(slog.New(slog.NewJSONHandler(&out, nil)), "", nil, nil)
	defer j.Close()
	want := map[string]string{"level": level, "event": kind, "plugin": "n", "reason": "why"}
	switch file {
	case "../../host/host.go":
		j.ObserveHost(host.Event{Time: time.Now(), Kind: host.EventKind(kind), Plugin: "n", Message: "why"})
	case "../launch/machine/types.go":
		j.ObserveLauncher(launcher.Event{Time: time.Now(), Kind: launcher.EventKind(kind), Name: "n", State: launcher.State(state), Message: "why"})
	default:
		want["type"], want["instance"] = "T", "i"
		j.Observe(reconciler.Event{Time: time.Now(), Kind: reconciler.EventKind(kind), Type: "T", Name: "n", Instance: "i", Message: "why"})
	}
	if state != "" {
		want["state"] = state
	}
	var got map[string]string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil { // of more than one line, too
		t.Fatalf("%s: %v: %s", kind, err, &out)
	}
	delete(got, "time")
	delete(got, "msg")
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s of %s: %s is %q, want %q", kind, file, key, got[key], value)
		}
		delete(got, key)
	}
	if len(got) > 0 {
		t.Errorf("%s of %s: the line also has %v", kind, file, got)
	}
	if past := j.Last(10); len(past) != 1 || string(past[0].Kind) != kind {
		t.Errorf("%s: the events are %v", kind, past)
	}
}
