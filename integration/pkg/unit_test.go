package pkg

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// unit is a unit file: the values of its settings, by name, in order.
type unit map[string][]string

func readUnit(t *testing.T, path string) unit {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	u := unit{}
	for line := range strings.Lines(string(content)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			u[name] = append(u[name], value)
		}
	}
	return u
}

// one returns the value of a setting that there has to be once.
func (u unit) one(t *testing.T, name string) string {
	t.Helper()
	if len(u[name]) != 1 {
		t.Fatalf("the unit has %s=%q, want one", name, u[name])
	}
	return u[name][0]
}

// service is a service that the test runs in place of the service manager, as its unit says.
type service struct {
	t      *testing.T
	cmd    *exec.Cmd
	log    string // the path of what it writes
	notify *net.UnixConn
	exited chan struct{}
}

// startService makes the directories of a service and runs its ExecStart= line with these sockets, by name, a watchdog, and the
// capabilities of its unit.
func startService(t *testing.T, u unit, sockets map[string]*os.File) *service {
	t.Helper()
	for setting, root := range map[string]string{"RuntimeDirectory": "/run", "StateDirectory": "/var/lib"} {
		if err := os.MkdirAll(filepath.Join(root, u.one(t, setting)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "notify")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()

	// The service has to know its own process ID, which the shell it is run by has.
	words := append(confined(t, u), strings.Fields(u.one(t, "ExecStart"))...)
	knowing := []string{"-c", `export LISTEN_PID=$$ WATCHDOG_PID=$$; exec "$@"`, "sh"}
	cmd := exec.Command("/bin/sh", append(knowing, words...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var names []string
	for name, file := range sockets {
		names = append(names, name)
		cmd.ExtraFiles = append(cmd.ExtraFiles, file)
	}
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=2000000",
		fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES=" + strings.Join(names, ":"),
	}
	s := &service{t: t, cmd: cmd, log: log.Name(), notify: notify, exited: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.exited)
		_ = cmd.Wait() // stop looks at how it ended
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended unless the test failed
		<-s.exited
		_ = notify.Close()
		if t.Failed() {
			written, _ := os.ReadFile(s.log)
			t.Logf("log of the service:\n%s", written)
		}
	})
	return s
}

// confined returns the command by which a service gets the capabilities of its unit, and no more.
func confined(t *testing.T, u unit) []string {
	t.Helper()
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Logf("the service runs with all capabilities: %v", err)
		return nil
	}
	set := "-all"
	for name := range strings.FieldsSeq(u.one(t, "CapabilityBoundingSet")) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	command := []string{"setpriv", "--bounding-set=" + set, "--inh-caps=-all"}
	if u.one(t, "NoNewPrivileges") == "yes" {
		command = append(command, "--no-new-privs")
	}
	return command
}

// await waits until the service has said something to the service manager.
func (s *service) await(assignment string) {
	s.t.Helper()
	if err := s.notify.SetReadDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	var said []string
	for buffer := make([]byte, 4096); ; {
		n, err := s.notify.Read(buffer)
		if err != nil {
			s.t.Fatalf("the service has not said %s but %q: %v", assignment, said, err)
		}
		for line := range strings.Lines(string(buffer[:n])) {
			said = append(said, strings.TrimSpace(line))
			if said[len(said)-1] == assignment {
				return
			}
		}
	}
}

// reload does what the unit does to reload.
func (s *service) reload(u unit) {
	s.t.Helper()
	command := strings.ReplaceAll(u.one(s.t, "ExecReload"), "$MAINPID", fmt.Sprint(s.cmd.Process.Pid))
	words := strings.Fields(command)
	run(s.t, words[0], words[1:]...)
}

// stop ends the service as the service manager does, and fails the test unless it says so and exits with 0.
func (s *service) stop() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	s.await("STOPPING=1")
	select {
	case <-s.exited:
	case <-time.After(patience):
		s.t.Fatal("the service does not end")
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		s.t.Errorf("the service ended with %s", s.cmd.ProcessState)
	}
}
