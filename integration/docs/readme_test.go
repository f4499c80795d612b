package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readme is the page that a newcomer reads first.
const readme = "README.md"

// TestReadme runs every block of README, in its order, in one shell that begins in an empty directory, as a newcomer has it: nothing is
// installed and no proxy of this test has a version. The repository is the only thing that this test provides, as it is at no address yet.
func TestReadme(t *testing.T) {
	all := blocks(t, filepath.Join("../..", readme))
	s := newShell(t, emptyDir(t), newcomer(t))
	for _, b := range all {
		b.writeFile(t, s)
		switch {
		case b.words["needs"] == "minutes":
			b.checkRun(t)
		case b.words["needs"] != "":
			b.checkCommands(t)
		case b.language == "console":
			b.runCommands(t, s)
		case b.file() == "":
			t.Errorf("%s:%d: nothing runs a block of %q", b.page, b.line, b.language)
		}
	}
}

// newcomer returns the environment of a user who has never used Go: of its variables only those that say where to download modules from, and
// where to keep what was downloaded and compiled, which takes too long to repeat.
func newcomer(t *testing.T) []string {
	t.Helper()
	env := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		ours := strings.HasPrefix(name, "PATCHBAY_") || strings.HasPrefix(name, "GIT_") || strings.HasPrefix(name, "MAKE")
		of := strings.HasPrefix(name, "GO") && !slices.Contains([]string{"GOPROXY", "GONOPROXY", "GOPRIVATE", "GOSUMDB", "GONOSUMDB"}, name)
		return ours || of || name == "CGO_ENABLED" || name == "HOME"
	})
	home := t.TempDir()
	for _, name := range []string{"GOCACHE", "GOMODCACHE"} {
		value, err := output("..", nil, "go", "env", name)
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+value)
	}
	return append(env, "HOME="+home, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url."+filepath.Join(dir, "clone")+".insteadOf",
		"GIT_CONFIG_VALUE_0="+repository)
}

// checkRun checks that .ci/run runs the commands of a block as the page shows them.
func (b block) checkRun(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	steps, _ := b.steps(t)
	for _, s := range steps {
		if !strings.Contains(string(text), "\n\t"+s.command+" ||") {
			t.Errorf("%s:%d: .ci/run does not run %q", b.page, s.line, s.command)
		}
	}
}
