package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const readme = "../README.md"

// excerpts are what stands around the blocks of Go in the README, in their order; BLOCK is the block.
var excerpts = []string{`package excerpt

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/csi"
)

func host(ctx context.Context, store dynamicplugins.StateStorage) (any, any, error) {
	BLOCK
	return info, client, err
}
`, `package excerpt

import (
	"context"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
)

type hello struct {
	v1beta1.UnimplementedExampleServer
}

func plugin(ctx context.Context) error {
	BLOCK
	return err
}
`}

// TestReadme runs and compiles every block of the README as it stands: the commands before the first section where they say that they are
// to be run, in the source; those of each section in an empty directory, with what the first ones installed.
func TestReadme(t *testing.T) {
	source, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	installed := t.TempDir()
	var shell *shell
	section, excerpt := "none yet", 0
	for _, block := range blocks(t, readme) {
		switch block.language {
		case "go":
			if excerpt >= len(excerpts) {
				t.Fatalf("README.md:%d: nothing says what stands around this block of Go: add that to this test", block.line)
			}
			compile(t, block, excerpts[excerpt])
			excerpt++
			continue
		case "console":
		default:
			t.Errorf("README.md:%d: nothing runs a block of %q: write commands as console, and Go as go", block.line, block.language)
			continue
		}
		if block.section != section {
			section = block.section
			env := []string{"PATH=" + installed + ":" + os.Getenv("PATH"), "GOBIN=" + installed, "LC_ALL=C", "TZ=UTC", "GOWORK=off"}
			dir := source
			if section != "" {
				dir = shortTempDir(t)
				env = append(env, "PATCHBAY_SOURCE="+source)
			}
			shell = newShell(t, dir, env...)
		}
		for _, step := range block.steps(t) {
			step.tryIn(t, shell)
		}
	}
	if excerpt < len(excerpts) {
		t.Errorf("README.md has %d blocks of Go, this test knows %d", excerpt, len(excerpts))
	}
}

// tryIn runs a command of the README. Commands that only look are repeated until they print what the page shows: what takes a reader a
// second to type comes at once here. They fail where the page shows that.
func (s step) tryIn(t *testing.T, in *shell) {
	t.Helper()
	looks := regexp.MustCompile(`^patchbay (list|status|events|wait)\b`).MatchString(s.command)
	fails := len(s.output) == 1 && strings.HasPrefix(s.output[0], "patchbay: ")
	shown := s
	shown.output = strings.Split(alike(strings.Join(s.output, "\n")), "\n")
	if len(s.output) == 0 {
		shown.output = nil
	}
	for end := time.Now().Add(30 * time.Second); ; {
		printed, code := in.run(s.command)
		printed = ofTheShell.ReplaceAllString(printed, "")
		right := shown.matches(alike(printed)) && fails == (code != "0")
		if right {
			return
		}
		if !looks || time.Now().After(end) {
			t.Fatalf("README.md:%d: %s: exit code %s\n%s\nThe page shows:\n%s", s.line, s.command, code, printed, strings.Join(s.output, "\n"))
		}
	}
}

// ofTheShell is what a shell says of the ends of what it started.
var ofTheShell = regexp.MustCompile(`(?m)^\S*bash: line \d+: +\d+ .*\n`)

var (
	instances = regexp.MustCompile(`\b[a-z2-7]{16}\b`)
	numbers   = regexp.MustCompile(`\d+`)
)

// alike returns a text with the same in the place of all identifiers and of all numbers: those on the page are examples.
func alike(text string) string {
	return numbers.ReplaceAllString(instances.ReplaceAllString(text, "0"), "0")
}

// compile compiles a block of Go within what stands around it.
func compile(t *testing.T, b block, around string) {
	t.Helper()
	dir := t.TempDir()
	source, err := filepath.Abs("excerpt.go")
	if err != nil {
		t.Fatal(err)
	}
	file, overlay := filepath.Join(dir, "excerpt.go"), filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(filepath.Dir(source), "..", "internal", "excerpt", "excerpt.go"): file,
	}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		overlay: string(text), file: strings.Replace(around, "BLOCK", strings.Join(b.text, "\n\t"), 1),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "./internal/excerpt")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("README.md:%d: the block does not compile: %v\n%s", b.line, err, out)
	}
}
