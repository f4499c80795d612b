package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/integration/internal/rig/etcd"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/plugin"
)

// options say how to soak.
type options struct {
	length, every, bound time.Duration
	seed                 uint64
	names                int
	out                  io.Writer
}

// forbidden is the name in the catalogue that the admission plugin refuses.
const forbidden = "forbidden"

// soak is one run.
type soak struct {
	options
	*report

	dir     string
	daemon  *rig.Daemon
	etcd    *etcd.Process
	fleet   *fleet.Reader
	entries []*entry
	anchors []*entry // in entries too
	// mounted says that the state is on a small device of its own.
	mounted bool

	// gate is held for reading over every operation and fault, and for writing while everything is compared.
	gate sync.RWMutex
	// disturbing is how many disturbances of the daemon itself there are at the moment, and disturbances how many there have been.
	disturbing, disturbances atomic.Int64
	// living is held whenever a life of the daemon ends, until the next one has settled, and by whoever signals to it; before starting.
	living sync.Mutex
	// starting is held whenever the daemon is started, and whenever it could not be, because its configuration is broken.
	starting sync.Mutex
	life     int // how often the daemon was started
	follower *follower

	launch sync.Mutex // held over operations on launched plugins and the configuration; before living
	// What the configuration says.
	launched  []*launched
	accepting bool // whether there is a handler for toggledType
	debug     bool

	kept map[string]string // the instance ID by how it shows, of the last comparison
}

func newSoak(dir string, o options) (*soak, error) {
	s := &soak{options: o, report: newReport(o.out), dir: dir, accepting: true}
	var err error
	if s.daemon, err = rig.NewDaemon(filepath.Join(dir, "patchbay"), filepath.Join(dir, "d")); err != nil {
		return nil, err
	}
	if s.etcd, err = etcd.New(filepath.Join(dir, "etcd")); err != nil {
		return nil, err
	}
	for i := range s.names {
		for _, ptype := range []string{"Alpha", "Beta"} {
			s.entries = append(s.entries, &entry{ptype: ptype, name: fmt.Sprint("n", i)})
		}
	}
	for i := range max(s.names/4, 2) {
		s.entries = append(s.entries, &entry{ptype: toggledType, name: fmt.Sprint("n", i)}, &entry{ptype: processType, name: fmt.Sprint("n", i)},
			&entry{ptype: deviceType, name: fmt.Sprint("example.com/n", i)}, &entry{ptype: csiType, name: fmt.Sprintf("n%d.csi.example.com", i)},
			&entry{ptype: draType, name: fmt.Sprintf("n%d.dra.example.com", i)})
	}
	for i := range 2 {
		s.anchors = append(s.anchors, &entry{ptype: anchorType, name: fmt.Sprint("n", i)})
	}
	s.entries = append(s.entries, s.anchors...)
	sideBySide, handover, recreate := plugin.UpgradeSideBySide, plugin.UpgradeHandover, plugin.UpgradeRecreate
	auto, onDemand := catalogue.StartAuto, catalogue.StartOnDemand
	s.launched = []*launched{
		{pinned: true, upgrade: sideBySide, start: auto}, {upgrade: recreate, start: auto},
		{pinned: true, survives: true, upgrade: recreate, start: auto}, {survives: true, upgrade: sideBySide, start: auto},
		{pinned: true, upgrade: handover, start: auto}, {upgrade: handover, start: onDemand}, {pinned: true, upgrade: recreate, start: onDemand},
	}
	for i, l := range s.launched {
		l.name = fmt.Sprint("launched-", i)
	}
	return s, nil
}

// run does everything and writes the table. The first disturbance begins when everything is there, and right.
func (s *soak) run(ctx context.Context) (err error) {
	s.say("seed %d, for %v", s.seed, s.length)
	defer func() { err = errors.Join(err, s.table()) }()
	if err := s.begin(ctx); err != nil {
		return errors.Join(err, s.end())
	}
	s.disturb(ctx)
	s.compare(true, "end")
	return s.end()
}

// begin starts all that there is.
func (s *soak) begin(ctx context.Context) error {
	state := filepath.Join(s.daemon.Dir, "state")
	if err := os.MkdirAll(state, 0o750); err != nil {
		return err
	}
	s.mounted = unix.Mount("tmpfs", state, "tmpfs", 0, "size=8m") == nil // else the disk is never full
	for _, l := range s.launched {
		if err := s.upgrade(l); err != nil {
			return err
		}
	}
	if err := errors.Join(s.configure(false), s.etcd.Start(), s.start(ctx)); err != nil {
		return err
	}
	cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{s.etcd.Client}})
	if err != nil {
		return err
	}
	s.fleet = fleet.Open(cluster, fleet.ReaderConfig{})
	for _, e := range s.entries {
		if err := e.rest(s); err != nil {
			return err
		}
	}
	s.compare(true, "start")
	return nil
}

// start starts the daemon, and a follower of its events from the first one on.
func (s *soak) start(ctx context.Context) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.bound)
	defer cancel()
	s.life++
	began := time.Now()
	if err := s.daemon.Start(ctx); err != nil {
		return err
	}
	s.follower = s.follow(s.life, began)
	return nil
}

