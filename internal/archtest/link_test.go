package archtest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestHostLinksNoExample builds a host that uses the runtime and nothing else, and asks it what it was linked with: the example plugin, whose
// protobuf files register themselves, must not be in the program of a host that does not use it.
func TestHostLinksNoExample(t *testing.T) {
	build := exec.CommandContext(t.Context(), "go", "run", "./testdata/host")
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		t.Fatalf("cannot run the host: %v", err)
	}
	registers := false
	for line := range strings.Lines(string(out)) {
		registers = registers || strings.HasSuffix(line, " pluginregistration\n")
		if strings.Contains(line, "example") {
			t.Errorf("the host is linked with %s", line)
		}
	}
	if !registers {
		t.Errorf("the host does not even have the registration protocol:\n%s", out)
	}
}

// TestReferenceNames compiles a program that uses every name of the documented APIs of the kubelet, Nomad and CIPD.
func TestReferenceNames(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", os.DevNull, "./testdata/reference").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
