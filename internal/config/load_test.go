package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/plugin"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func defaults() Config {
	var c Config
	c.SetDefaults()
	c.PluginDirs, c.State, c.ControlSocket = []string{"/default"}, "/default.db", "/default.sock"
	return c
}

func TestDropIns(t *testing.T) {
	dir := t.TempDir()
	main := filepath.Join(dir, "x.yaml")
	sources := Sources{Defaults: defaults(), File: main, Optional: true}
	for name, text := range map[string]string{
		"conf.d/10-b.yaml": "state: /10b", "conf.d/10-a.yaml": "state: /10a", "conf.d/9.yaml": "http: /9", "conf.d/Z.yaml": "http: /Z",
		"conf.d/.hidden.yaml": "nonsense", "conf.d/a.yml": "nonsense", "conf.d/a.yaml~": "nonsense", "conf.d/a": "nonsense",
		"conf.d/below/a.yaml": "nonsense", "conf.e/a.yaml": "nonsense",
	} {
		write(t, filepath.Join(dir, name), header+text)
	}
	for _, optional := range []string{"", "x.yaml"} {
		if optional != "" {
			write(t, main, header+"controlSocket: /main")
		}
		l, err := Load(sources)
		if err != nil {
			t.Fatal(err)
		}
		var read []string
		for _, file := range l.Files {
			rel, _ := filepath.Rel(dir, file)
			read = append(read, rel)
		}
		want := []string{"conf.d/10-a.yaml", "conf.d/10-b.yaml", "conf.d/9.yaml", "conf.d/Z.yaml"}
		if optional != "" {
			want = slices.Insert(want, 0, optional)
		}
		if !slices.Equal(read, want) {
			t.Errorf("read %q, want %q", read, want)
		}
		if c := l.Config; c.State != "/10b" || c.HTTP != "/Z" || !slices.Equal(c.PluginDirs, []string{"/default"}) {
			t.Errorf("got %+v", c)
		}
	}
	if _, err := Load(Sources{Defaults: defaults()}); err != nil {
		t.Errorf("without a file: %v", err)
	}
}

func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), header)
	write(t, filepath.Join(dir, "a/conf.d/dir.yaml/x"), "")
	write(t, filepath.Join(dir, "b/conf.d"), "")
	write(t, filepath.Join(dir, "b/patchbay.yaml"), header)
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop.yaml", filepath.Join(dir, "c", "loop.yaml")); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"none.yaml":       "no such file or directory",
		"file/x.yaml":     "not a directory",
		"a/patchbay.yaml": "no such file or directory",
		"b/patchbay.yaml": "",
		"c/loop.yaml":     "too many levels of symbolic links",
	} {
		for _, optional := range []bool{true, false} {
			_, err := Load(Sources{Defaults: defaults(), File: filepath.Join(dir, file), Optional: optional})
			want := want
			if optional && (file == "none.yaml" || file == "file/x.yaml") {
				want = ""
			}
			if optional && file == "a/patchbay.yaml" {
				want = "is a directory"
			}
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s, optional %t: got %v, want %q", file, optional, err, want)
			}
		}
	}
}

// TestAllFilesAtOnce has an error in each of two files and expects both.
func TestAllFilesAtOnce(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "p.yaml"), header+"state: 5\nbogus: 1\n")
	write(t, filepath.Join(dir, "conf.d/1.yaml"), header+"http: 80\n")
	write(t, filepath.Join(dir, "conf.d/2.yaml"), "\t")
	_, err := Load(Sources{File: filepath.Join(dir, "p.yaml")})
	errs, ok := errors.AsType[Errors](err)
	if !ok || len(errs) != 4 {
		t.Fatalf("got %v, want four errors", err)
	}
	for i, want := range []string{"p.yaml:3:8: ", "p.yaml:4:1: ", "conf.d/1.yaml:3:7: ", "conf.d/2.yaml: "} {
		if !strings.HasPrefix(errs[i].Error(), filepath.Join(dir, want)) {
			t.Errorf("error %d is %v, want %s", i, errs[i], want)
		}
	}
}

