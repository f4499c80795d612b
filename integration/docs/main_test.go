package docs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const repository = "https://github.com/patchbay-dev/patchbay"

var (
	// dir holds all that follows; extracted is where the Go command extracts the modules.
	dir       string
	extracted []string
	// environment is that of a user's shell: it has the module from a proxy, the program that "go install" built of it, and the repository
	// by its address. No network is used.
	environment []string
)

func TestMain(m *testing.M) {
	code := 1
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot publish what is to be tested:", err)
	} else {
		code = m.Run()
	}
	for _, left := range append(extracted, dir) {
		// The Go command makes what it extracts read-only.
		_ = filepath.WalkDir(left, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				return os.Chmod(path, 0o755)
			}
			return err
		})
		_ = os.RemoveAll(left)
	}
	os.Exit(code)
}

func prepare() (err error) {
	if dir, err = os.MkdirTemp("", "patchbay-docs"); err != nil {
		return err
	}
	// As for releases, so that everything is compiled once for both.
	if err := os.Setenv("CGO_ENABLED", "0"); err != nil {
		return err
	}
	downloaded, err := output("..", nil, "go", "env", "GOMODCACHE")
	if err != nil {
		return err
	}
	// "go mod tidy" of a user's module reads more than our modules are made of: the tests of what they import.
	if _, err := output("../..", nil, "go", "mod", "tidy", "-diff"); err != nil {
		return fmt.Errorf("cannot download what users' modules need, or go.mod is not tidy: %w", err)
	}
	proxy, clone, bin, home := filepath.Join(dir, "proxy"), filepath.Join(dir, "clone"), filepath.Join(dir, "bin"), filepath.Join(dir, "home")
	// Its time makes the version one that nobody else has.
	version, err := output("../../tools", nil, "go", "run", "./module", "-source", "..", "-out", proxy, "-epoch", "1")
	if err != nil {
		return err
	}
	for _, module := range []string{"patchbay", "patchbay/examples"} {
		extracted = append(extracted, filepath.Join(downloaded, "github.com/patchbay-dev", module+"@"+version))
	}
	cache, err := output("..", nil, "go", "env", "GOCACHE")
	if err != nil {
		return err
	}
	proxies, err := output("..", nil, "go", "env", "GOPROXY")
	if err != nil {
		return err
	}
	environment = append(os.Environ(),
		"LC_ALL=C", "TZ=UTC", "GOWORK=off", "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+home, "GOBIN="+bin,
		"GOCACHE="+cache, "GOMODCACHE="+downloaded,
		// With these, what is compiled does not depend on where a clone is: it is compiled once for all clones.
		// Without debugging information it compiles and links faster.
		"GOFLAGS=-trimpath -gcflags=all=-dwarf=false -ldflags=-s", "CGO_ENABLED=0",
		// What the module needs was downloaded before, for this test, and checked then. The machine's own proxies are for what else a user's
		// module may need.
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(downloaded, "cache", "download")+","+proxies, "GONOSUMDB=*", "GOSUMDB=off",
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=url."+clone+".insteadOf", "GIT_CONFIG_VALUE_0="+repository,
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*", "GIT_CONFIG_GLOBAL=/dev/null")
	_, err = output("..", environment, "go", "install", "github.com/patchbay-dev/patchbay/cmd/patchbay@latest")
	return errors.Join(err, os.MkdirAll(home, 0o755), commitAll(clone))
}

// commitAll makes a repository whose one commit is the working tree.
func commitAll(clone string) error {
	files, err := output("../..", nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.Trim(files, "\x00"), "\x00") {
		if err := copyFile(filepath.Join("../..", name), filepath.Join(clone, name)); err != nil {
			return err
		}
	}
	for _, command := range []string{"init -q", "add -A", "-c user.name=t -c user.email=t@example.com commit -q -m tree"} {
		if _, err := output(clone, environment, "git", strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file or a link; one that was removed, and that is not committed yet, is none.
func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755)); err != nil {
		return err
	}
	if info.Mode()&os.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		return errors.Join(err, os.Symlink(target, to))
	}
	content, err := os.ReadFile(from)
	return errors.Join(err, os.WriteFile(to, content, info.Mode().Perm()))
}

// userOf returns the environment of a user who installs programs for himself.
func userOf(t *testing.T) []string {
	t.Helper()
	bin := t.TempDir()
	return append(slices.Clone(environment), "GOBIN="+bin, "PATH="+bin+":"+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
}

// output runs a command and returns what it printed.
func output(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(context.Background(), name, args...)
	cmd.Dir, cmd.Env = dir, env
	printed, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w\n%s", cmd, err, exit.Stderr)
	}
	return strings.TrimSpace(string(printed)), err
}

// emptyDir makes a directory whose path leaves room for the name of a socket.
func emptyDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