// upgrade gives a launched plugin another program, in the same file unless its digest is in the catalogue.
func (s *soak) upgrade(l *launched) error {
	l.made++
	version := fmt.Sprintf("2.0.%d", l.made)
	path := filepath.Join(s.dir, l.name)
	if l.pinned {
		path += fmt.Sprint("-", l.made)
	}
	if err := rig.CopyMarked(filepath.Join(s.dir, "plugin"), path, version); err != nil {
		return err
	}
	if l.pinned && l.path != "" {
		defer os.Remove(l.path) // what runs is a copy
	}
	l.path, l.version = path, version
	return nil
}

// configure writes the configuration, or one with an error in it.
func (s *soak) configure(broken bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "handlers: {Alpha: accept, Beta: accept, %s: accept, %s: accept, %s: accept, %s: device, %s: csi, %s: dra", anchorType,
		processType, launchedType, deviceType, csiType, draType)
	if s.accepting {
		fmt.Fprintf(&b, ", %s: accept", toggledType)
	}
	fmt.Fprintf(&b, "}\nlog: {level: %s}\n", map[bool]string{true: "debug", false: "info"}[s.debug])
	fmt.Fprintf(&b, "device: {socketDir: %s/devices}\n", s.daemon.Dir)
	fmt.Fprintf(&b, "admission: {command: [%s/plugin, admit, %s]}\n", s.dir, forbidden)
	fmt.Fprintf(&b, "fleet: {node: soak, presence: 2s, retention: 10m, etcd: {endpoints: [\"%s\"]}}\n", s.etcd.Client)
	if broken {
		b.WriteString("mistake: 1\n")
	}
	b.WriteString("plugins:\n")
	for _, l := range s.launched {
		fmt.Fprintf(&b, "  - name: %s\n    command: [%s, serve, %s, %[1]s, \"-\"]\n", l.name, l.path, launchedType)
		fmt.Fprintf(&b, "    survive: %t\n    upgrade: %s\n    env: {GORACE: atexit_sleep_ms=0}\n", l.survives, l.upgrade)
		fmt.Fprintf(&b, "    start: %s\n    idle: 1s\n", l.start)
		b.WriteString("    restart: {policy: always, limit: 100000, backoff: {min: 50ms, max: 500ms}}\n")
		if l.pinned {
			program, err := os.ReadFile(l.path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "    version: %q\n    sha256: %x\n", l.version, sha256.Sum256(program))
		}
	}
	fmt.Fprintf(&b, "  - name: %s\n    command: [%s/plugin, serve, %s, %[1]s, \"1\"]\n", forbidden, s.dir, launchedType)
	b.WriteString("    restart: {limit: 100000, backoff: {min: 1s, max: 1s}}\n")
	return s.daemon.Configure(b.String())
}

// disturb has all actors act until the time is over, and compares again and again. For its second half the daemon is not killed or
// stopped any more, so that what it has at the end is what a long run leaves.
func (s *soak) disturb(ctx context.Context) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.length)
	defer cancel()
	var acting sync.WaitGroup
	actors := s.actors()
	for name, a := range actors {
		acting.Go(func() { s.act(ctx, name, a, began) })
	}
	acting.Go(func() { s.stuck(ctx) })
	measured := false
	for wait(ctx, s.every) {
		if !measured && time.Since(began) > s.length/2 {
			measured = true
			s.compare(true, "half")
			continue
		}
		s.compare(false, "")
	}
	acting.Wait()
}

// actor does one thing again and again, after pauses of half to one and a half times the given one.
type actor struct {
	pause time.Duration
	// lives says that it ends lives of the daemon, and only acts in the first half.
	lives bool
	step  func(ctx context.Context, r *rand.Rand) error
}

func (s *soak) act(ctx context.Context, name string, a actor, began time.Time) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	r := rand.New(rand.NewPCG(s.seed, h.Sum64()))
	for wait(ctx, a.pause/2+time.Duration(r.Int64N(int64(a.pause)))) {
		if a.lives && time.Since(began) > s.length/2 {
			return
		}
		s.gate.RLock()
		// What has begun is done to its end.
		err := a.step(context.WithoutCancel(ctx), r)
		s.gate.RUnlock()
		if err != nil {
			s.violation("%s: %v", name, err)
		}
	}
}

// wait waits for a time, and returns false if ctx ends before.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// end ends all that there is, and sees what is left.
func (s *soak) end() error {
	if s.fleet != nil {
		s.fleet.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.bound)
	defer cancel()
	var err error
	for _, l := range s.launched {
		if l.survives {
			_, stopErr := s.daemon.Client.Stop(ctx, l.name)
			err = errors.Join(err, stopErr)
		}
	}
	err = errors.Join(err, s.daemon.Stop(ctx))
	for _, text := range s.daemon.Errors() {
		s.violation("the daemon wrote: %s", text)
	}
	s.etcd.Kill()
	for _, e := range s.entries {
		err = errors.Join(err, e.end())
	}
	s.count(invariants, "nothing is left at the end")
	for _, p := range s.processes() {
		s.violation("a process is left: %s", p)
	}
	for _, dir := range []string{"", "plugins", "dispense", "devices", "state"} {
		files, _ := os.ReadDir(filepath.Join(s.daemon.Dir, dir))
		for _, f := range files {
			kept := []string{"config.yaml", "state.db", "state.db.events", "state.db.events.1", "state.db.instance"}
			if !f.IsDir() && !slices.Contains(kept, f.Name()) {
				s.violation("a file is left: %s/%s", dir, f.Name())
			}
		}
	}
	if s.mounted {
		err = errors.Join(err, unix.Unmount(filepath.Join(s.daemon.Dir, "state"), 0))
	}
	return err
}
