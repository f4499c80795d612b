package config

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShownHidesArguments(t *testing.T) {
	for argument, want := range map[string]string{
		"--token=secret":   "--token=(not shown)",
		"-token=secret":    "-token=(not shown)",
		"--token":          "--token",
		"--":               "--",
		"-p":               "-p",
		"-psecret":         "-p(not shown)",
		"--{secret":        "--(not shown)",
		"--token=":         "--token=(not shown)",
		"secret":           "(not shown)",
		"--a=b\nsecret":    "(not shown)",
		"KEY=secret":       "(not shown)",
		"https://u:p@host": "(not shown)",
		"":                 "(not shown)",
	} {
		if got := withoutValue(argument); got != want {
			t.Errorf("%q is shown as %q, want %q", argument, got, want)
		}
	}
}

func TestShownHidesPasswords(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.yaml")
	write(t, file, header+`
admission: {command: [/bin/admit, --key=topsecret, topsecret]}
fleet: {etcd: {endpoints: ["https://me:topsecret@etcd:2379", "https://etcd:2379"]}}
tracing: {endpoint: "http://:top@secret@127.0.0.1:4317"}
plugins:
- {name: a, command: [/bin/prog, --token=topsecret, -v, topsecret], metadata: {page: "http://a:topsecret@b"}}
`)
	l, err := Load(Sources{Defaults: defaults(), File: file})
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.Shown().YAML()
	if err != nil {
		t.Fatal(err)
	}
	shown, err := Parse("shown", text, defaults())
	if err != nil {
		t.Fatalf("what is shown cannot be read: %v\n%s", err, text)
	}
	c := shown.Config
	diff(t, c.Admission.Command, []string{"/bin/admit", "--key=(not shown)", "(not shown)"})
	diff(t, c.Plugins[0].Command, []string{"/bin/prog", "--token=(not shown)", "-v", "(not shown)"})
	diff(t, c.Fleet.Etcd.Endpoints, []string{"https://me:(not shown)@etcd:2379", "https://etcd:2379"})
	diff(t, c.Tracing.Endpoint, "http://:(not shown)@127.0.0.1:4317")
	diff(t, c.Plugins[0].Metadata["page"], "http://a:(not shown)@b")
	diff(t, l.Config.Plugins[0].Command[1], "--token=topsecret")
}

func diff(t *testing.T, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
