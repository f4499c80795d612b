package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// schemaNode is the part of JSON Schema that the generator uses. Reading it strictly finds a keyword that this test would not check.
type schemaNode struct {
	Schema               string                 `json:"$schema"`
	ID                   string                 `json:"$id"`
	Title                string                 `json:"title"`
	Description          string                 `json:"description"`
	Default              any                    `json:"default"`
	Type                 any                    `json:"type"`
	Enum                 []string               `json:"enum"`
	Pattern              string                 `json:"pattern"`
	Minimum              *float64               `json:"minimum"`
	ExclusiveMinimum     *float64               `json:"exclusiveMinimum"`
	MinItems             int                    `json:"minItems"`
	Items                *schemaNode            `json:"items"`
	Properties           map[string]*schemaNode `json:"properties"`
	Required             []string               `json:"required"`
	AdditionalProperties json.RawMessage        `json:"additionalProperties"`
}

func readSchema(t *testing.T, text []byte) *schemaNode {
	t.Helper()
	var s schemaNode
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// check returns what in a value does not fit.
func (s *schemaNode) check(t *testing.T, path string, value any) []string {
	t.Helper()
	kind := map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Float64: "number", reflect.Slice: "array", reflect.Map: "object",
	}[reflect.ValueOf(value).Kind()]
	types, isList := s.Type.([]any)
	if !isList {
		types = []any{s.Type}
	}
	if !slices.Contains(types, any(kind)) && (kind != "integer" || !slices.Contains(types, any("number"))) {
		return []string{fmt.Sprintf("%s: %s is not %v", path, kind, types)}
	}
	var wrong []string
	number, isNumber := 0.0, true
	switch value := value.(type) {
	case int:
		number = float64(value)
	case float64:
		number = value
	default:
		isNumber = false
	}
	if isNumber && (s.Minimum != nil && number < *s.Minimum || s.ExclusiveMinimum != nil && number <= *s.ExclusiveMinimum) {
		wrong = append(wrong, path+": too small")
	}
	switch value := value.(type) {
	case string:
		if s.Enum != nil && !slices.Contains(s.Enum, value) || s.Pattern != "" && !regexp.MustCompile(s.Pattern).MatchString(value) {
			wrong = append(wrong, path+": text does not fit")
		}
	case []any:
		if len(value) < s.MinItems {
			wrong = append(wrong, path+": too few")
		}
		for i, item := range value {
			wrong = append(wrong, s.Items.check(t, fmt.Sprintf("%s[%d]", path, i), item)...)
		}
	case map[string]any:
		for _, key := range s.Required {
			if _, has := value[key]; !has {
				wrong = append(wrong, path+": "+key+" is missing")
			}
		}
		for key, item := range value {
			below := s.Properties[key]
			if below == nil && string(s.AdditionalProperties) != "false" {
				below = readSchema(t, s.AdditionalProperties)
			}
			if below == nil {
				wrong = append(wrong, path+": unknown key "+key)
				continue
			}
			wrong = append(wrong, below.check(t, path+"."+key, item)...)
		}
	}
	return wrong
}

// TestSchema has the schema and the decoder judge the same files.
func TestSchema(t *testing.T) {
	s := readSchema(t, Schema())
	if s.Schema != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("the schema is of %q", s.Schema)
	}
	valid := plugins + "sha256: " + strings.Repeat("a", 64) + "\n  limits: {memory: 1.5Gi, cpu: 2, openFiles: 3}\n"
	for text, ok := range map[string]bool{
		header: true, valid: true, header + "unreachableGrace: 0s": true, header + "admission: {command: [a, b], protocol: cipd, timeout: 5s}": true,
		header + "admission: {protocol: mine}": false, header + "admission: {command: a}": false, header + "timeouts: {dial: 1h30m}": true, header + "clientTimeouts: {A/b: 1.5s}": true,
		header + "plugins: []": true, plugins + "limits: {cpu: 0.5}": true,
		"kind: Config": false, "[]": false, header + "bogus: 1": false, header + "state: 5": false, header + "pluginDirs: /a": false,
		header + "handlers: {A: 5}": false, header + "log: {level: loud}": false, header + "log: {colour: info}": false, header + "timeouts: {dial: 5}": false,
		header + "timeouts: {dial: 5 s}": false, header + "typeTimeouts: {A: {dail: 5s}}": false, header + "bounds: {text: 0}": false,
		header + "bounds: {text: 1.5}": false, header + "plugins: [{name: a}]": false, plugins + "sha256: a": false, plugins + "autostart: \"yes\"": false,
		plugins + "restart: {policy: maybe}": false, plugins + "limits: {memory: lots}": false, plugins + "limits: {memory: 0}": false,
		header + "plugins: [{name: a/b, command: [a]}]": false, header + "plugins: [{name: a, command: []}]": false, plugins + "logRate: 0": false,
	} {
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		wrong := s.check(t, "", value)
		if (len(wrong) == 0) != ok {
			t.Errorf("%q: the schema says %q", text, wrong)
		}
		if _, err := fromText(t, text); (err == nil) != ok {
			t.Errorf("%q: the decoder says %v", text, err)
		}
	}
}

// TestExample checks the published example, and that it has every key.
func TestExample(t *testing.T) {
	path := filepath.Join(docsDir, "patchbay.yaml")
	l, err := Load(Sources{Defaults: defaults(), File: path})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := yaml.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	if wrong := readSchema(t, Schema()).check(t, "", value); len(wrong) > 0 {
		t.Errorf("the schema says %q", wrong)
	}
	var said strings.Builder
	for path := range l.origins {
		fmt.Fprintln(&said, path)
	}
	paths := regexp.MustCompile(`(?m)^typeTimeouts\.[^.\n]+`).ReplaceAllString(said.String(), "typeTimeouts.TYPE")
	paths = regexp.MustCompile(`(?m)^trust\.types\.[^.\n]+`).ReplaceAllString(paths, "trust.types.TYPE")
	paths = regexp.MustCompile(`(?m)^(plugins|fleet\.offers|fleet\.serve\.allow)\[\d\]`).ReplaceAllString(paths, "$1[]")
	for _, r := range rowsOf(t, descriptions(t), reflect.TypeFor[Config](), "", "", false) {
		// Those of one type are as those of all.
		if !strings.HasPrefix(r.key, "typeTimeouts.TYPE.") && !slices.Contains(strings.Split(paths, "\n"), r.key) {
			t.Errorf("the example does not have %s", r.key)
		}
	}
	shownMeansTheSame(t, l)
}
