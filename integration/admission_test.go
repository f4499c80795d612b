package integration

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The example with the signed list decides who may register, as its README has it configured.
func TestAdmissionExample(t *testing.T) {
	if err := buildExamples(); err != nil {
		t.Fatal(err)
	}
	dir := shortTempDir(t)
	admission := filepath.Join(bin, "admission")
	output := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), admission, args...).Output()
		if err != nil {
			t.Fatalf("admission %v: %v", args, err)
		}
		return string(out)
	}
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	program, err := os.ReadFile(filepath.Join(bin, "hello"))
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "key")
	publicKey := strings.TrimSpace(output("keygen", key))
	allowed := write("allowed", fmt.Sprintf("hello %x\n", sha256.Sum256(program)))
	signed := write("allowed.signed", output("sign", key, allowed))
	config := write("patchbay.yaml", fmt.Sprintf(`apiVersion: patchbay.dev/v1alpha1
kind: Config
handlers: {ExamplePlugin: accept}
admission:
  command: [%s, --list, %s, --public-key, %s]
`, admission, signed, publicKey))

	// It is no startDaemon, because what it refuses is worth a warning.
	d := &daemon{dir: filepath.Join(dir, "plugins"), control: filepath.Join(dir, "control.sock")}
	d.process = start(t, nil, "patchbay", "run", "--plugin-dir", d.dir, "--state", filepath.Join(dir, "state.db"),
		"--control-socket", d.control, "--log-format", "json", "--config", config)
	d.waitForLine("plugin directories have been searched")
	start(t, nil, "hello", filepath.Join(d.dir, "hello.sock"))
	d.wait("ExamplePlugin/hello", "registered")
	startHostdir(t, filepath.Join(d.dir, "hostdir.sock"), t.TempDir())
	if line := d.waitForLine("plugin refused"); !strings.Contains(line, "hostdir.example.com is not in the signed list") {
		t.Errorf("the daemon says %s", line)
	}
}
