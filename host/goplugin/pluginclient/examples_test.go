package pluginclient_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// examples are the library's own hosts and plugins. A host is built as it is, but for the construction of its client.
var examples = []struct {
	name, plugin, path, env string
	runs                    [][]string // arguments
	want                    []string   // of each run; an error if it begins with "!"
}{
	{"grpc", "plugin-go-grpc", "kv", "KV_PROTO=grpc", [][]string{{"put", "k", "hello"}, {"get", "k"}}, []string{"", "hello"}},
	{"bidirectional", "plugin-go-grpc", "counter", "", [][]string{{"put", "n", "4"}, {"put", "n", "3"}, {"get", "n"}}, []string{"", "", "7"}},
	{"negotiated", "plugin-go", "kv-plugin", "KV_PROTO=grpc", [][]string{{"put", "k", "hello"}, {"get", "k"}}, []string{"", "hello"}},
	// The plugin does not answer as gRPC wants it, and the library's own client says the same of it.
	{"streaming", "plugin", "plugin/streamer", "", [][]string{{"file"}}, []string{"!cardinality violation"}},
	{"basic", "plugin", "plugin/greeter", "", [][]string{nil}, []string{"!net/rpc are not offered"}},
}

// build builds a host of the library with its client constructed by this package.
func build(t *testing.T, module, example, to string) {
	t.Helper()
	source := filepath.Join(module, "examples", example, "main.go")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	moved := strings.Replace(string(text), "plugin.NewClient(", "pluginclient.NewClient(", 1)
	if moved == string(text) {
		t.Fatalf("%s constructs no client", source)
	}
	moved = strings.Replace(moved, "import (", "import (\n\t\"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient\"", 1)
	// The package is there for the compiler only: the files of another module cannot be replaced.
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(here, "moved", "main.go"): changed}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(changed, []byte(moved), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	goBuild(t, to, "-overlay", overlay, "./moved")
}

func goBuild(t *testing.T, to string, args ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	// "go run" keeps what it has linked in the build cache, as "go build" does not. cp copies what it would run.
	cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"run", "-exec", "cp"}, args...), to)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestExamplesOfTheLibrary: the library's own hosts run with nothing changed but the construction of their client.
func TestExamplesOfTheLibrary(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/hashicorp/go-plugin").Output()
	if err != nil {
		t.Fatal(err)
	}
	module := strings.TrimSpace(string(out))
	for _, e := range examples {
		t.Run(e.name, func(t *testing.T) {
			dir := t.TempDir()
			host, plugin := filepath.Join(dir, "host"), filepath.Join(dir, e.path)
			build(t, module, e.name, host)
			goBuild(t, plugin, "github.com/hashicorp/go-plugin/examples/"+e.name+"/"+e.plugin)
			for i, args := range e.runs {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, host, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), e.env, "KV_PLUGIN="+plugin, "COUNTER_PLUGIN="+plugin, "TMPDIR=/tmp")
				out, err := cmd.CombinedOutput()
				want, fails := "", false
				if e.want != nil {
					want, fails = strings.CutPrefix(e.want[i], "!")
				}
				if (err != nil) != fails || !strings.Contains(string(out), want) {
					t.Errorf("%v: %v, %s, want %q", args, err, out, want)
				}
			}
		})
	}
}