// layerOf is what one layer says, in the most general form.
type layerOf struct {
	State, HTTP *string
	Dirs        []string // nil: not said
	Handlers    map[string]string
	Level       *string
	Dial        map[string]string // of types
}

func anyLayer(t *rapid.T, label string) layerOf {
	text := rapid.SampledFrom([]string{"", "/a", "/b", "/c"})
	maybe := rapid.Ptr(text, true)
	l := layerOf{
		State: maybe.Draw(t, label+" state"), HTTP: maybe.Draw(t, label+" http"),
		Level:    rapid.Ptr(rapid.SampledFrom(LogLevels), true).Draw(t, label+" level"),
		Handlers: rapid.MapOf(rapid.SampledFrom([]string{"A", "B", "C"}), text).Draw(t, label+" handlers"),
		Dial:     rapid.MapOf(rapid.SampledFrom([]string{"A", "B"}), rapid.SampledFrom([]string{"1s", "2s"})).Draw(t, label+" dial"),
	}
	if rapid.Bool().Draw(t, label+" has dirs") {
		l.Dirs = append([]string{}, rapid.SliceOfN(text, 0, 3).Draw(t, label+" dirs")...)
	}
	return l
}

// text writes a layer as a file. What is not said is left out or null.
func (l layerOf) text(t *rapid.T) string {
	file := map[string]any{"apiVersion": apiVersion, "kind": configKind, "deprecatedPluginDir": nil}
	if l.State != nil {
		file["state"] = *l.State
	}
	if l.HTTP != nil {
		file["http"] = *l.HTTP
	}
	if l.Dirs != nil {
		file["pluginDirs"] = l.Dirs
	}
	if l.Level != nil {
		file["log"] = map[string]any{"level": *l.Level, "format": nil}
	}
	file["handlers"] = l.Handlers
	types := map[string]any{}
	for ptype, dial := range l.Dial {
		types[ptype] = map[string]any{"dial": dial}
	}
	file["typeTimeouts"] = types
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestMergeOrder merges files and compares with a model that applies one assignment after another.
func TestMergeOrder(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		if err := os.RemoveAll(filepath.Join(dir, dropInDir)); err != nil {
			rt.Fatal(err)
		}
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zA-Z0-9_-]{1,3}`), 0, 4, rapid.ID[string]).Draw(rt, "names")
		for i := range names {
			names[i] += ".yaml" // part of what is sorted: a-.yaml comes before a.yaml
		}
		slices.Sort(names)
		want := defaults()
		want.Handlers = map[string]string{}
		for i, name := range append([]string{""}, names...) {
			l := anyLayer(rt, fmt.Sprintf("file %d", i))
			path := filepath.Join(dir, "patchbay.yaml")
			if i > 0 {
				path = filepath.Join(dir, dropInDir, name)
			}
			write(t, path, l.text(rt))
			for to, value := range map[*string]*string{&want.State: l.State, &want.HTTP: l.HTTP, &want.Log.Level: l.Level} {
				if value != nil {
					*to = *value
				}
			}
			if l.Dirs != nil {
				want.PluginDirs = append([]string(nil), l.Dirs...) // nil if it is empty
			}
			for ptype, kind := range l.Handlers {
				want.Handlers[ptype] = kind
			}
			if len(l.Dial) > 0 && want.TypeTimeouts == nil {
				want.TypeTimeouts = map[string]plugin.Timeouts{}
			}
			for ptype, dial := range l.Dial {
				of := want.TypeTimeouts[ptype]
				of.Dial = map[string]plugin.Timeouts{"1s": {Dial: 1e9}, "2s": {Dial: 2e9}}[dial].Dial
				want.TypeTimeouts[ptype] = of
			}
		}
		flag := rapid.Ptr(rapid.SampledFrom(LogLevels), true).Draw(rt, "flag")
		s := Sources{Defaults: defaults(), File: filepath.Join(dir, "patchbay.yaml"), Over: []Setting{
			{Path: []string{"log", "level"}, Value: "warn", Source: "environment variable X"},
			{Path: []string{"handlers", "F"}, Value: "f", Source: "flag --f"},
		}}
		want.Log.Level, want.Handlers["F"] = "warn", "f"
		if flag != nil {
			s.Over = append(s.Over, Setting{Path: []string{"log", "level"}, Value: *flag, Source: "flag --log-level"})
			want.Log.Level = *flag
		}
		l, err := Load(s)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(want, l.Config); diff != "" {
			rt.Fatalf("-want +got:\n%s", diff)
		}
		shownMeansTheSame(rt, l)
	})
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

// shownMeansTheSame reads what is shown as a file, and expects the same configuration.
func shownMeansTheSame(t fataler, l *Loaded) {
	t.Helper()
	asYAML, err := l.Effective().YAML()
	if err != nil {
		t.Fatalf("%v", err)
	}
	asJSON, err := json.Marshal(l.Effective())
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, text := range [][]byte{asYAML, asJSON} {
		tree, errs := parse("shown", text)
		if len(errs) > 0 {
			t.Fatalf("cannot read what is shown: %v\n%s", errs, text)
		}
		var got Config
		d := decoder{}
		d.decode(tree, reflect.ValueOf(&got).Elem(), "", "")
		if diff := cmp.Diff(withoutEmpty(l.Config), withoutEmpty(got)); diff != "" || len(d.errs) > 0 {
			t.Fatalf("what is shown means something else (-want +got):\n%s%v\n%s", diff, d.errs, text)
		}
	}
}

// withoutEmpty makes maps that are empty nil, and lists.
func withoutEmpty(c Config) Config {
	if len(c.PluginDirs) == 0 {
		c.PluginDirs = nil
	}
	if len(c.Handlers) == 0 {
		c.Handlers = nil
	}
	if len(c.TypeTimeouts) == 0 {
		c.TypeTimeouts = nil
	}
	if len(c.ClientTimeouts) == 0 {
		c.ClientTimeouts = nil
	}
	if len(c.Plugins) == 0 {
		c.Plugins = nil
	}
	return c
}

func FuzzParse(f *testing.F) {
	example, err := os.ReadFile(filepath.Join(docsDir, "patchbay.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{
		string(example), header, header + "---\n", "{}", "a: &a [*a]", header + "...\n", "\xff\xfe", header + "? [a]\n: b", header + "log: {level: \"\\0\"}",
		header + "state: \"\u009b\\n#\"\nhandlers: {\"\\n\": \"# x\", \"<<\": \"\"}", header + "pluginDirs: [yes, \"5\", '~', \" \", \"- a\"]",
		plugins + "limits: {memory: 0.1, cpu: 1m}\n  metadata: {'': ' '}\n",
	} {
		f.Add([]byte(text))
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		tree, errs := parse("f", text)
		for _, err := range errs {
			if err.Origin.file != "f" || !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("an error without its place: %v", err)
			}
		}
		if tree == nil && len(errs) == 0 {
			t.Fatal("neither a tree nor an error")
		}
		if len(errs) > 0 {
			return
		}
		l := &Loaded{Config: defaults(), files: tree}
		if wrong := l.finish(nil); len(wrong) > 0 {
			for _, err := range wrong {
				if !err.Origin.IsFile() {
					t.Errorf("an error without its place: %v", err)
				}
			}
			return
		}
		shownMeansTheSame(t, l)
		if _, err := l.InFiles().YAML(); err != nil {
			t.Error(err)
		}
		if _, errs := parse("f", slices.Concat(text, []byte("\nbogus: 1\n"))); len(errs) == 0 {
			t.Error("something at the end is ignored")
		}
	})
}
