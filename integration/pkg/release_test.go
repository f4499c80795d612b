package pkg

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// runRelease runs packaging/release with further variables.
func runRelease(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "packaging/release", args...)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestReleaseDryRun builds and signs the packages of this system with a key of its own, checks the signature as users do, and sees that
// a change to what was signed is noticed.
func TestReleaseDryRun(t *testing.T) {
	for _, program := range []string{"ssh-keygen", "sha256sum"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT TESTED: there is no %s", program)
		}
	}
	dir := t.TempDir()
	key, out := filepath.Join(dir, "key"), filepath.Join(dir, "out")
	if printed, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v\n%s", err, printed)
	}
	env := []string{"DRY_RUN=1", "OUT=" + out, "ONLY=linux/" + runtime.GOARCH}
	if printed, err := runRelease(t, env, "v0.0.1", key); err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	verify := func() error {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", `set -e
			ssh-keygen -Y verify -f release.pub -I release -n patchbay-release -s SHA256SUMS.sig < SHA256SUMS
			sha256sum --check --ignore-missing SHA256SUMS`)
		cmd.Dir = out
		return cmd.Run()
	}
	if err := verify(); err != nil {
		t.Errorf("the release is not accepted: %v", err)
	}
	sums := filepath.Join(out, "SHA256SUMS")
	content, err := os.ReadFile(sums)
	if err != nil || len(strings.Fields(string(content))) < 4 {
		t.Fatalf("checksums: %v\n%s", err, content)
	}
	if err := os.WriteFile(sums, append([]byte("0"), content[1:]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if content[0] != '0' && verify() == nil {
		t.Error("checksums that were changed are accepted")
	}
}

// TestReleaseRefuses: what is not ready is not released, and the message says what to do.
func TestReleaseRefuses(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	for _, path := range []string{key, key + ".pub"} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		version, key string
		env          []string
		want         string
	}{
		{"", key, nil, "name a version"},
		{"1.2.3", key, nil, "name a version"},
		{"v1.2.3", "", nil, "name an SSH key"},
		{"v1.2.3", key, []string{"ONLY=linux/amd64"}, "unset ONLY"},
		{"v99.99.99", key, nil, ""}, // changes, or no tag
	} {
		printed, err := runRelease(t, test.env, test.version, test.key)
		if err == nil || !strings.Contains(printed, "cannot release") || !strings.Contains(printed, test.want) {
			t.Errorf("release %q with %q: %v\n%s\nwant %q", test.version, test.key, err, printed, test.want)
		}
	}
}
