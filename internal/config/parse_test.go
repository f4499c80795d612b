package config

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/plugin"
)

const header = "apiVersion: patchbay.dev/v1alpha1\nkind: Config\n"

// fromText loads one file without defaults.
func fromText(t *testing.T, text string) (*Loaded, error) {
	t.Helper()
	tree, errs := parse("f", []byte(text))
	if len(errs) > 0 {
		return nil, errs
	}
	l := &Loaded{files: tree}
	if wrong := l.finish(nil); len(wrong) > 0 {
		return l, wrong
	}
	return l, nil
}

func TestValues(t *testing.T) {
	l, err := fromText(t, header+`pluginDirs: [/a, "/b"]
deprecatedPluginDir: /c
state: '/d'
controlSocket: /e
http: localhost:80
handlers: {Mine: accept, a.b: csi}
log: {level: debug, format: text}
timeouts: {dial: 1s, getInfo: 2s, notify: 3s, handler: 4s}
typeTimeouts:
  Mine: {getInfo: 1m30s}
  Yours: {}
clientTimeouts: {Mine: 1ms, Mine/one: 2ms}
bounds: {text: 1, versions: 2, userBytes: 7, totalBytes: 8, maxDepth: 3, maxSockets: 4, maxUserDirs: 5, maxDirs: 6}
unreachableGrace: 0s
plugins:
- name: one
  command: [one]
  limits: {memory: 1024, cpu: 0.5}
  restart: {limit: 3}
  serve: false
- name: two
  command: [two]
  limits: {memory: "1Gi", cpu: 100m}
`)
	if err != nil {
		t.Fatal(err)
	}
	one := catalogue.Plugin{Name: "one", Command: []string{"one"}, Limits: catalogue.Limits{Memory: 1024, CPU: 500}}
	one.SetDefaults()
	one.Serve = false
	one.Restart.Limit = 3
	two := catalogue.Plugin{Name: "two", Command: []string{"two"}, Limits: catalogue.Limits{Memory: 1 << 30, CPU: 100}}
	two.SetDefaults()
	want := Config{
		APIVersion: apiVersion, Kind: configKind,
		PluginDirs: []string{"/a", "/b"}, DeprecatedPluginDir: "/c", State: "/d", ControlSocket: "/e", HTTP: "localhost:80",
		Handlers:       map[string]string{"Mine": "accept", "a.b": "csi"},
		Log:            Log{"debug", "text"},
		Timeouts:       plugin.Timeouts{Dial: time.Second, GetInfo: 2 * time.Second, Notify: 3 * time.Second, Handler: 4 * time.Second},
		TypeTimeouts:   map[string]plugin.Timeouts{"Mine": {GetInfo: 90 * time.Second}, "Yours": {}},
		ClientTimeouts: map[string]time.Duration{"Mine": time.Millisecond, "Mine/one": 2 * time.Millisecond},
		Bounds:         Bounds{1, 2, 7, 8, 3, 4, 5, 6},
		Plugins:        []catalogue.Plugin{one, two},
	}
	if diff := cmp.Diff(want, l.Config); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := l.Catalogue.List(); !cmp.Equal(got, want.Plugins) {
		t.Errorf("the catalogue has %v", got)
	}
	for path, want := range map[string]string{
		"pluginDirs": "f:3:13", "pluginDirs[1]": "f:3:18", "handlers.a.b": "f:8:31", "log.level": "f:9:14", "typeTimeouts.Mine.dial": "f:12:9",
		"plugins[0].restart.limit": "f:21:20", "plugins[1].stopTimeout": "f:23:3", "plugins[9].name": "f:18:1", "nothing": "default",
	} {
		if got := l.Origin(path).String(); got != want {
			t.Errorf("origin of %s: %s, want %s", path, got, want)
		}
	}
}

