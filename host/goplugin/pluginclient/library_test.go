//go:build unix

package pluginclient_test

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	library "github.com/hashicorp/go-plugin"

	"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient"
)

// A host that was written for the library moves by the construction of its client. The plugin is this test, executed again.
func ExampleNewClient() {
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{modeEnv + "=serve"}
	client := pluginclient.NewClient(&library.ClientConfig{ // was: plugin.NewClient
		HandshakeConfig:  handshake,
		Plugins:          library.PluginSet{"talker": &talkerPlugin{}},
		Cmd:              cmd,
		AllowedProtocols: []library.Protocol{library.ProtocolGRPC},
		Managed:          true,
		Logger:           hclog.NewNullLogger(),
	})
	defer client.Kill()
	protocol, err := client.Client()
	if err != nil {
		panic(err)
	}
	raw, err := protocol.Dispense("talker")
	if err != nil {
		panic(err)
	}
	fmt.Println(raw.(*talker).beCalled())
	fmt.Println(client.NegotiatedVersion(), client.Exited(), client.ReattachConfig().Protocol)
	pluginclient.CleanupClients() // all that are Managed
	// Output:
	// hello plugin <nil>
	// 3 false grpc
}

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
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as for releases, so that what is imported is compiled once for both
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

// TestTable: the guide has a row for each field, method and error of the library that a host can touch, and each row has a test.
func TestTable(t *testing.T) {
	page, err := os.ReadFile("../../../docs/how-to/go-plugin.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| in go-plugin | here | test |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	tests := declared(t, "*_test.go")
	listed := map[string]bool{}
	name := regexp.MustCompile("`([^`]+)`")
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		if len(cells) != 3 {
			t.Fatalf("%d cells: %s", len(cells), row)
		}
		for _, field := range name.FindAllStringSubmatch(cells[0], -1) {
			listed[field[1]] = true
		}
		shown := name.FindAllStringSubmatch(cells[2], -1)
		if len(shown) == 0 {
			t.Errorf("no test: %s", row)
		}
		for _, test := range shown {
			if !tests[test[1]] {
				t.Errorf("there is no %s: %s", test[1], row)
			}
		}
	}
	for _, want := range append(touched(), errorsOf(t)...) {
		if !listed[want] {
			t.Errorf("the table has no %s", want)
		}
	}
}

// touched returns the fields and methods that a host can touch.
func touched() []string {
	var names []string
	for prefix, value := range map[string]any{
		"": library.ClientConfig{}, "Cmd.": exec.Cmd{}, "ReattachConfig.": library.ReattachConfig{}, "SecureConfig.": library.SecureConfig{},
		"UnixSocketConfig.": library.UnixSocketConfig{}, "GRPCClient.": library.GRPCClient{},
	} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(value)) {
			// Those of these types have rows of their own.
			if field.IsExported() && !field.Anonymous && prefix+field.Name != "Cmd" && field.Name != "SecureConfig" && field.Name != "UnixSocketConfig" {
				names = append(names, prefix+field.Name)
			}
		}
	}
	for prefix, of := range map[string]reflect.Type{
		"Client.": reflect.TypeFor[*library.Client](), "ClientProtocol.": reflect.TypeFor[library.ClientProtocol](),
	} {
		for i := range of.NumMethod() {
			names = append(names, prefix+of.Method(i).Name)
		}
	}
	return append(names, "NewClient", "CleanupClients", "Killed")
}

// errorsOf returns the names of the library's errors.
func errorsOf(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/hashicorp/go-plugin").Output()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range declared(t, filepath.Join(strings.TrimSpace(string(out)), "client.go")) {
		if strings.HasPrefix(name, "Err") {
			names = append(names, name)
		}
	}
	return names
}

// declared returns the names that Go files declare.
func declared(t *testing.T, pattern string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				names[decl.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					if value, ok := spec.(*ast.ValueSpec); ok {
						for _, name := range value.Names {
							names[name.Name] = true
						}
					}
				}
			}
		}
	}
	return names
}
