package pkg

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The image holds the program that the Makefile builds, as the same linker flags name the same variables, and nothing else.
func TestContainerfile(t *testing.T) {
	content, err := os.ReadFile(absolute(t, "deploy", "container", "Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{
		"ARG": true, "FROM": true, "WORKDIR": true, "COPY": true, "RUN": true, "LABEL": true,
		"ENV": true, "ENTRYPOINT": true, "CMD": true,
	}
	var stages []string
	joined := strings.ReplaceAll(string(content), "\\\n", "")
	for line := range strings.Lines(joined) {
		instruction, arguments, _ := strings.Cut(strings.TrimSpace(line), " ")
		if instruction == "" || instruction == "#" {
			continue
		}
		if !known[instruction] {
			t.Errorf("an unknown instruction: %s", line)
		}
		if instruction == "FROM" {
			stages = append(stages, arguments)
		}
	}
	if len(stages) != 2 || stages[1] != "scratch" {
		t.Errorf("the stages are %q, want one to build and one from nothing", stages)
	}
	for _, variable := range []string{"daemon.version=${VERSION}", "daemon.commit=${COMMIT}", "CGO_ENABLED=0"} {
		if !strings.Contains(joined, variable) {
			t.Errorf("the build does not set %s", variable)
		}
	}
}

func TestImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can build an image here")
	}
	for _, program := range []string{"buildah", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s: %v", program, err)
		}
	}
	if output := run(t, absolute(t, "deploy", "container", "check"), "v0.9.1"); !strings.Contains(output, "patchbay v0.9.1 (commit 0123abc,") {
		t.Errorf("the program in the image says %q", output)
	}
}