func TestAccepted(t *testing.T) {
	for name, text := range map[string]string{
		"header alone": header,
		"nulls":        header + "http:\nhandlers:\nlog:\ntimeouts: {dial: }\nplugins: ~\n",
		"JSON":         `{"apiVersion": "patchbay.dev/v1alpha1", "kind": "Config", "state": "/d"}`,
		"marker":       "# Comment.\n---\n" + header + "# The end.\n",
		"end marker":   header + "...\n",
		"no newline":   header + "state: /d",
		"indented":     "  apiVersion: patchbay.dev/v1alpha1\n  kind: Config",
		"block scalar": header + "state: |\n  ---\n  text",
		"byte order":   "\ufeff" + header,
		"CR LF":        strings.ReplaceAll(header, "\n", "\r\n"),
	} {
		if _, err := fromText(t, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

const plugins = header + "plugins:\n- name: a\n  command: [a]\n  "

// TestRefused has one row for each way in which a file can be wrong, with exactly what is said of it.
func TestRefused(t *testing.T) {
	keys := strings.Join(keysOf(reflect.TypeFor[Config]()), ", ")
	for text, want := range map[string]string{
		"":                           "f:1:1: apiVersion is missing: write apiVersion: patchbay.dev/v1alpha1\nf:1:1: kind is missing: write kind: Config",
		"# Nothing.\n":               "f:1:1: apiVersion is missing: write apiVersion: patchbay.dev/v1alpha1\nf:1:1: kind is missing: write kind: Config",
		"apiVersion: \nkind: Config": "f:1:1: apiVersion is missing: write apiVersion: patchbay.dev/v1alpha1",
		"apiVersion: patchbay.dev/v9\nkind: Other": `f:1:13: apiVersion is "patchbay.dev/v9": it must be patchbay.dev/v1alpha1` + "\n" +
			`f:2:7: kind is "Other": it must be Config`,
		"text": `f:1:1: the file must be a map, and is the text "text"`,
		"[]":   "f:1:1: the file must be a map, and is a list",
		"5":    `f:1:1: the file must be a map, and is the number "5"`,

		header + "bogus: 1":                           `f:3:1: unknown key "bogus": the keys here are ` + keys,
		header + "PluginDirs: [/a]":                   `f:3:1: unknown key "PluginDirs": did you mean "pluginDirs"?`,
		header + "pluginDir: [/a]":                    `f:3:1: unknown key "pluginDir": did you mean "pluginDirs"?`,
		header + "\"\": 1":                            `f:3:1: unknown key "": the keys here are ` + keys,
		header + "log: {level: info, formta: text}":   `f:3:20: unknown key "log.formta": did you mean "log.format"?`,
		header + "log: {level: info, colour: red}":    `f:3:20: unknown key "log.colour": the keys here are level, format`,
		header + "typeTimeouts: {T: {getinfo: 1s}}":   `f:3:20: unknown key "typeTimeouts.T.getinfo": did you mean "typeTimeouts.T.getInfo"?`,
		plugins + "autostrat: true":                   `f:6:3: unknown key "plugins[0].autostrat": did you mean "plugins[0].autostart"?`,
		plugins + "sha: x":                            `f:6:3: unknown key "plugins[0].sha": the keys here are name, version, command, sha256, interpreter, metadata, env, dir, protocol, type, goPlugin, limits, user, group, restart, health, upgrade, startTimeout, stopTimeout, survive, autostart, start, idle, announce, serve, logRate`,
		header + "log: {}\nlog: {}":                   `f:4:1: duplicate key "log": it is in line 3 already`,
		header + "log:\n  level: info\n  level: info": `f:5:3: duplicate key "level": it is in line 4 already`,
		header + "5: x":                               `f:3:1: a key must be a text: put it in quotes`,
		header + "[a]: x":                             `f:3:1: a key must be a text: put it in quotes`,
		header + "? {a: b}\n: x":                      `f:3:3: a key must be a text: put it in quotes`,
		header + "handlers: {true: x}":                `f:3:12: a key must be a text: put it in quotes`,

		header + "pluginDirs: /a":                      `f:3:13: pluginDirs must be a list, and is the text "/a"`,
		header + "pluginDirs: {a: b}":                  `f:3:13: pluginDirs must be a list, and is a map`,
		header + "pluginDirs: [/a, 5]":                 `f:3:18: pluginDirs[1] must be a text, and is the number "5": put it in quotes`,
		header + "pluginDirs: [/a, ]\nstate: [/d]":     `f:4:8: state must be a text, and is a list`,
		header + "pluginDirs: [~]":                     `f:3:14: pluginDirs[0] must be a text, and is empty`,
		header + "state: yes":                          "",
		header + "state: true":                         `f:3:8: state must be a text, and is the boolean "true": put it in quotes`,
		header + "state: 2026-01-01":                   `f:3:8: state must be a text, and is the value "2026-01-01": put it in quotes`,
		header + "state: !!binary aGk=":                `f:3:8: state must be a text, and is the value "aGk=": put it in quotes`,
		header + "handlers: [Mine]":                    `f:3:11: handlers must be a map, and is a list`,
		header + "handlers: {Mine: [accept]}":          `f:3:18: handlers.Mine must be a text, and is a list`,
		header + "log: info":                           `f:3:6: log must be a map, and is the text "info"`,
		header + "log: {level: loud}":                  `f:3:14: log.level is "loud": it must be one of info, debug, warn, error`,
		header + "log: {level: warning, format: JSON}": `f:3:14: log.level is "warning": it must be one of info, debug, warn, error` + "\n" + `f:3:31: log.format is "JSON": it must be one of auto, text, json: did you mean "json"?`,
		header + "timeouts: {dial: 5}":                 `f:3:18: timeouts.dial must be a duration above zero, for example 5s or 500ms, and is the number "5"`,
		header + "timeouts: {getInfo: -1s}":            `f:3:21: timeouts.getInfo must be a duration above zero, for example 5s or 500ms, and is the text "-1s"`,
		header + "timeouts: {notify: 0s}":              `f:3:20: timeouts.notify must be a duration above zero, for example 5s or 500ms, and is the text "0s"`,
		header + "timeouts: {notify: []}":              `f:3:20: timeouts.notify must be a duration above zero, for example 5s or 500ms, and is a list`,
		header + "typeTimeouts: {T: {handler: x}}":     `f:3:29: typeTimeouts.T.handler must be a duration above zero, for example 5s or 500ms, and is the text "x"`,
		header + "typeTimeouts: {T: 5s}":               `f:3:19: typeTimeouts.T must be a map, and is the text "5s"`,
		header + "clientTimeouts: {T: x}":              `f:3:21: clientTimeouts.T must be a duration above zero, for example 5s or 500ms, and is the text "x"`,
		header + "unreachableGrace: -1s":               `f:3:19: unreachableGrace must be a duration of zero or more, for example 5s or 500ms, and is the text "-1s"`,
		header + "bounds: {text: 0}":                   `f:3:16: bounds.text is 0: it must be a whole number above zero that fits into 63 bits`,
		header + "bounds: {text: -1}":                  `f:3:16: bounds.text is -1: it must be a whole number above zero that fits into 63 bits`,
		header + "bounds: {text: 9223372036854775808}": `f:3:16: bounds.text is 9223372036854775808: it must be a whole number above zero that fits into 63 bits`,
		header + "bounds: {text: 1.5}":                 `f:3:16: bounds.text must be a whole number above zero, and is the number "1.5"`,
		header + "bounds: {text: 010}":                 `f:3:16: bounds.text must be a whole number above zero, and is the number "010"`,
		header + "bounds: {text: \"1\"}":               `f:3:16: bounds.text must be a whole number above zero, and is the text "1"`,
		plugins + "autostart: \"yes\"":                 `f:6:14: plugins[0].autostart must be true or false, and is the text "yes"`,
		plugins + "autostart: [true]":                  `f:6:14: plugins[0].autostart must be true or false, and is a list`,
		plugins + "limits: {memory: lots}":             `f:6:20: plugins[0].limits.memory: "lots" is not an amount of memory, for example 512Mi, 2G or 1000000`,
		plugins + "limits: {memory: [1]}":              `f:6:20: plugins[0].limits.memory must be a text or a number, and is a list`,
		plugins + "limits: {cpu: 0}":                   `f:6:17: plugins[0].limits.cpu: "0" is not a number of processors that can be limited: it must be above zero`,
		plugins + "restart: {policy: allways}":         `f:6:21: plugins[0].restart.policy is "allways": it must be one of on-failure, always, never: did you mean "always"?`,
		plugins + "env: [A=B]":                         `f:6:8: plugins[0].env must be a map, and is a list`,
		plugins + "env: {PORT: 80}":                    `f:6:15: plugins[0].env.PORT must be a text, and is the number "80": put it in quotes`,
		plugins + "version: 1.10":                      `f:6:12: plugins[0].version must be a text, and is the number "1.10": put it in quotes`,
		header + "plugins: {a: {}}":                    `f:3:10: plugins must be a list, and is a map`,
		header + "plugins: [a]":                        `f:3:11: plugins[0] must be a map, and is the text "a"`,
		header + "plugins: [~]":                        `f:3:11: plugins[0] must be a map, and is empty`,
		header + "plugins:\n- {}":                      "f:4:3: plugins[0].name is missing\nf:4:3: plugins[0].command is missing",
		plugins + "sha256: abc":                        `f:6:11: plugins[0].sha256: "abc" is not a SHA-256 digest: it must have 64 hexadecimal digits`,
		plugins + "dir: a\n- {name: a, command: [a]}":  "f:6:8: plugins[0].dir: \"a\" must be an absolute path\n" + `f:7:10: plugins[1].name: the name "a" is that of plugins[0] too: give each plugin its own`,
		plugins + "restart: {backoff: {max: 1ms}}":     `f:6:28: plugins[0].restart.backoff.max: 1ms must not be shorter than min, which is 500ms`,
		plugins + "restart: {backoff: {min: 2m}}":      `f:6:22: plugins[0].restart.backoff.max: 1m0s must not be shorter than min, which is 2m0s`,
		header + "bogus: 1\nstate: 5\nlog: {level: 5}": `f:3:1: unknown key "bogus": the keys here are ` + keys + "\n" + `f:4:8: state must be a text, and is the number "5": put it in quotes` + "\n" + `f:5:14: log.level must be a text, and is the number "5": put it in quotes`,
		header + "---\n" + header:                      "f:3:1: something follows the first YAML document: the file may have only one",
		header + "...\nstate: /d":                      `f:4: this is not YAML: did not find expected <document start>`,
		"---\n---\n" + header:                          "f:2:1: something follows the first YAML document: the file may have only one\nf:2:1: apiVersion is missing: write apiVersion: patchbay.dev/v1alpha1\nf:2:1: kind is missing: write kind: Config",
		header + "state: *none":                        "f: this is not YAML: unknown anchor 'none' referenced",
		header + "state: &a /d":                        "f:3:8: anchors and aliases are not supported: write the value out",
		header + "state: &a /d\ncontrolSocket: *a":     "f:3:8: anchors and aliases are not supported: write the value out\nf:4:16: anchors and aliases are not supported: write the value out",
		header + "log:\n  <<: {level: info}":           "f:4:3: merge keys (<<) are not supported: write the values out",
		header + "\tstate: /d":                         "f:2: this is not YAML: found a tab character that violates indentation",
		"apiVersion: [":                                "f:1: this is not YAML: did not find expected node content",
		header + "state: \"\xff\"":                     "f: this is not YAML: invalid leading UTF-8 octet",
		header + "state: \"a":                          "f:3: this is not YAML: found unexpected end of stream",
		header + "state: /d\n state: /e":               "f:4: this is not YAML: mapping values are not allowed in this context",
		"\x00":                                         "f: this is not YAML: control characters are not allowed",
	} {
		_, err := fromText(t, text)
		if err == nil {
			err = Errors{}
		}
		if err.Error() != want {
			t.Errorf("%q:\n got %s\nwant %s", text, err, want)
		}
	}
}
