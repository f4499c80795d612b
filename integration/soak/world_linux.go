package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"google.golang.org/grpc"
	devicepb "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// The types of the plugins. Those of all but toggledType have a handler all the time.
const (
	toggledType  = "Toggled"
	processType  = "Process"
	launchedType = "Launched"
	deviceType   = "DevicePlugin"
	csiType      = "CSIPlugin"
	draType      = "DRAPlugin"
	anchorType   = "Anchor" // never touched
)

// instance is one running copy of a plugin that the soak made.
type instance struct {
	version, path string
	// word is what its example service answers.
	word string
	// plugin is it if it is in this process, and process if it has one of its own.
	plugin  *rig.Plugin
	process *exec.Cmd
}

// entry is a plugin by type and name, as it should be. It belongs to one actor; others look at it while nothing is done.
type entry struct {
	ptype, name string
	living      []*instance // newest last
	stale       []string    // the sockets of those that were killed, and what else they may have left
	made        int
}

func (e *entry) String() string { return e.ptype + "/" + e.name }

func (e *entry) newest() *instance { return e.living[len(e.living)-1] }

// appear makes another instance: at a path of its own, or in the place of the newest one.
func (e *entry) appear(s *soak, replace bool) error {
	e.made++
	in := &instance{version: fmt.Sprintf("1.0.%d", e.made)}
	in.path = filepath.Join(s.daemon.Plugins(), fmt.Sprintf("%s-%s-%d.sock", e.ptype, filepath.Base(e.name), e.made))
	var older *instance
	if replace {
		older = e.newest()
		in.path = older.path
	}
	var more func(*grpc.Server)
	switch e.ptype {
	case deviceType:
		in.version = devicepb.Version
		more = func(server *grpc.Server) { devicepb.RegisterDevicePluginServer(server, devices{}) }
	case csiType:
		more = rig.CSI(e.name, in.version)
	case draType:
		in.version = drapb.DRAPluginService
	}
	in.word = in.version
	var err error
	if e.ptype == processType {
		err = in.start(s, e)
	} else {
		in.plugin, err = rig.Serve(e.ptype, e.name, in.version, in.path, more)
	}
	if err != nil {
		return err
	}
	e.living = append(e.living, in)
	if older == nil {
		return nil
	}
	e.living = slices.DeleteFunc(e.living, func(i *instance) bool { return i == older })
	return older.plugin.Stop(true)
}

// start starts a process, and returns when its socket is there.
func (in *instance) start(s *soak, e *entry) error {
	cmd := exec.CommandContext(context.Background(), filepath.Join(s.dir, "plugin"), "serve", e.ptype, e.name, in.version, in.path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	in.process = cmd
	return cmd.Start()
}

// go ends the instance at the index in order.
func (e *entry) leave(i int) error {
	in := e.living[i]
	e.living = slices.Delete(e.living, i, i+1)
	if in.plugin != nil {
		return in.plugin.Stop(false)
	}
	_ = in.process.Process.Signal(syscall.SIGCONT)
	_ = in.process.Process.Signal(syscall.SIGTERM)
	if byItself, err := exited(in.process); byItself || err != nil {
		return err
	}
	e.left(in)
	return nil
}

// left notes what a process may have left that a signal has ended, perhaps while it was making its socket.
func (e *entry) left(in *instance) {
	e.stale = append(append(e.stale, in.path), sock.Traces(in.path)...)
}

// exited waits for the end of a process that was asked to end, and reports whether it ended by itself: the signal ends one that does not
// catch it yet.
func exited(cmd *exec.Cmd) (bool, error) {
	err := cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGTERM {
		return false, nil
	}
	return true, err
}

// kill kills the newest instance, which is a process, and leaves its socket behind.
func (e *entry) kill() {
	in := e.newest()
	e.living = e.living[:len(e.living)-1]
	_ = in.process.Process.Kill()
	_ = in.process.Wait()
	e.left(in)
}

// clean removes what those that were killed have left.
func (e *entry) clean() error {
	var all error
	for _, path := range e.stale {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	e.stale = nil
	return all
}

// rest brings the entry to what it has whenever the daemon is measured: one instance.
func (e *entry) rest(s *soak) error {
	err := e.clean()
	for len(e.living) > 1 {
		err = errors.Join(err, e.leave(0))
	}
	if len(e.living) == 0 {
		err = errors.Join(err, e.appear(s, false))
	}
	return err
}

// end ends all of it.
func (e *entry) end() error {
	err := e.clean()
	for len(e.living) > 0 {
		err = errors.Join(err, e.leave(0))
	}
	return err
}

// devices is the service of a device plugin with one device.
type devices struct {
	devicepb.UnimplementedDevicePluginServer
}

// ListAndWatch implements the device plugin.
func (devices) ListAndWatch(_ *devicepb.Empty, stream grpc.ServerStreamingServer[devicepb.ListAndWatchResponse]) error {
	err := stream.Send(&devicepb.ListAndWatchResponse{Devices: []*devicepb.Device{{ID: "one", Health: devicepb.Healthy}}})
	if err == nil {
		<-stream.Context().Done()
	}
	return err
}

// launched is a plugin of the catalogue.
type launched struct {
	name string
	// path is its program, and version the mark of that. Pinned says that the catalogue has its digest.
	path, version string
	pinned        bool
	// survives says that its process outlives the daemon.
	survives bool
	upgrade  plugin.Upgrade
	start    catalogue.Start
	made     int
	// stale says that its program was replaced since it was started, and nobody has told the daemon.
	stale bool
}

// stateOf is the state of a plugin in a list, in which one that is idle is registered as others are.
func stateOf(p *patchbayv1.Plugin) string {
	if p.State == "idle" {
		return "registered"
	}
	return p.State
}

// show is how an instance shows in a list.
func show(ptype, name, version, path, state string, current bool) string {
	text := fmt.Sprintf("%s/%s %s %s %s", ptype, name, version, filepath.Base(path), state)
	if current {
		text += " current"
	}
	return text
}

// difference says what is in one of two lists only.
func difference(want, got []string) []string {
	slices.Sort(want)
	slices.Sort(got)
	var all []string
	for len(want) > 0 || len(got) > 0 {
		switch {
		case len(got) == 0, len(want) > 0 && cmp.Less(want[0], got[0]):
			all, want = append(all, "missing: "+want[0]), want[1:]
		case len(want) == 0, cmp.Less(got[0], want[0]):
			all, got = append(all, "unexpected: "+got[0]), got[1:]
		default:
			want, got = want[1:], got[1:]
		}
	}
	return all
}
