package pkg

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
)

// leftovers are what a purged package must not leave behind, and what must not be there before.
var leftovers = []string{
	"/usr/bin/patchbay", "/etc/patchbay", "/var/lib/patchbay", "/run/patchbay", "/usr/share/doc/patchbay",
	"/usr/lib/systemd/system/patchbay.service", "/usr/lib/systemd/system/patchbay.socket", "/usr/lib/systemd/system/patchbay-http.socket",
}

// mayInstall skips the test where the package cannot be installed, and where something of Patchbay is.
func mayInstall(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("a Debian package can only be installed by root on Linux")
	}
	for _, program := range []string{"dpkg", "dpkg-query"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s: %v", program, err)
		}
	}
	if status, err := try(t, "", "dpkg-query", "--show", "--showformat=${Status}", "patchbay"); err == nil {
		t.Skipf("the package is known on this machine already: %s", status)
	}
	for _, path := range leftovers {
		if exists(path) {
			t.Skipf("%s is there already: the package would change it", path)
		}
	}
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		t.Skip("systemd runs: it would act on the units")
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// TestInstallUpgradeRemovePurge is the life of the Debian package on this machine.
func TestInstallUpgradeRemovePurge(t *testing.T) {
	mayInstall(t)
	older, newer := deb(t, release(t, "v0.9.1")), deb(t, release(t, "v0.9.2"))
	example := filepath.Join(t.TempDir(), "plugin")
	if err := programs.Put(t.Context(), filepath.Join(repository, "examples"), example, false, "./plugin"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := try(t, "", "dpkg", "--purge", "patchbay"); err != nil {
			t.Error(err)
		}
	})

	run(t, "dpkg", "--install", older)
	checkInstalled(t)
	config := "/etc/patchbay/patchbay.yaml"
	appendTo(t, config, "\n# A line of the administrator.\n")

	// The daemon makes its sockets itself.
	service := readUnit(t, "/usr/lib/systemd/system/patchbay.service")
	daemon := startService(t, service, nil)
	daemon.await("READY=1")
	daemon.await("WATCHDOG=1")
	startExample(t, example, "/run/patchbay/plugins/hello.sock")
	run(t, "patchbay", "wait", "CSIPlugin/hello", "--for", "registered", "--timeout", patience.String())
	before := instance(t)
	daemon.reload(service)
	daemon.await("RELOADING=1")
	daemon.await("READY=1")

	// The upgrade leaves the running daemon alone, and the configuration too.
	run(t, "dpkg", "--install", newer)
	if got := run(t, "patchbay", "version"); !strings.Contains(got, "v0.9.2") {
		t.Errorf("after the upgrade the version is %s", got)
	}
	if got := instance(t); got != before {
		t.Errorf("during the upgrade the instance changed from %s to %s", before, got)
	}
	if content, err := os.ReadFile(config); err != nil || !strings.Contains(string(content), "of the administrator") {
		t.Errorf("the upgrade changed the configuration: %v\n%s", err, content)
	}
	daemon.stop()

	// The sockets are passed, as the socket units say.
	control, web := listen(t, "patchbay.socket"), listen(t, "patchbay-http.socket")
	daemon = startService(t, service, map[string]*os.File{"control": control, "http": web})
	daemon.await("READY=1")
	run(t, "patchbay", "wait", "CSIPlugin/hello", "--for", "registered", "--timeout", patience.String())
	if got := instance(t); got != before {
		t.Errorf("after the restart the instance is %s, want %s: the daemon did not remember it", got, before)
	}
	checkReady(t, web)
	daemon.stop()

	run(t, "dpkg", "--remove", "patchbay")
	if exists("/usr/bin/patchbay") || !exists(config) || !exists("/var/lib/patchbay/state.db") {
		t.Error("removal has to remove the program, and to keep the configuration and the state")
	}
	run(t, "dpkg", "--purge", "patchbay")
	for _, path := range leftovers {
		if exists(path) {
			t.Errorf("%s is left after the purge", path)
		}
	}
}

// checkInstalled looks at what the package has put where.
func checkInstalled(t *testing.T) {
	t.Helper()
	if wrong := run(t, "dpkg", "--verify", "patchbay"); wrong != "" {
		t.Errorf("files are not as they were packaged:\n%s", wrong)
	}
	installed := strings.Split(run(t, "dpkg", "--listfiles", "patchbay"), "\n")
	for _, want := range append(slices.Clone(leftovers[4:]),
		"/etc/patchbay/patchbay.yaml", "/usr/share/man/man1/patchbay.1.gz", "/usr/share/man/man1/patchbay-config-check.1.gz",
		"/usr/share/bash-completion/completions/patchbay", "/usr/share/zsh/vendor-completions/_patchbay",
		"/usr/share/fish/vendor_completions.d/patchbay.fish", "/usr/share/doc/patchbay/copyright",
		"/usr/share/doc/patchbay/changelog.Debian.gz", "/usr/share/doc/patchbay/NOTICES.gz", "/usr/share/doc/patchbay/sbom.cdx.json.gz",
	) {
		if !slices.Contains(installed, want) {
			t.Errorf("the package has no %s", want)
		}
	}
	run(t, "patchbay", "config", "check")
	if _, err := exec.LookPath("systemd-analyze"); err == nil {
		run(t, "systemd-analyze", "verify", "--man=no", "patchbay.service", "patchbay.socket", "patchbay-http.socket")
	}
	if _, err := exec.LookPath("bash"); err == nil {
		run(t, "bash", "-n", "/usr/share/bash-completion/completions/patchbay")
	}
}

// instance returns which instance of the plugin the daemon has registered.
func instance(t *testing.T) string {
	t.Helper()
	var plugins []struct{ State, Instance string }
	if err := json.Unmarshal([]byte(run(t, "patchbay", "status", "CSIPlugin/hello", "-o", "json")), &plugins); err != nil {
		t.Fatal(err)
	}
	if len(plugins) != 1 || plugins[0].State != "registered" {
		t.Fatalf("the plugin is not registered once: %v", plugins)
	}
	return plugins[0].Instance
}

// startExample starts the example plugin, which is ended with the test.
func startExample(t *testing.T, program, socket string) {
	t.Helper()
	cmd := exec.Command(program, socket, "CSIPlugin", "hello")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it runs until then
		_ = cmd.Wait()                          // how it ends is its own matter
	})
}

// listen does what systemd does for a socket unit, on a free port if it is one of TCP.
func listen(t *testing.T, name string) *os.File {
	t.Helper()
	u := readUnit(t, filepath.Join("/usr/lib/systemd/system", name))
	if got := u.one(t, "Service"); got != "patchbay.service" {
		t.Errorf("%s is a socket of %s", name, got)
	}
	network, address := "unix", u.one(t, "ListenStream")
	if !strings.HasPrefix(address, "/") {
		network, address = "tcp", "127.0.0.1:0"
	}
	if network == "unix" {
		_ = os.Remove(address) // of the daemon that ran before
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	if unix, ok := l.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false)
	}
	file, err := l.(interface{ File() (*os.File, error) }).File()
	if err = errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

// checkReady asks the daemon over the HTTP socket that was passed to it.
func checkReady(t *testing.T, web *os.File) {
	t.Helper()
	l, err := net.FileListener(web)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	defer http.DefaultClient.CloseIdleConnections()
	response, err := http.Get("http://" + l.Addr().String() + "/readyz?verbose")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("/readyz answers %s", response.Status)
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}
