package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/daemon"
	"github.com/patchbay-dev/patchbay/reconciler"
)

const (
	header = "apiVersion: patchbay.dev/v1alpha1\nkind: Config\n"
	full   = header + `pluginDirs: [/a, /b]
deprecatedPluginDir: /c
state: /d
controlSocket: /e
http: localhost:80
handlers: {Mine: accept, Yours: csi}
log: {level: debug, format: text}
timeouts: {dial: 1s, getInfo: 2s, notify: 3s, handler: 4s}
typeTimeouts:
  Mine: {getInfo: 1m30s}
  Yours: {}
`
)

func TestParseConfig(t *testing.T) {
	got, err := parseConfig([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	want := runOptions{
		config: daemon.Config{
			PluginDirs:          []string{"/a", "/b"},
			DeprecatedPluginDir: "/c",
			StatePath:           "/d",
			ControlSocket:       "/e",
			HTTPAddr:            "localhost:80",
			Handlers:            map[string]daemon.HandlerKind{"Mine": "accept", "Yours": "csi"},
			Timeouts:            reconciler.Timeouts{Dial: time.Second, GetInfo: 2 * time.Second, Notify: 3 * time.Second, Handler: 4 * time.Second},
			TypeTimeouts:        map[string]reconciler.Timeouts{"Mine": {GetInfo: 90 * time.Second}, "Yours": {}},
		},
		logLevel:  "debug",
		logFormat: "text",
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(runOptions{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestFileAlone(t *testing.T) {
	file, err := parseConfig([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	got := runOptions{}.with(file, func(string) bool { return false })
	if diff := cmp.Diff(file, got, cmp.AllowUnexported(runOptions{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestParseConfigAccepts(t *testing.T) {
	for name, text := range map[string]string{
		"header alone": header,
		"nulls":        header + "http:\nhandlers:\nlog:\ntimeouts: {dial: }\n",
		"JSON":         `{"apiVersion": "patchbay.dev/v1alpha1", "kind": "Config", "state": "/d"}`,
		"marker":       "# Comment.\n---\n" + header + "# The end.\n",
		"no newline":   header + "state: /d",
		"indented":     "  apiVersion: patchbay.dev/v1alpha1\n  kind: Config",
		"block scalar": header + "state: |\n  ---\n  text",
	} {
		if _, err := parseConfig([]byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseConfigErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":             "apiVersion is \"\" and kind is \"\": this version reads",
		"kind: Config": "apiVersion is \"\"",
		"apiVersion: patchbay.dev/v1alpha1\nkind: Other": "kind is \"Other\"",
		"text":                      "the file cannot be of type string",
		"[]":                        "the file cannot be of type array",
		header + "bogus: 1":         "unknown key \"bogus\"",
		header + "PluginDirs: [/a]": "unknown key \"PluginDirs\"",
		header + "\"\": 1":          "unknown key \"\"",
		header + "log: {level: info, colour: red}":  "unknown key \"log.colour\"",
		header + "typeTimeouts: {T: {getinfo: 1s}}": "unknown key \"typeTimeouts.T.getinfo\"",
		header + "kind: Config":                     "already set in map",
		header + "pluginDirs: /a":                   "pluginDirs cannot be of type string",
		header + "pluginDirs: {a: b}":               "pluginDirs cannot be of type object",
		header + "state: [/d]":                      "state cannot be of type array",
		header + "handlers: [Mine]":                 "handlers cannot be of type array",
		header + "log: {level: loud}":               "log.level is \"loud\": it must be one of info, debug, warn, error",
		header + "log: {format: xml}":               "log.format is \"xml\": it must be one of auto, text, json",
		header + "timeouts: {dial: 5}":              "timeouts.dial is \"5\": it must be a duration above zero",
		header + "timeouts: {getInfo: -1s}":         "timeouts.getInfo is \"-1s\"",
		header + "timeouts: {notify: 0s}":           "timeouts.notify is \"0s\"",
		header + "typeTimeouts: {T: {handler: x}}":  "typeTimeouts.T.handler is \"x\"",
		header + "---\n" + header:                   "something follows the first YAML document",
		header + "...\nstate: /d":                   "something follows the first YAML document",
		"---\n---\n" + header:                       "something follows the first YAML document",
		header + "state: *none":                     "unknown anchor",
		header + "\tstate: /d":                      "yaml: ",
	} {
		_, err := parseConfig([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	for _, text := range []string{full, header, header + "---\n", "{}", "a: &a [*a]", header + "...\n", "\xff\xfe", header + "? [a]\n: b"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		options, err := parseConfig(text)
		if err != nil {
			return
		}
		timeouts := []reconciler.Timeouts{options.config.Timeouts}
		for _, of := range options.config.TypeTimeouts {
			timeouts = append(timeouts, of)
		}
		for _, of := range timeouts {
			if min(of.Dial, of.GetInfo, of.Notify, of.Handler) < 0 {
				t.Errorf("a negative duration: %+v", of)
			}
		}
		if options.logLevel != "" && !slices.Contains(logLevels, options.logLevel) {
			t.Errorf("log level %q", options.logLevel)
		}
		if _, err := parseConfig(slices.Concat(text, []byte("\nbogus: 1\n"))); err == nil {
			t.Error("something at the end is ignored")
		}
	})
}
