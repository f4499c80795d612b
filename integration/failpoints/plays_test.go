//go:build linux

package failpoints

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/daemon"
)

// appears has the guest appear while the points fail. It is registered in the end.
func appears(s *scene, f *failure) {
	s.begin()
	s.arm()
	s.serve(guest)
	s.hear(f.said)
	s.registered(guest)
	s.await("its stable socket leads to it", func() bool { return s.call(guest) == nil })
	s.disarm()
	if s.other != nil {
		return
	}
	select {
	case text := <-s.plugins[guest].Refused:
		s.Errorf("the guest was told the error %q", text)
	default:
	}
}

// leaves has the guest leave while the points fail. It is deregistered in the end, also after a restart.
func leaves(s *scene, f *failure) {
	s.begin()
	s.serve(guest)
	s.registered(guest)
	s.arm()
	s.leave(guest, false)
	s.hear(f.said)
	s.deregistered(guest)
	s.await("it has left the list", func() bool { return !s.lists(guest) })
	s.disarm()
}

// dies has the points fail while the guest registers and after its death, in which it leaves its socket. It is deregistered all the same.
func dies(s *scene, _ *failure) {
	s.begin()
	s.arm()
	s.serve(guest)
	s.registered(guest)
	s.leave(guest, true)
	s.deregistered(guest)
	s.disarm()
	if err := os.Remove(filepath.Join(s.path("plugins"), guest+".sock")); err != nil {
		s.Error(err)
	}
	s.await("it has left the list", func() bool { return !s.lists(guest) })
}

// starts has the points fail while the daemon starts, which it then does not do; nothing is left, and the next start succeeds.
func starts(s *scene, f *failure) {
	s.arm()
	s.err = s.tryStart()
	s.hear(f.said)
	s.disarm()
	_ = s.stop()
	for _, name := range []string{"control.sock", "dispense"} {
		if _, err := os.Lstat(s.path(name)); err == nil {
			s.Errorf("a start that failed leaves %s", name)
		}
	}
	s.begin()
}

// restarts has the points fail while the daemon starts with the state of one before, which it then does not do.
func restarts(s *scene, f *failure) {
	s.begin()
	if err := s.stop(); err != nil {
		s.Error(err)
	}
	s.arm()
	s.err = s.tryStart()
	s.hear(f.said)
	s.disarm()
	if err := s.stop(); err != nil {
		s.Error(err)
	}
}

// stops has the points fail while the daemon ends.
func stops(s *scene, f *failure) {
	s.begin()
	s.arm()
	s.err = s.stop()
	s.hear(f.said)
	s.disarm()
}

// starting has the points fail while the daemon starts, which it does all the same.
func starting(s *scene, f *failure) {
	s.arm()
	s.begin()
	s.hear(f.said)
	s.disarm()
}

// launches has the points fail while the guest is launched.
func launches(more func(*catalogue.Plugin)) func(*scene, *failure) {
	return func(s *scene, f *failure) {
		s.begin()
		s.launchable(more)
		s.arm()
		s.reload()
		s.hear(f.said)
		s.registered(guest)
		s.disarm()
	}
}

func survives(p *catalogue.Plugin) { p.Survive = true }

func pinned(p *catalogue.Plugin) { p.SHA256 = digest() }

// adopts has the points fail while the daemon starts, whose guest has survived the one before.
func adopts(s *scene, f *failure) {
	s.begin()
	s.launchable(survives)
	s.reload()
	s.registered(guest)
	before := s.instances[guest]
	if err := s.stop(); err != nil {
		s.Error(err)
	}
	s.arm()
	s.start()
	s.hear(f.said)
	s.await("the survivor has ended", func() bool {
		return !slices.ContainsFunc(s.list().Plugins, func(p *patchbayv1.Plugin) bool { return p.Instance == before })
	})
	s.registered(guest)
	s.disarm()
}

// retires has the points fail while the guest, which was launched, is taken out of the catalogue.
func retires(s *scene, f *failure) {
	s.begin()
	before := cgroups(s)
	s.launchable(nil)
	s.reload()
	s.registered(guest)
	its := slices.DeleteFunc(cgroups(s), func(dir string) bool { // the spare one of the next process is empty
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return slices.Contains(before, dir) || err == nil && len(procs) == 0
	})
	s.arm()
	s.setup.Launched = slices.DeleteFunc(s.setup.Launched, func(p catalogue.Plugin) bool { return p.Name == guest })
	s.reload()
	s.deregistered(guest)
	delete(s.instances, guest)
	s.hear(f.said)
	s.await("its cgroup is removed", func() bool {
		return !slices.ContainsFunc(cgroups(s), func(dir string) bool { return slices.Contains(its, dir) })
	})
	if err := s.stop(); err != nil { // who waits for the process has nothing else to say that it has finished
		s.Error(err)
	}
	s.disarm()
}

// cgroups returns those that the daemon has made for processes.
func cgroups(s *scene) []string {
	s.Helper()
	var all []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has gone meanwhile
		}
		if err == nil && entry.IsDir() && strings.HasPrefix(filepath.Base(filepath.Dir(path)), fmt.Sprintf("patchbay-%d-", s.child.cmd.Process.Pid)) {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		s.Error(err)
	}
	return all
}

// launchesFirst has the points fail while the daemon starts, with the guest to be launched.
func launchesFirst(s *scene, f *failure) {
	s.launchable(nil)
	starting(s, f)
	s.registered(guest)
}

// asksFirst has the points fail while the guest appears, before any other plugin.
func asksFirst(s *scene, f *failure) {
	s.start()
	s.arm()
	s.serve(guest)
	s.hear(f.said)
	s.registered(guest)
	s.disarm()
	s.serve(neighbour)
}

// calls has the points fail while the neighbour is called; the next call succeeds.
func calls(s *scene, f *failure) {
	s.begin()
	s.arm()
	s.err = s.call(neighbour)
	s.hear(f.said)
	s.disarm()
	if err := s.call(neighbour); err != nil {
		s.Errorf("the next call: %v", err)
	}
}

// reloads has the points fail in a reload; the next reload succeeds.
func reloads(s *scene, f *failure) {
	s.begin()
	s.arm()
	s.setup.Handlers = map[string]string{ptype: daemon.HandlerAccept, "Another": daemon.HandlerAccept}
	if slices.ContainsFunc(f.with(), func(a Arm) bool { return a.Point == "launcherSet" }) {
		s.launchable(nil)
	}
	s.err = s.tryReload()
	s.hear(f.said)
	s.disarm()
	s.reload()
}

// csi has the plugins be CSI drivers.
func csi(play func(*scene, *failure)) func(*scene, *failure) {
	return func(s *scene, f *failure) {
		s.setup.Handlers = map[string]string{ptype: daemon.HandlerCSI}
		s.services = rig.CSI
		play(s, f)
	}
}

// older has the daemon serve kubelet.sock, beside the handler of the plugins.
func older(play func(*scene, *failure)) func(*scene, *failure) {
	return func(s *scene, f *failure) {
		s.setup.Handlers = map[string]string{ptype: daemon.HandlerAccept, "DevicePlugin": daemon.HandlerDevice}
		s.setup.Devices = true
		play(s, f)
	}
}

// admits has an admission plugin asked.
func admits(play func(*scene, *failure)) func(*scene, *failure) {
	return func(s *scene, f *failure) {
		s.setup.Admitter = []string{"/usr/bin/env", roleEnv + "=" + admitter, os.Args[0]}
		play(s, f)
	}
}

// digest returns that of this program.
