package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/client"
)

// unwritableEnv makes the test binary mount small file systems in the directory that it names.
const unwritableEnv = "PATCHBAY_CLI_TEST_UNWRITABLE"

// TestUnwritable runs daemons whose plugin directory, state file, control socket or temporary directory is on a file system that is full or
// read-only. A daemon that cannot run exits with an error that names the path and says what to do, and changes no file. Otherwise its
// launched plugin has that error.
func TestUnwritable(t *testing.T) {
	if dir := os.Getenv(unwritableEnv); dir != "" {
		for name, spoil := range map[string]func(string) error{"read-only file system": remountReadOnly, "no space left on device": fill} {
			testUnwritable(t, filepath.Join(dir, name[:2]), name, spoil)
		}
		return
	}
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestUnwritable$", "-test.v")
	cmd.Env = append(os.Environ(), unwritableEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, fs.ErrPermission):
		t.Skipf("no mount namespace is available: %v", err)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	default:
		t.Logf("%s", out)
	}
}

func remountReadOnly(dir string) error {
	return syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
}

// fill leaves neither a block nor an inode.
func fill(dir string) error {
	for i := 0; ; i++ {
		err := os.WriteFile(filepath.Join(dir, fmt.Sprint("filler", i)), make([]byte, 1<<17), 0o600)
		if err != nil {
			if _, serr := os.Lstat(filepath.Join(dir, fmt.Sprint("filler", i))); serr != nil {
				return nil //nolint:nilerr // it is full
			}
		}
	}
}

// testUnwritable covers one kind of file system, which is mounted below dir for each path.
func testUnwritable(t *testing.T, dir, says string, spoil func(string) error) {
	for _, c := range []struct{ setting, name, wants string }{
		{"pluginDirs", "new", "cannot create plugin directory"},
		{"state", "new.db", "cannot create state file"},
		{"controlSocket", "c.sock", "cannot serve the control API"},
		{"state", "old.db", "cannot open state file"},
		{"pluginDirs", "old", ""}, // the daemon runs
		{"tmp", ".", ""},
	} {
		t.Run(says+", "+c.setting+" "+c.name, func(t *testing.T) {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, "u"), 0o700), syscall.Mount("tmpfs", filepath.Join(dir, "u"), "tmpfs", 0,
				"size=512k,nr_inodes=64,mode=755")); err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			defer func() { _ = syscall.Unmount(filepath.Join(dir, "u"), syscall.MNT_DETACH) }()
			d := &unwritable{t: t, dir: dir, settings: map[string]string{
				"pluginDirs": filepath.Join(dir, "p"), "state": filepath.Join(dir, "s.db"), "controlSocket": filepath.Join(dir, "c.sock"), "tmp": dir,
			}}
			d.settings[c.setting] = filepath.Join(dir, "u", c.name)
			runs := c.wants == ""
			switch c.name {
			case "old":
				if err := os.Mkdir(d.settings["pluginDirs"], 0o700); err != nil {
					t.Fatal(err)
				}
			case "old.db":
				d.runs("") // and makes the file
				runs = strings.HasPrefix(says, "no space")
			}
			before, _ := os.ReadFile(d.settings["state"])
			if err := spoil(filepath.Join(dir, "u")); err != nil {
				t.Fatal(err)
			}
			switch {
			case !runs:
				d.fails(c.wants, says)
			case c.setting == "state":
				d.runs("")
				d.runs("") // with what the first left
			default:
				d.runs(says)
			}
			if after, _ := os.ReadFile(d.settings["state"]); !runs && !bytes.Equal(before, after) {
				t.Error("the state file has changed")
			}
		})
	}
}

// unwritable is a daemon with these settings.
type unwritable struct {
	t        *testing.T
	dir      string
	settings map[string]string
}

func (d *unwritable) command(ctx context.Context) *exec.Cmd {
	d.t.Helper()
	config := filepath.Join(d.dir, "c.yaml")
	text := fmt.Sprintf("apiVersion: patchbay.dev/v1alpha1\nkind: Config\npluginDirs: [%s]\nstate: %s\ncontrolSocket: %s\n"+
		"handlers: {ExamplePlugin: accept}\nplugins:\n- {name: l, command: [hello], env: {HELLO_NAME: launched}, autostart: true}\n",
		d.settings["pluginDirs"], d.settings["state"], d.settings["controlSocket"])
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "patchbay", "run", "--config", config)
	cmd.Env = append(os.Environ(), "TMPDIR="+d.settings["tmp"])
	return cmd
}

// fails runs a daemon that exits and says in one line why.
func (d *unwritable) fails(wants ...string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	out, err := d.command(ctx).CombinedOutput()
	exit, exited := errors.AsType[*exec.ExitError](err)
	if !exited || exit.ExitCode() != 1 || bytes.Count(out, []byte("\n")) != 1 {
		d.t.Errorf("it ends with %v and prints %s", err, out)
	}
	for _, want := range append(wants, "; choose another ") {
		if !bytes.Contains(out, []byte(want)) {
			d.t.Errorf("it prints %q, want %q", out, want)
		}
	}
	d.t.Logf("%s", bytes.TrimSpace(out))
}

// runs runs a daemon until its launched plugin is registered or, if wants is not empty, until it says why that cannot be launched.
func (d *unwritable) runs(wants string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	cmd := d.command(ctx)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || ctx.Err() != nil {
			d.t.Errorf("the daemon ends with %v: %s", err, &stderr)
		}
	}()
	cl := client.New(d.settings["controlSocket"])
	defer cl.Close()
	for ctx.Err() == nil {
		launched, err := cl.ListLaunched(ctx)
		if err == nil && len(launched) == 1 {
			l := launched[0]
			if wants == "" && l.State == "running" || wants != "" && strings.Contains(l.LastError, wants) {
				d.t.Logf("%s: %s", l.State, l.LastError)
				return
			}
		}
	}
	d.t.Errorf("the launched plugin is not as it should be, want %q", wants)
}
