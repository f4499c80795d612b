package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/host"
)

// actors returns who does what, by name.
func (s *soak) actors() map[string]actor {
	all := map[string]actor{
		"operator":         {pause: 40 * time.Millisecond, step: s.operate},
		"command":          {pause: time.Second, step: s.command},
		"processes":        {pause: 300 * time.Millisecond, step: s.churnProcess},
		"launched plugins": {pause: 700 * time.Millisecond, step: s.churnLaunched},
		"reload":           {pause: 2 * time.Second, step: s.reload},
		"daemon":           {pause: 8 * time.Second, lives: true, step: s.disturbDaemon},
		"daemon stopped":   {pause: 15 * time.Second, step: s.suspendDaemon},
		"etcd":             {pause: 10 * time.Second, step: s.disturbEtcd},
		"admission plugin": {pause: 10 * time.Second, step: s.killAdmission},
	}
	if s.mounted {
		all["disk"] = actor{pause: 6 * time.Second, step: s.fillDisk}
	}
	for _, ptype := range []string{"Alpha", "Beta", toggledType, deviceType, csiType, draType} {
		all["churn of "+ptype] = actor{pause: 60 * time.Millisecond, step: func(_ context.Context, r *rand.Rand) error {
			return s.churn(s.pick(r, ptype), r)
		}}
	}
	for _, e := range s.anchors {
		all["calls of "+e.String()] = actor{pause: 20 * time.Millisecond, step: s.caller(e)}
	}
	return all
}

// pick returns a plugin of the type.
func (s *soak) pick(r *rand.Rand, ptype string) *entry {
	var all []*entry
	for _, e := range s.entries {
		if e.ptype == ptype {
			all = append(all, e)
		}
	}
	return all[r.IntN(len(all))]
}

// churn changes a plugin in this process.
func (s *soak) churn(e *entry, r *rand.Rand) error {
	switch n := len(e.living); {
	case n == 0 || n < 3 && r.IntN(3) == 0:
		s.count(operations, map[bool]string{true: "appear", false: "supersede"}[n == 0])
		return e.appear(s, false)
	case r.IntN(3) == 0:
		s.count(operations, "replace at its path")
		return e.appear(s, true)
	default:
		i := r.IntN(n)
		s.count(operations, map[bool]string{true: "the current one goes", false: "a superseded one goes"}[i == n-1])
		return e.leave(i)
	}
}

// churnProcess changes a plugin in a process of its own.
func (s *soak) churnProcess(ctx context.Context, r *rand.Rand) error {
	e := s.pick(r, processType)
	switch n := len(e.living); {
	case n == 0 || n < 3 && r.IntN(4) == 0:
		s.count(operations, "a process appears")
		if r.IntN(2) == 0 {
			if err := e.clean(); err != nil {
				return err
			}
		}
		return e.appear(s, false)
	case r.IntN(3) == 0:
		s.count(operations, "a process goes")
		return e.leave(r.IntN(n))
	case r.IntN(2) == 0:
		s.count(faults, "SIGKILL of a plugin")
		e.kill()
	default:
		s.count(faults, "SIGSTOP of a plugin")
		process := e.living[r.IntN(n)].process.Process
		_ = process.Signal(syscall.SIGSTOP)
		wait(ctx, time.Duration(r.IntN(3000))*time.Millisecond)
		_ = process.Signal(syscall.SIGCONT)
	}
	return nil
}

// churnLaunched restarts, stops, kills and upgrades launched plugins.
func (s *soak) churnLaunched(ctx context.Context, r *rand.Rand) error {
	s.launch.Lock()
	defer s.launch.Unlock()
	l := s.launched[r.IntN(len(s.launched))]
	switch r.IntN(4) {
	case 0:
		return s.call(ctx, "restart a launched plugin", func(ctx context.Context) error {
			_, err := s.daemon.Client.Restart(ctx, l.name)
			return s.busy(l, err)
		})
	case 1:
		return s.call(ctx, "stop and launch a launched plugin", func(ctx context.Context) error {
			_, err := s.daemon.Client.Stop(ctx, l.name)
			if err == nil {
				_, err = s.daemon.Client.Launch(ctx, l.name)
			}
			return s.busy(l, err)
		})
	case 2:
		for _, p := range s.processes() {
			if p.serves(l.name) {
				s.count(faults, "SIGKILL of a launched plugin")
				_ = syscall.Kill(p.pid, syscall.SIGKILL)
			}
		}
		return nil
	default:
		s.count(operations, "upgrade a launched plugin")
		if err := s.upgrade(l); err != nil {
			return err
		}
		if l.pinned {
			return errors.Join(s.configure(false), s.hangUp())
		}
		l.stale = true
		return s.call(ctx, "restart a launched plugin", func(ctx context.Context) error {
			_, err := s.daemon.Client.Restart(ctx, l.name)
			if err == nil {
				l.stale = false
			}
			return s.busy(l, err)
		})
	}
}

