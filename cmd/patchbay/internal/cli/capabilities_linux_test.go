package cli_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// The users of a daemon without rights and of the plugins that it launches.
const daemonUser, pluginUser = 54321, 54322

// unprivileged is a daemon of a user without rights.
type unprivileged struct {
	t   *testing.T
	dir string
	*client.Client
}

// runUnprivileged runs a daemon with these capabilities and no others, which may launch the plugin "other" as another user. More is added
// to its configuration.
func runUnprivileged(t *testing.T, more string, capabilities ...uintptr) *unprivileged {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run as other users")
	}
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &unprivileged{t: t, dir: dir}
	config := fmt.Sprintf(`apiVersion: patchbay.dev/v1alpha1
kind: Config
pluginDirs: [%[1]s/plugins]
state: %[1]s/state.db
controlSocket: %[1]s/control.sock
handlers: {T: accept}
plugins:
  - name: other
    command: [/bin/sh, -c, "grep -E ^[UGC] /proc/self/status; trap '' TERM; while :; do sleep 1000; done"]
    user: "%[2]d"
    group: "%[2]d"
    stopTimeout: 1s
  - name: own
    command: [/bin/sh, -c, "grep -E ^[UGC] /proc/self/status; while :; do sleep 1000; done"]
`, dir, pluginUser) + more
	if err := os.WriteFile(filepath.Join(dir, "patchbay.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, daemonUser, daemonUser); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "run", "--config", filepath.Join(dir, "patchbay.yaml"))
	cmd.Args[0] = "patchbay"
	cmd.Dir = "/"
	var log strings.Builder
	cmd.Stderr = &log
	cmd.Env = []string{"HOME=" + dir, "PATH=/usr/bin:/bin", "TMPDIR=" + dir, "GORACE=atexit_sleep_ms=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: daemonUser, Gid: daemonUser}, AmbientCaps: capabilities, Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.Client = client.New(filepath.Join(dir, "control.sock"))
	t.Cleanup(func() {
		d.Close()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // that it cannot end what it has no right to is no failure here
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", log.String())
		}
	})
	d.until("the daemon runs", func() bool { _, err := d.Version(d.ctx()); return err == nil })
	return d
}

func (d *unprivileged) ctx() context.Context {
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	d.t.Cleanup(cancel)
	return ctx
}

func (d *unprivileged) until(what string, holds func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("it does not come about that %s", what)
		}
	}
}

func (d *unprivileged) launched(name string) *patchbayv1.LaunchedPlugin {
	d.t.Helper()
	all, err := d.ListLaunched(d.ctx())
	if err != nil {
		d.t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(l *patchbayv1.LaunchedPlugin) bool { return l.Name == name })
	if i < 0 {
		d.t.Fatalf("no plugin %s", name)
	}
	return all[i]
}

// status waits for the lines of proc_pid_status(5) that a launched plugin prints, and returns them by key.
func (d *unprivileged) status(name string) map[string]string {
	d.t.Helper()
	lines := map[string]string{}
	d.until(name+" has started", func() bool {
		for record, err := range d.Logs(d.ctx(), &patchbayv1.ReadLogsRequest{Name: name}) {
			if err != nil {
				d.t.Fatal(err)
			}
			key, value, _ := strings.Cut(record.Message, ":")
			lines[key] = strings.TrimSpace(value)
		}
		return lines["CapAmb"] != ""
	})
	return lines
}

var becomeOthers = []uintptr{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL, unix.CAP_CHOWN}

// TestOpensSocketsOfRootWithCapability registers plugins of root, whose sockets only root may open.
func TestOpensSocketsOfRootWithCapability(t *testing.T) {
	for _, capable := range []bool{false, true} {
		t.Run(fmt.Sprintf("CAP_DAC_OVERRIDE=%t", capable), func(t *testing.T) {
			var capabilities []uintptr
			if capable {
				capabilities = []uintptr{unix.CAP_DAC_OVERRIDE}
			}
			d := runUnprivileged(t, "", capabilities...)
			last := d.tryRoots(0o700)
			if (last.GetState() == "registered") != capable || !capable && !strings.Contains(last.GetLastError(), "permission denied") {
				t.Errorf("it is %s: %q", last.GetState(), last.GetLastError())
			}
		})
	}
}

