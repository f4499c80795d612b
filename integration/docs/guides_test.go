package docs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
)

// The modules that have what the programs of the guides import, relative to this directory.
const (
	ours       = "../.."
	forKubelet = "../../bench/kubelet"
	forNomad   = "../../bench/nomad"
)

// guides are the pages for users of another system. Each has whole programs: one before the change and one after it, or only the second if
// the other system is not available as a library.
var guides = map[string]struct {
	modules []string // of each program
	run     func(t *testing.T, program string) (string, error)
	prints  string // what the output of each program begins with
}{
	"cipd":      {[]string{ours}, runCIPD, "<nil>\npackage tools/example:0123456789012345678901234567890123456789 is not admitted"},
	"go-plugin": {[]string{ours, ours}, runGoPlugin, `"hello`},
	"kubelet":   {[]string{forKubelet, ours}, runKubelet, "registered hello\n"},
	"nomad":     {[]string{forNomad, ours}, runNomad, "client of new <nil>\nclient of old <nil>\n"},
}

// TestGuides compiles and runs the programs of every guide. Those of one guide print the same.
func TestGuides(t *testing.T) {
	pages, err := filepath.Glob("../../docs/how-to/coming-from-*.md")
	if err != nil || len(pages) != len(guides) {
		t.Fatalf("there are %d guides, and this test knows %d: %v", len(pages), len(guides), err)
	}
	for from, guide := range guides {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			page := "../../docs/how-to/coming-from-" + from + ".md"
			var sources []block
			for _, b := range blocks(t, page) {
				if b.language == "go" {
					sources = append(sources, b)
				}
			}
			if len(sources) != len(guide.modules) {
				t.Fatalf("%s has %d programs, want %d", page, len(sources), len(guide.modules))
			}
			for i, b := range sources {
				program := filepath.Join(t.TempDir(), "program")
				overlay := overlay(t, guide.modules[i], "guided/main.go", b.content())
				if err := programs.Put(t.Context(), guide.modules[i], program, false, "-overlay", overlay, "./guided"); err != nil {
					t.Fatalf("%s:%d: %v", page, b.line, err)
				}
				printed, err := guide.run(t, program)
				if err != nil || !strings.HasPrefix(printed, guide.prints) {
					t.Errorf("%s:%d: %v, %q, want %q", page, b.line, err, printed, guide.prints)
				}
			}
		})
	}
}

func goBuild(t *testing.T, module, to string, args ...string) {
	t.Helper()
	if err := programs.Put(t.Context(), module, to, false, args...); err != nil {
		t.Fatal(err)
	}
}

func runNomad(t *testing.T, program string) (string, error) {
	out, err := exec.CommandContext(t.Context(), program).Output()
	return string(out), err
}

// runCIPD asks a plugin that speaks nothing but the wire of CIPD, and one that is not there.
func runCIPD(t *testing.T, program string) (string, error) {
	plugin := filepath.Join(t.TempDir(), "plugin")
	if _, err := output(ours, nil, "go", "test", "-c", "-o", plugin, "./host"); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(t.Context(), program, plugin)
	cmd.Env = append(os.Environ(), "PATCHBAY_HOST_TEST=cipd all")
	admitted, err := cmd.Output()
	if err != nil {
		return string(admitted), err
	}
	refused, err := exec.CommandContext(t.Context(), program, filepath.Join(t.TempDir(), "no-plugin")).Output()
	return string(admitted) + string(refused), err
}

func runGoPlugin(t *testing.T, program string) (string, error) {
	plugin := filepath.Join(t.TempDir(), "kv")
	goBuild(t, ours, plugin, "github.com/hashicorp/go-plugin/examples/grpc/plugin-go-grpc")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	// The plugin of the example stores the value in a file of its working directory.
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "KV_PLUGIN="+plugin, "TMPDIR=/tmp")
	out, err := cmd.Output()
	return string(out), err
}

func runKubelet(t *testing.T, program string) (string, error) {
	hello, dir := filepath.Join(t.TempDir(), "hello"), emptyDir(t)
	goBuild(t, "../../examples", hello, "./hello")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	plugin := exec.CommandContext(ctx, hello, filepath.Join(dir, "hello.sock"))
	if err := plugin.Start(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(ctx, program, dir).Output()
	_ = plugin.Process.Kill()
	_ = plugin.Wait() // it was killed
	return string(out), err
}