// busy passes on an error of a start or restart, but not that the new process did not become ready, nor that the admission plugin was
// killed meanwhile. These are right answers while the disk is full or a process is killed; the comparison tries again.
func (s *soak) busy(l *launched, err error) error {
	if err == nil {
		return nil
	}
	if text := err.Error(); strings.Contains(text, "cannot restart plugin "+l.name) || strings.Contains(text, host.ErrCrashed.Error()) {
		s.count(operations, "a start that did not succeed, and was tried again")
		l.stale = true
		return nil
	}
	return err
}

// hangUp has the daemon reload.
func (s *soak) hangUp() error {
	s.living.Lock() // one that has not installed its handler yet would end
	defer s.living.Unlock()
	s.count(operations, "SIGHUP")
	return s.daemon.Signal(syscall.SIGHUP)
}

// reload changes the configuration, or tries to change it to one that is wrong.
func (s *soak) reload(ctx context.Context, r *rand.Rand) error {
	s.launch.Lock()
	defer s.launch.Unlock()
	switch r.IntN(4) {
	case 0:
		s.starting.Lock() // no daemon could start
		defer s.starting.Unlock()
		if err := s.configure(true); err != nil {
			return err
		}
		s.count(faults, "reload of a broken configuration")
		err := s.call(ctx, "reload", func(ctx context.Context) error {
			s.count(invariants, "a broken configuration is refused")
			_, err := s.daemon.Client.Reload(ctx)
			switch {
			case err == nil:
				s.violation("a broken configuration was taken")
			case strings.Contains(err.Error(), "mistake"):
				err = nil
			}
			return err
		})
		return errors.Join(err, s.configure(false))
	case 1:
		s.accepting = !s.accepting
	default:
		s.debug = !s.debug
	}
	if err := s.configure(false); err != nil {
		return err
	}
	if r.IntN(2) == 0 {
		return s.hangUp()
	}
	return s.call(ctx, "reload", func(ctx context.Context) error { _, err := s.daemon.Client.Reload(ctx); return err })
}

// disturbDaemon ends a life of the daemon and begins another one.
func (s *soak) disturbDaemon(ctx context.Context, r *rand.Rand) error {
	s.living.Lock()
	defer s.living.Unlock()
	end := s.disturbance()
	surviving := s.surviving()
	var err error
	if r.IntN(4) == 0 {
		s.count(faults, "restart of the daemon")
		bounded, cancel := context.WithTimeout(ctx, s.bound)
		defer cancel()
		err = s.daemon.Stop(bounded)
	} else {
		s.count(faults, "SIGKILL of the daemon")
		s.daemon.Kill()
	}
	wait(ctx, time.Duration(r.IntN(1000))*time.Millisecond)
	for pid := range s.surviving() {
		if surviving[pid] {
			s.count(operations, "a launched plugin outlives a daemon")
		}
	}
	err = errors.Join(err, s.start(ctx))
	end()
	return errors.Join(err, s.settle(ctx))
}

// settle waits until the daemon has registered the undisturbed plugins again. Until then the admission plugin has to be asked about them.
func (s *soak) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.bound)
	defer cancel()
	for _, e := range s.anchors {
		if _, err := s.daemon.Client.Wait(ctx, e.ptype, e.name, client.GoalRegistered); err != nil {
			return fmt.Errorf("%s after a restart: %w%s", e, err, s.history(e))
		}
	}
	return nil
}

// surviving returns the processes of the launched plugins that outlive the daemon.
func (s *soak) surviving() map[int]bool {
	all := map[int]bool{}
	for _, p := range s.processes() {
		for _, l := range s.launched {
			if l.survives && p.serves(l.name) {
				all[p.pid] = true
			}
		}
	}
	return all
}

// suspendDaemon has the daemon stand still.
func (s *soak) suspendDaemon(ctx context.Context, r *rand.Rand) error {
	s.living.Lock()
	defer s.living.Unlock()
	defer s.disturbance()()
	s.count(faults, "SIGSTOP of the daemon")
	err := s.daemon.Signal(syscall.SIGSTOP)
	wait(ctx, time.Duration(r.IntN(4000))*time.Millisecond)
	return errors.Join(err, s.daemon.Signal(syscall.SIGCONT))
}

// disturbEtcd takes etcd away for a time.
func (s *soak) disturbEtcd(ctx context.Context, r *rand.Rand) error {
	away := time.Duration(r.IntN(5000)) * time.Millisecond
	if r.IntN(2) == 0 {
		s.count(faults, "SIGSTOP of etcd")
		s.etcd.Signal(syscall.SIGSTOP)
		wait(ctx, away)
		s.etcd.Signal(syscall.SIGCONT)
		return nil
	}
	s.count(faults, "SIGKILL of etcd")
	s.etcd.Kill()
	wait(ctx, away)
	return s.etcd.Start()
}

