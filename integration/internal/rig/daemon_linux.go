package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/client"
)

// Daemon is a patchbay daemon as a process, with everything that it has in one directory. Its methods are not for concurrent use, but for
// Address, PID, Signal, Usage, Errors and the client.
type Daemon struct {
	// Program is patchbay, and Dir the directory, with its configuration in config.yaml.
	Program, Dir string
	// Files limits its open files; 0 leaves the limit as it is.
	Files int
	// Env is added to the environment.
	Env []string
	// Client calls the daemon.
	Client *client.Client

	cmd    *exec.Cmd
	logged chan struct{}

	mu      sync.Mutex
	pid     int
	address string
	errors  []string
	last    []string // lines of the log
}

// NewDaemon returns a daemon that does not run, and makes its plugin directory.
func NewDaemon(program, dir string) (*Daemon, error) {
	d := &Daemon{Program: program, Dir: dir, Client: client.New(filepath.Join(dir, "control.sock"))}
	return d, os.MkdirAll(d.Plugins(), 0o750)
}

// Plugins returns the plugin directory.
func (d *Daemon) Plugins() string { return filepath.Join(d.Dir, "plugins") }

// Dispense returns the directory of the stable sockets.
func (d *Daemon) Dispense() string { return filepath.Join(d.Dir, "dispense") }

// Configure writes the configuration: where everything is, and more.
func (d *Daemon) Configure(more string) error {
	text := fmt.Sprintf(`apiVersion: patchbay.dev/v1alpha1
kind: Config
pluginDirs: [%[1]s/plugins]
state: %[1]s/state/state.db
controlSocket: %[1]s/control.sock
dispenseDir: %[1]s/dispense
http: 127.0.0.1:0
`, d.Dir)
	// In one step: a reload may be under way.
	path := filepath.Join(d.Dir, "config.yaml")
	return errors.Join(os.WriteFile(path+".new", []byte(text+more), 0o600), os.Rename(path+".new", path))
}

// Start starts the daemon and returns when it has searched its plugin directory.
func (d *Daemon) Start(ctx context.Context) error {
	args := []string{d.Program, "run", "--config", filepath.Join(d.Dir, "config.yaml"), "--log-format", "json"}
	if d.Files > 0 {
		args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$@"`, d.Files), "sh"}, args...)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), args[0], args[1:]...)
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), d.Env...)
	// It outlives no caller, and an interrupt at the terminal is the caller's to pass on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.cmd, d.logged = cmd, make(chan struct{})
	d.mu.Lock()
	d.pid, d.address, d.last = cmd.Process.Pid, "", nil
	d.mu.Unlock()
	searched := make(chan struct{})
	go func() {
		defer close(d.logged)
		d.follow(stderr, sync.OnceFunc(func() { close(searched) }))
	}()
	select {
	case <-searched:
		return nil
	case <-d.logged:
		err = errors.New("it has ended")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	d.Kill()
	return fmt.Errorf("cannot start the daemon: %w; it said last:\n%s", err, strings.Join(d.last, "\n"))
}

// follow reads the log.
func (d *Daemon) follow(log io.Reader, searched func()) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var entry struct{ Level, Msg, Address string }
		notJSON := json.Unmarshal(lines.Bytes(), &entry) != nil
		d.mu.Lock()
		if d.last = append(d.last, lines.Text()); len(d.last) > 20 {
			d.last = d.last[10:]
		}
		if notJSON {
			d.errors = append(d.errors, lines.Text())
		}
		if entry.Msg == "serving HTTP" {
			d.address = entry.Address
		}
		d.mu.Unlock()
		if strings.Contains(entry.Msg, "plugin directories have been searched") {
			searched()
		}
	}
	_, _ = io.Copy(io.Discard, log) // after a line that is too long
}

// Errors returns what the daemon has written beside its log since the last call: panics, and what the race detector has found.
func (d *Daemon) Errors() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() { d.errors = nil }()
	return d.errors
}

// Log returns the last lines of its log.
func (d *Daemon) Log() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.last, "\n")
}

// PID returns the process of the daemon that was started last.
func (d *Daemon) PID() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pid
}

// Address returns where it serves HTTP.
func (d *Daemon) Address() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.address
}

// Signal sends a signal to the daemon.
func (d *Daemon) Signal(signal syscall.Signal) error { return syscall.Kill(d.PID(), signal) }

// Kill kills the daemon with SIGKILL and waits for its end.
func (d *Daemon) Kill() {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill()
		_ = d.wait()
	}
}

// Stop ends the daemon with SIGTERM. One that does not end, or not with 0, is an error; it is killed when ctx ends.
func (d *Daemon) Stop(ctx context.Context) error {
	if d.cmd == nil {
		return nil
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	process := d.cmd.Process
	stop := context.AfterFunc(ctx, func() { _ = process.Signal(syscall.SIGQUIT) })
	defer stop()
	if err := d.wait(); err != nil {
		return fmt.Errorf("the daemon ended with %w; it said last:\n%s", err, d.Log())
	}
	return nil
}

func (d *Daemon) wait() error {
	<-d.logged // before Wait, which closes the pipe
	err := d.cmd.Wait()
	d.cmd = nil
	d.Client.Close()
	return err
}

// Usage is what a process has at one moment.
type Usage struct {
	// RSS is resident memory, Heap what Go's heap has in use, both in bytes. Heap and Goroutines are 0 if the process could not be asked.
	RSS, Heap               int
	Goroutines, Descriptors int
}

func (u Usage) String() string {
	return fmt.Sprintf("%.1f MB resident, %.1f MB heap, %d goroutines, %d descriptors",
		float64(u.RSS)/1e6, float64(u.Heap)/1e6, u.Goroutines, u.Descriptors)
}

// Usage returns what the daemon has now.
func (d *Daemon) Usage(ctx context.Context) (Usage, error) {
	pid := d.PID()
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return Usage{}, err
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return Usage{}, err
	}
	u := Usage{Descriptors: len(files)}
	if fields := strings.Fields(string(statm)); len(fields) > 1 {
		pages, err := strconv.Atoi(fields[1])
		if err != nil {
			return Usage{}, err
		}
		u.RSS = pages * unix.Getpagesize()
	}
	text, err := d.Page(ctx, "/metrics")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "go_memstats_heap_inuse_bytes":
			u.Heap = int(number)
		case "go_goroutines":
			u.Goroutines = int(number)
		}
	}
	return u, nil
}

// Page returns a page of the daemon's HTTP server.
func (d *Daemon) Page(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.Address()+path, http.NoBody)
	if err != nil {
		return "", err
	}
	request.Close = true // no idle connection that counts as one of the daemon's
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, response.Status)
	}
	return string(text), err
}
