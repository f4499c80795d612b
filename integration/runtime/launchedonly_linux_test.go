package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	hosting "github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
)

// pose listens at the path that is the first argument, has a child serve there, and executes the program that is the second.
func pose() int {
	executed, executing, err := os.Pipe() // which ends when this process executes the other program
	var l net.Listener
	if err == nil {
		l, err = net.Listen("unix", os.Args[1])
	}
	if err == nil {
		var file *os.File
		if file, err = l.(*net.UnixListener).File(); err == nil {
			server := exec.Command(os.Args[0])
			server.Env, server.ExtraFiles = append(os.Environ(), pluginEnv+"=posing"), []*os.File{file, executed}
			err = server.Start()
		}
	}
	if err == nil {
		err = syscall.Exec(os.Args[2], []string{os.Args[2], "60"}, os.Environ())
	}
	runtime.KeepAlive(executing)
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// servePosing serves on the socket that was inherited, when the process that listens has executed its program.
func servePosing() int {
	_, err := io.ReadAll(os.NewFile(4, "executed"))
	err = errors.Join(err, os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid())), os.Setenv("LISTEN_FDS", "1"))
	if err == nil {
		err = sdk.Serve(context.Background(), sdk.Plugin{
			Type: "T", Name: "poser", Versions: []string{"v1beta1"},
			Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, echoer{}) },
		})
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// poser starts a process group that serves as program, which does not.
func (h *host) poser(program string) {
	h.t.Helper()
	cmd := exec.Command(os.Args[0], filepath.Join(h.dir, "poser.sock"), program)
	cmd.Env = append(os.Environ(), pluginEnv+"=pose")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
}

// TestPoser shows what admission does not prove of a plugin that was discovered, and what LaunchedOnly makes of that: a process listens, has
// another program serve, and executes one that is approved.
func TestPoser(t *testing.T) {
	program, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	for _, launchedOnly := range []bool{false, true} {
		t.Run(fmt.Sprint("launched only ", launchedOnly), func(t *testing.T) {
			asked := make(pins, 10)
			h := &host{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db"), launchedOnly: launchedOnly}
			h.admission = func(*hosting.Host) (plugin.AdmissionPlugin, error) { return asked, nil }
			h.start()
			t.Cleanup(func() { h.end() })
			h.poser(program)
			if launchedOnly {
				h.refusedAsNotLaunched("poser")
				if len(asked) != 0 {
					t.Error("the admission plugin was asked")
				}
				return
			}
			h.await("registered", "poser")
			if pin, want := <-asked, instanceOf(t, program); pin.InstanceID != want {
				t.Errorf("it is admitted as %v, want that of %s: %s", pin, program, want)
			}
		})
	}
}

func (h *host) refusedAsNotLaunched(name string) {
	h.t.Helper()
	if e := h.await(plugin.EventRefused, name); !strings.Contains(e.Message, "was not launched by this host") {
		h.t.Errorf("it is refused as %q", e.Message)
	}
	if err := h.call(name); !errors.Is(err, dynamicplugins.ErrNotFound) {
		h.t.Errorf("it is dispensed: %v", err)
	}
}

// TestLaunchedOnly: what was launched is registered, with and without an admission plugin, and nothing else is.
func TestLaunchedOnly(t *testing.T) {
	h := &host{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db"), launchedOnly: true}
	h.start()
	t.Cleanup(func() { h.end() })
	h.serve("own", "own.sock") // by this process
	h.refusedAsNotLaunched("own")
	h.set(launchable("serve"))
	h.running("registration")
	if err := h.call("launched"); err != nil {
		t.Errorf("call: %v", err)
	}
}