// killAdmission kills the admission plugin. Admission fails closed, so that disturbs even the undisturbed plugins while a new life of the
// daemon has to ask about them.
func (s *soak) killAdmission(context.Context, *rand.Rand) error {
	kill := func() {
		for _, p := range s.processes() {
			if p.args[1] == "admit" {
				s.count(faults, "SIGKILL of the admission plugin")
				_ = syscall.Kill(p.pid, syscall.SIGKILL)
			}
		}
	}
	if s.living.TryLock() {
		defer s.living.Unlock()
		kill()
		return nil
	}
	defer s.disturbance()()
	kill()
	s.living.Lock() // until the daemon has settled
	defer s.living.Unlock()
	return nil
}

// fillDisk leaves the state no room for a time.
func (s *soak) fillDisk(ctx context.Context, r *rand.Rand) error {
	s.starting.Lock() // a start needs room, and says so
	defer s.starting.Unlock()
	defer s.disturbance()()
	s.count(faults, "full disk under the state")
	path := filepath.Join(s.daemon.Dir, "state", "filler")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return errors.Join(err, f.Close(), os.Remove(path))
	}
	wait(ctx, time.Duration(r.IntN(2000))*time.Millisecond)
	return errors.Join(f.Close(), os.Remove(path))
}

// process is a process that the daemon or the soak made.
type process struct {
	pid  int
	args []string
}

func (p process) String() string { return fmt.Sprint(p.pid, " ", p.args) }

// serves says that it is the launched plugin of the name.
func (p process) serves(name string) bool {
	return len(p.args) > 3 && p.args[1] == "serve" && p.args[2] == launchedType && p.args[3] == name
}

// processes returns the processes of plugins that live, going by the directory of their programs.
func (s *soak) processes() []process {
	dirs, _ := os.ReadDir("/proc")
	var all []process
	for _, d := range dirs {
		var p process
		if _, err := fmt.Sscan(d.Name(), &p.pid); err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", d.Name(), "cmdline"))
		p.args = strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
		if err == nil && strings.HasPrefix(p.args[0], s.dir+"/") && p.args[0] != s.daemon.Program && len(p.args) > 1 {
			all = append(all, p)
		}
	}
	return all
}

// disturbance begins a disturbance of the daemon itself. What it returns ends that.
func (s *soak) disturbance() (end func()) {
	s.disturbances.Add(1)
	s.disturbing.Add(1)
	return func() { s.disturbing.Add(-1) }
}

// call calls the daemon. An error counts only if the daemon was not disturbed meanwhile.
func (s *soak) call(ctx context.Context, what string, do func(ctx context.Context) error) error {
	before := s.disturbances.Load()
	disturbed := s.disturbing.Load() > 0
	ctx, cancel := context.WithTimeout(ctx, s.bound)
	defer cancel()
	began := time.Now()
	err := do(ctx)
	s.count(operations, what)
	if err == nil || disturbed || s.disturbances.Load() != before {
		return nil
	}
	return fmt.Errorf("%s, after %v: %w", what, time.Since(began), err)
}

// operate asks the daemon one of many things.
func (s *soak) operate(ctx context.Context, r *rand.Rand) error {
	c := s.daemon.Client
	calls := map[string]func(ctx context.Context) error{
		"list":     func(ctx context.Context) error { _, err := c.List(ctx); return err },
		"launched": func(ctx context.Context) error { _, err := c.ListLaunched(ctx); return err },
		"version":  func(ctx context.Context) error { _, err := c.Version(ctx); return err },
		"devices":  func(ctx context.Context) error { _, err := c.ListDevices(ctx); return err },
		"status":   func(ctx context.Context) error { _, err := c.Get(ctx, anchorType, "n0"); return err },
		"wait": func(ctx context.Context) error {
			_, err := c.Wait(ctx, anchorType, "n1", client.GoalRegistered)
			return err
		},
		"fleet": func(ctx context.Context) error {
			_, err := c.FleetNodes(ctx, &patchbayv1.ListNodesRequest{})
			return s.etcdAway(err)
		},
		"past events": func(ctx context.Context) error {
			return last(c.Events(ctx, &patchbayv1.WatchEventsRequest{}))
		},
		"logs": func(ctx context.Context) error {
			return last(c.Logs(ctx, &patchbayv1.ReadLogsRequest{Name: "launched-0"}))
		},
		"page":    func(ctx context.Context) error { _, err := s.daemon.Page(ctx, "/"); return err },
		"metrics": func(ctx context.Context) error { _, err := s.daemon.Page(ctx, "/metrics"); return err },
		"livez":   func(ctx context.Context) error { _, err := s.daemon.Page(ctx, "/livez"); return err },
	}
	names := []string{
		"list", "launched", "version", "devices", "status", "wait", "fleet", "past events", "logs", "page", "metrics", "livez",
	}
	name := names[r.IntN(len(names))]
	return s.call(ctx, "ask: "+name, calls[name])
}

// etcdAway passes on an error, but not that etcd is away before the fleet was ever seen.
func (s *soak) etcdAway(err error) error {
	if err != nil && strings.Contains(err.Error(), "etcd") {
		return nil
	}
	return err
}

// last reads a sequence to its end.
func last[T any](seq func(yield func(T, error) bool)) error {
	for _, err := range seq {
		if err != nil {
			return err
		}
	}
	return nil
}
