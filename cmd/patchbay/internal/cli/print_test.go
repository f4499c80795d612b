package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
)

var hostile = []string{
	"\x1b[2J\x1b]0;title\x07", "a\nb\r\tc", "\u009b31m", "\u202egnp.exe", "\xff\xfe", "\xc2", "\x00", "\x7f", "\u2028\ufeff", "\U000e0001", "",
	"plain", `back\slash "quoted"`, "Größe 漢字", strings.Repeat("x\x1b", 100),
}

func TestEscape(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"", ""},
		{"hostpath.csi.k8s.io", "hostpath.csi.k8s.io"},
		{"Größe 漢字", "Größe 漢字"},
		{`a\b"c`, `a\b"c`},
		{"\x1b[31m", `\x1b[31m`},
		{"a\nb\tc\r", `a\nb\tc\r`},
		{"\u009b", `\u009b`},
		{"\u202e", `\u202e`},
		{"\xff\x80a", `\xff\x80a`},
		{"\x7f\x00", `\x7f\x00`},
		{"\u00a0", `\u00a0`},
		{"\U000e0001", `\U000e0001`},
	} {
		if got := console.Escape(test.in); got != test.want {
			t.Errorf("escape(%q) = %q, want %q", test.in, got, test.want)
		}
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		safe := console.Escape(s)
		if !utf8.ValidString(safe) || strings.ContainsFunc(safe, unprintable) {
			t.Errorf("escape(%q) = %q", s, safe)
		}
		if console.Escape(safe) != safe {
			t.Errorf("escape(escape(%q)) = %q, want %q", s, console.Escape(safe), safe)
		}
		if utf8.ValidString(s) && !strings.ContainsFunc(s, unprintable) && safe != s {
			t.Errorf("escape(%q) = %q", s, safe)
		}
	})
}

// FuzzOutput prints a string of a plugin in every format.
func FuzzOutput(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		plugin := &patchbayv1.Plugin{Type: s, Name: s, Version: s, Versions: []string{s}, State: s, Endpoint: s, SocketPath: s, LastError: s, Reason: s}
		plugins := []*patchbayv1.Plugin{proto.CloneOf(plugin), plugin}
		plugins[0].Versions = []string{strings.ToValidUTF8(s, "\ufffd")}

		var table, status, listed, event bytes.Buffer
		for _, err := range []error{
			pluginTable(console.Terminal{}, plugins, time.Now()).Write(&table),
			writeStatus(&status, plugins, time.Now()),
			command.WriteLines(&listed, command.Names(plugins)),
			writeEvent(&event, &patchbayv1.Event{Kind: s, Type: s, Name: s, Message: s}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, text := range []string{table.String(), status.String(), listed.String(), event.String()} {
			for line := range strings.SplitSeq(text, "\n") {
				if strings.ContainsFunc(line, unprintable) || !utf8.ValidString(line) {
					t.Errorf("line %q can disturb a terminal", line)
				}
			}
		}
		if lines := strings.Count(table.String(), "\n"); lines != 3 {
			t.Errorf("the table of 2 plugins has %d lines: %q", lines, table.String())
		}
		if lines := strings.Count(event.String(), "\n"); lines != 1 {
			t.Errorf("the event has %d lines: %q", lines, event.String())
		}

		var asJSON, asYAML bytes.Buffer
		if err := command.WriteJSON(&asJSON, plugins[:1]); err != nil {
			t.Fatal(err)
		}
		if err := command.WriteYAML(&asYAML, plugins[:1]); err != nil {
			t.Fatal(err)
		}
		if bytes.IndexFunc(asJSON.Bytes(), func(r rune) bool { return r != '\n' && r <= 0xffff && unprintable(r) }) >= 0 {
			t.Errorf("JSON can disturb a terminal: %q", &asJSON)
		}
		// YAML shows characters that are merely invisible or change the direction of writing as they are.
		if bytes.IndexFunc(asYAML.Bytes(), func(r rune) bool { return r != '\n' && unicode.IsControl(r) }) >= 0 {
			t.Errorf("YAML can disturb a terminal: %q", &asYAML)
		}
		var fromJSON []struct{ Versions []string }
		if err := json.Unmarshal(asJSON.Bytes(), &fromJSON); err != nil {
			t.Fatal(err)
		}
		var tree any
		if err := yaml.Unmarshal(asYAML.Bytes(), &tree); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(plugins[0].Versions, fromJSON[0].Versions); diff != "" {
			t.Errorf("JSON changes a string (-want +got):\n%s", diff)
		}
		var all any
		if err := json.Unmarshal(asJSON.Bytes(), &all); err != nil {
			t.Fatal(err)
		}
		var allAgain any
		if err := json.Unmarshal(again, &allAgain); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(all, allAgain); diff != "" {
			t.Errorf("YAML differs from JSON (-JSON +YAML):\n%s", diff)
		}
	})
}