// tryRoots has a plugin of root appear, whose socket has a mode, and returns it when the daemon has tried it.
func (d *unprivileged) tryRoots(mode os.FileMode) (last *patchbayv1.Plugin) {
	d.t.Helper()
	path := filepath.Join(d.dir, "root.sock")
	plugin := pluginwatcher.NewTestExamplePlugin("p", "T", path, "v1")
	if err := plugin.Serve(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = plugin.Stop() })
	if err := os.Chmod(path, mode); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Rename(path, filepath.Join(d.dir, "plugins", "root.sock")); err != nil {
		d.t.Fatal(err)
	}
	d.until("the socket was tried", func() bool {
		listing, err := d.List(d.ctx())
		if err != nil {
			d.t.Fatal(err)
		}
		if i := slices.IndexFunc(listing.Plugins, func(p *patchbayv1.Plugin) bool { return filepath.Base(p.SocketPath) == "root.sock" }); i >= 0 {
			last = listing.Plugins[i]
		}
		return last.GetState() == "registered" || last.GetLastError() != ""
	})
	return last
}

// TestReadsProgramsOfOthersWithCapability has an admission plugin that refuses to answer, and that is only asked about what the daemon can
// read.
func TestReadsProgramsOfOthersWithCapability(t *testing.T) {
	for name, test := range map[string]struct {
		capabilities []uintptr
		refused      string
	}{
		"with":    {[]uintptr{unix.CAP_SYS_PTRACE}, "the admission plugin ended before it answered"},
		"without": {nil, "CAP_SYS_PTRACE"},
	} {
		t.Run(name, func(t *testing.T) {
			d := runUnprivileged(t, "admission: {command: [/bin/false]}\n", test.capabilities...)
			if last := d.tryRoots(0o666); last.GetState() == "registered" || !strings.Contains(last.GetLastError(), test.refused) {
				t.Errorf("it is %s: %q, want %q", last.GetState(), last.GetLastError(), test.refused)
			}
		})
	}
}

// TestLaunchesAsOtherUsersWithCapabilities launches plugins that run as other users.
func TestLaunchesAsOtherUsersWithCapabilities(t *testing.T) {
	for name, test := range map[string]struct {
		capabilities []uintptr
		refused      string
	}{
		"all":                {becomeOthers, ""},
		"none":               {nil, "CAP_SETUID, CAP_SETGID and CAP_KILL"},
		"without CAP_SETUID": {becomeOthers[1:], "CAP_SETUID, CAP_SETGID and CAP_KILL"},
		"without CAP_SETGID": {[]uintptr{unix.CAP_SETUID, unix.CAP_KILL, unix.CAP_CHOWN}, "CAP_SETUID, CAP_SETGID and CAP_KILL"},
		"without CAP_KILL":   {[]uintptr{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN}, "CAP_SETUID, CAP_SETGID and CAP_KILL"},
		"without CAP_CHOWN":  {becomeOthers[:3], "operation not permitted"},
	} {
		t.Run(name, func(t *testing.T) {
			d := runUnprivileged(t, "", test.capabilities...)
			if test.refused != "" {
				d.until("the launch has failed", func() bool { return d.launched("other").LastError != "" })
				if got := d.launched("other").LastError; !strings.Contains(got, test.refused) {
					t.Errorf("got %q, want %q", got, test.refused)
				}
				return
			}
			status := d.status("other")
			if want := strings.Join(slices.Repeat([]string{fmt.Sprint(pluginUser)}, 4), "\t"); status["Uid"] != want || status["Gid"] != want {
				t.Errorf("it runs as user %s and group %s", status["Uid"], status["Gid"])
			}
			if stopped, err := d.Stop(d.ctx(), "other"); err != nil || stopped.Pid != 0 {
				t.Errorf("it ignores SIGTERM and is not ended: %+v, %v", stopped, err)
			}
		})
	}
}

// TestPluginsInheritNoCapability has a daemon with capabilities of its own launch plugins, as its own user and as another one.
func TestPluginsInheritNoCapability(t *testing.T) {
	d := runUnprivileged(t, "", append(slices.Clone(becomeOthers), unix.CAP_DAC_OVERRIDE)...)
	for _, name := range []string{"own", "other"} {
		status := d.status(name)
		for _, set := range []string{"CapEff", "CapPrm", "CapAmb"} {
			if strings.Trim(status[set], "0") != "" {
				t.Errorf("%s has %s %s", name, set, status[set])
			}
		}
	}
}
