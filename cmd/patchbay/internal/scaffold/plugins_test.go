package scaffold_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/scaffold"
	"github.com/patchbay-dev/patchbay/verify"
)

// TestPluginsWork builds, vets, tests and verifies one plugin of each kind, with nothing but what the source of Patchbay needs. With
// -short, it does so for one kind.
func TestPluginsWork(t *testing.T) {
	samples := scaffold.Samples
	if testing.Short() {
		samples = samples[:1]
	}
	for _, o := range samples {
		t.Run(o.Type, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "new", "plugin")
			o.Replace = scaffold.Repository
			files, err := scaffold.Render(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := scaffold.Write(dir, files); err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(dir, "bin", scaffold.BinaryName(o.Name))
			runGo(t, dir, "build", "-o", program, ".")
			runGo(t, dir, "vet", "./...")
			runGo(t, dir, "test", "-count=1", "./...")
			if out, err := exec.CommandContext(t.Context(), "gofmt", "-l", dir).CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("gofmt would change: %s %v", out, err)
			}
			verifyPlugin(t, program, o)
		})
	}
}

// runGo runs the go command without the network.
func runGo(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	// What debuggers read costs half of linking. Without cgo, what is imported is compiled once for plugins and releases.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOPROXY=off", "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=readonly -ldflags=-s", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func verifyPlugin(t *testing.T, program string, o scaffold.Options) {
	t.Helper()
	var output bytes.Buffer
	report, err := verify.Run(t.Context(), verify.Target{Command: []string{program, "{socket}"}}, verify.Options{Output: &output})
	if err != nil || report.Type != o.Type || report.Name != o.Name || !report.OK(true) {
		t.Errorf("%s/%s: %v", report.Type, report.Name, err)
		for _, r := range report.Results {
			t.Logf("%+v", r)
		}
		t.Log(&output)
	}
}