// TestJSONKeys holds the keys and the forms of values that scripts rely on.
func TestJSONKeys(t *testing.T) {
	at := timestamppb.New(time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC))
	for want, value := range map[string]any{
		`[{"type":"T","name":"","version":"","versions":[],"state":"","endpoint":"","socketPath":"","instance":"","source":"",` +
			`"registeredAt":null,"since":"2030-01-02T03:04:05.000000006Z","firstSeen":null,"attempts":2,"nextRetry":null,"lastError":"",` +
			`"reason":"","current":true,"roles":["r"],"details":{},"metadata":{"k":"v"},"launchedAs":"","restarts":0}]`: []*patchbayv1.Plugin{
			{Type: "T", Since: at, Attempts: 2, Current: true, Roles: []string{"r"}, Metadata: map[string]string{"k": "v"}},
		},
		`[]`: []*patchbayv1.Plugin(nil),
		`{"seq":9007199254740993,"time":null,"kind":"","type":"","name":"","instance":"","endpoint":"","socketPath":"","message":""}`: &patchbayv1.Event{
			Seq: 1<<53 + 1,
		},
		`{"conditions":[{"name":"n","status":"","message":"","since":null}],"n":1}`: map[string]any{
			"conditions": []*patchbayv1.Condition{{Name: "n"}}, "n": 1,
		},
		`{"kind":"changed","health":{"current":true,"message":"","since":null}}`: &patchbayv1.WatchFleetResponse{
			Kind: "changed", Health: &patchbayv1.FleetHealth{Current: true},
		},
		`{"resource":"","owner":"","devices":[],"time":null,"answer":{"envs":{},"mounts":[{"containerPath":"/c","hostPath":"","readOnly":false}],` +
			`"devices":[],"annotations":{},"cdiDevices":[]}}`: &patchbayv1.DeviceAllocation{
			Answer: &patchbayv1.DeviceAnswer{Mounts: []*patchbayv1.DeviceMount{{ContainerPath: "/c"}}},
		},
	} {
		var text bytes.Buffer
		if err := command.WriteJSONLine(&text, value); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSuffix(text.String(), "\n"); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestTable(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var text bytes.Buffer
	err := pluginTable(console.Terminal{}, []*patchbayv1.Plugin{
		{State: "connecting", SocketPath: "/run/patchbay/plugins/x.sock", FirstSeen: timestamppb.New(now.Add(-time.Second))},
		{
			Type: "CSIPlugin", Name: "hostpath.csi.k8s.io", Version: "1.0.0", State: "registered", Endpoint: "/csi/csi.sock",
			SocketPath: "/run/patchbay/plugins/hostpath-reg.sock", FirstSeen: timestamppb.New(now.Add(-5 * time.Hour)),
		},
		{Type: "DRAPlugin", Name: "gpu", State: "restored", RegisteredAt: timestamppb.New(now.Add(-time.Hour))},
	}, now).Write(&text)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(`
TYPE        NAME                  VERSION   STATE        ENDPOINT                       AGE
-           -                     -         connecting   /run/patchbay/plugins/x.sock   1s
CSIPlugin   hostpath.csi.k8s.io   1.0.0     registered   /csi/csi.sock                  5h
DRAPlugin   gpu                   -         restored     -                              60m
`, "\n")
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStatus(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.Local)
	var text bytes.Buffer
	err := writeStatus(&text, []*patchbayv1.Plugin{{
		Type: "CSIPlugin", Name: "a/b", State: "backoff", Reason: "Why.", Attempts: 3, LastError: "no\nluck",
		NextRetry: timestamppb.New(now.Add(4 * time.Second)), Since: timestamppb.New(now.Add(-3 * time.Minute)),
	}}, now)
	if err != nil {
		t.Fatal(err)
	}
	want := "CSIPlugin/a/b\n\nInstance 1 of 1\n" +
		"  State:            backoff\n" +
		"  Since:            " + now.Add(-3*time.Minute).Format(time.RFC3339) + " (3m ago)\n" +
		"  Reason:           Why.\n" +
		"  Failed attempts:  3\n" +
		"  Next attempt:     " + now.Add(4*time.Second).Format(time.RFC3339) + " (in 4s)\n" +
		"  Last error:       no\\nluck\n"
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:            "0s",
		0:                       "0s",
		1999 * time.Millisecond: "1s",
		119 * time.Second:       "119s",
		2 * time.Minute:         "2m",
		119 * time.Minute:       "119m",
		2 * time.Hour:           "2h",
		47 * time.Hour:          "47h",
		48 * time.Hour:          "2d",
		1000 * 24 * time.Hour:   "1000d",
	} {
		if got := console.Short(d); got != want {
			t.Errorf("short(%v) = %q, want %q", d, got, want)
		}
	}
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }
