package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/fleet"
)

// compare lets nobody act, and waits until the daemon shows what is there. With rest, each plugin has one instance afterwards, and the
// daemon's usage is kept under the name when.
func (s *soak) compare(rest bool, when string) {
	s.gate.Lock()
	defer s.gate.Unlock()
	ctx := context.Background()
	if rest {
		for _, e := range s.entries {
			if err := e.rest(s); err != nil {
				s.violation("%s: %v", e, err)
			}
		}
	}
	s.mend()
	began := time.Now()
	s.converge("the list is what is there", s.listed)
	s.converge("each launched plugin has one process", s.oneProcess)
	s.converge("a stable socket reaches the newest instance", s.dispensed)
	s.converge("etcd has what is there", s.inFleet)
	s.converge("subscribers have seen it all", s.followed)
	s.converge("the devices are there", s.devicesThere)
	s.jsonIsTheList(ctx)
	for _, text := range s.daemon.Errors() {
		s.violation("the daemon wrote: %s", text)
	}
	s.say("everything compared, %v after the last disturbance", time.Since(began).Round(time.Millisecond))
	if !rest {
		return
	}
	u, err := s.daemon.Usage(ctx)
	if err != nil {
		s.violation("cannot say what the daemon uses: %v", err)
	}
	s.use(when, s.life, u)
}

// mend undoes what an operation on a launched plugin that failed, as it may in a disturbance, left undone.
func (s *soak) mend() {
	s.converge("a reload and a launch work", func(ctx context.Context) []string {
		if _, err := s.daemon.Client.Reload(ctx); err != nil {
			return []string{err.Error()}
		}
		for _, l := range s.launched {
			act := s.daemon.Client.Launch
			if l.stale {
				act = s.daemon.Client.Restart
			}
			if _, err := act(ctx, l.name); err != nil {
				return []string{err.Error()}
			}
			l.stale = false
		}
		return nil
	})
}

// converge waits until a check finds nothing wrong.
func (s *soak) converge(invariant string, check func(ctx context.Context) []string) {
	ctx, cancel := context.WithTimeout(context.Background(), s.bound)
	defer cancel()
	s.count(invariants, invariant)
	var wrong []string
	for {
		found := check(ctx)
		if len(found) == 0 {
			return
		}
		if ctx.Err() == nil || wrong == nil { // else the end of the time is all that it found
			wrong = found
		}
		// What is waited for is not all told by one and the same, and some of it by nobody.
		if !wait(ctx, 50*time.Millisecond) {
			s.violation("not within %v: %s:\n\t%s", s.bound, invariant, strings.Join(wrong, "\n\t"))
			return
		}
	}
}

// want returns how all that live have to show in the list.
func (s *soak) want() []string {
	var want []string
	for _, e := range s.entries {
		if e.ptype == toggledType && !s.accepting {
			continue
		}
		for i, in := range e.living {
			newest := i == len(e.living)-1
			want = append(want, show(e.ptype, e.name, in.version, in.path, map[bool]string{true: "registered", false: "superseded"}[newest], newest))
		}
	}
	for _, l := range s.launched {
		want = append(want, show(launchedType, l.name, l.version, "", "registered", true))
	}
	return want
}

// listed compares the list with what is there.
func (s *soak) listed(ctx context.Context) []string {
	listing, err := s.daemon.Client.List(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	stale := map[string]bool{}
	for _, e := range s.entries {
		for _, path := range e.stale {
			stale[path] = true
		}
	}
	var got []string
	kept := map[string]string{}
	for _, p := range listing.Plugins {
		path := p.SocketPath
		if p.Source == "launched" {
			path = ""
		}
		text := show(p.Type, p.Name, p.Version, path, stateOf(p), p.Current)
		switch {
		case stateOf(p) == "registered", p.State == "superseded":
			kept[p.SocketPath+" "+p.Version] = p.Instance
		case stale[p.SocketPath]:
			continue
		case p.Name == forbidden && p.SocketPath == "":
			continue // it has no process; see oneProcess
		case p.Type == toggledType && p.State == "refused" && !s.accepting:
			continue
		}
		got = append(got, text)
	}
	wrong := difference(s.want(), got)
	if len(wrong) > 0 {
		return wrong
	}
	s.sameInstances(kept)
	return nil
}

// sameInstances compares the instance IDs of all that lived at the last comparison, and lives, with what they were.
func (s *soak) sameInstances(now map[string]string) {
	for _, e := range s.entries {
		for _, in := range e.living {
			key := in.path + " " + in.version
			// A device plugin or DRA driver at the path of another one shows the same version.
			if before := s.kept[key]; before != "" && e.ptype != toggledType && e.ptype != deviceType && e.ptype != draType {
				s.count(invariants, "an instance keeps its ID")
				if before != now[key] {
					s.violation("%s %s at %s was instance %s and is %s%s", e, in.version, in.path, before, now[key], s.history(e))
				}
			}
		}
	}
	s.kept = now
}

func (s *soak) oneProcess(context.Context) []string {
	count := map[string]int{forbidden: 0}
	for _, p := range s.processes() {
		for _, l := range s.launched {
			if p.serves(l.name) {
				count[l.name]++
			}
		}
		if p.serves(forbidden) {
			count[forbidden]++
		}
	}
	want := map[string]int{forbidden: 0}
	for _, l := range s.launched {
		want[l.name] = 1
		if l.start == catalogue.StartOnDemand && count[l.name] == 0 {
			delete(want, l.name) // nobody calls it
		}
	}
	if !maps.Equal(count, want) {
		return []string{fmt.Sprintf("processes: %v, want %v: %v", count, want, s.processes())}
	}
	return nil
}

// stable returns a connection to the stable socket of a plugin.
func (s *soak) stable(ptype, name string) (*grpc.ClientConn, error) {
	path := filepath.Join(s.daemon.Dispense(), ptype, strings.ReplaceAll(name, "/", "~2F")+".sock")
	return grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond},
			MinConnectTimeout: s.bound,
		}))
}

// ask calls the plugin behind a stable socket.
func (s *soak) ask(ctx context.Context, ptype, name, want string) error {
	conn, err := s.stable(ptype, name)
	if err != nil {
		return err
	}
	defer conn.Close()
	got, err := rig.Ask(ctx, conn)
	if err == nil && got != want {
		err = fmt.Errorf("it is %s, and not %s", got, want)
	}
	return err
}

func (s *soak) dispensed(ctx context.Context) []string {
	var wrong []string
	check := func(ptype, name, word string) {
		if err := s.ask(ctx, ptype, name, word); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s/%s: %v", ptype, name, err))
		}
	}
	for _, e := range s.entries {
		if len(e.living) > 0 && (e.ptype != toggledType || s.accepting) {
			check(e.ptype, e.name, e.newest().word)
		}
	}
	for _, l := range s.launched {
		check(launchedType, l.name, l.version)
	}
	return wrong
}

// caller returns what calls a plugin through its stable socket, which has to work whatever happens to others.
func (s *soak) caller(e *entry) func(context.Context, *rand.Rand) error {
	conn, err := s.stable(e.ptype, e.name)
	return func(ctx context.Context, _ *rand.Rand) error {
		if err != nil {
			return err
		}
		err := s.call(ctx, "call an undisturbed plugin", func(ctx context.Context) error {
			s.count(invariants, "calls of an undisturbed plugin work")
			ctx, cancel := context.WithTimeout(ctx, s.bound)
			defer cancel()
			_, err := rig.Ask(ctx, conn, grpc.WaitForReady(true)) // after a restart of the daemon the client is in back-off
			return err
		})
		if err != nil {
			err = fmt.Errorf("%w%s", err, s.history(e))
		}
		return err
	}
}

// history returns the last events of a plugin, a line each, that its daemon tells of.
func (s *soak) history(e *entry) string {
	ctx, cancel := context.WithTimeout(context.Background(), s.bound)
	defer cancel()
	var lines []string
	for event, err := range s.daemon.Client.Events(ctx, &patchbayv1.WatchEventsRequest{}) {
		if err != nil {
			lines = append(lines, err.Error())
			break
		}
		if event.Type == e.ptype && event.Name == e.name {
			lines = append(lines, fmt.Sprintf("%s %s %s %s: %s",
				event.Time.AsTime().Format(time.StampMilli), event.Kind, event.Instance, event.SocketPath,
				event.Message))
		}
	}
	return "\n\t" + strings.Join(lines[max(0, len(lines)-20):], "\n\t")
}

// inFleet compares what a reader of its own sees in etcd with what is there.
func (s *soak) inFleet(ctx context.Context) []string {
	if err := s.fleet.Ready(ctx); err != nil {
		return []string{err.Error()}
	}
	if h := s.fleet.Health(); !h.Current {
		return []string{h.Message}
	}
	var got []string
	for _, p := range s.fleet.Plugins(fleet.Filter{}) {
		if state := p.State(); state == "registered" || state == "superseded" {
			got = append(got, fmt.Sprintf("%s/%s %s %s %v", p.GetType(), p.GetName(), p.GetVersion(), state, p.GetCurrent()))
		}
	}
	listing, err := s.daemon.Client.List(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	var want []string
	for _, p := range listing.Plugins {
		if stateOf(p) == "registered" || p.State == "superseded" {
			want = append(want, fmt.Sprintf("%s/%s %s %s %v", p.Type, p.Name, p.Version, stateOf(p), p.Current))
		}
	}
	return difference(want, got)
}

func (s *soak) devicesThere(ctx context.Context) []string {
	listing, err := s.daemon.Client.ListDevices(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	var want, got []string
	for _, e := range s.entries {
		if e.ptype == deviceType && len(e.living) > 0 {
			want = append(want, e.name+"/one healthy")
		}
	}
	for _, d := range listing.Devices {
		if d.Health == "healthy" {
			got = append(got, d.Resource+"/"+d.Id+" healthy")
		}
	}
	return difference(want, got)
}

// followed waits until the follower of this life has seen the last event, and compares what it has seen with the list.
func (s *soak) followed(ctx context.Context) []string {
	var last uint64
	one := uint32(1)
	for e, err := range s.daemon.Client.Events(ctx, &patchbayv1.WatchEventsRequest{Tail: &one}) {
		if err != nil {
			return []string{err.Error()}
		}
		last = e.Seq
	}
	listing, err := s.daemon.Client.List(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	want := []string{}
	for _, p := range listing.Plugins {
		// One that was found when a newer one was registered already has never been, and has no ID.
		if p.Instance != "" && (stateOf(p) == "registered" || p.State == "superseded") {
			want = append(want, p.Type+"/"+p.Name+" "+p.Instance)
		}
	}
	seen, registered := s.follower.state()
	if seen < last {
		return []string{fmt.Sprintf("a subscriber has seen event %d of %d", seen, last)}
	}
	if registered == nil {
		return nil
	}
	s.count(invariants, "the events add up to the list")
	return difference(want, registered)
}

// jsonIsTheList compares what the command prints with what the client returns.
func (s *soak) jsonIsTheList(ctx context.Context) {
	s.converge("the JSON of the command is the list", func(context.Context) []string {
		text, err := s.patchbay(ctx, "list", "-o", "json")
		if err != nil {
			return []string{err.Error()}
		}
		printed, err := rig.Messages[patchbayv1.Plugin](text)
		if err != nil {
			return []string{err.Error()}
		}
		listing, err := s.daemon.Client.List(ctx)
		if err != nil {
			return []string{err.Error()}
		}
		lines := func(plugins []*patchbayv1.Plugin) []string {
			var all []string
			for _, p := range plugins {
				all = append(all, p.Type+"/"+p.Name+" "+p.Version+" "+p.State+" "+p.SocketPath+" "+p.Instance)
			}
			return all
		}
		return difference(lines(listing.Plugins), lines(printed))
	})
}

// patchbay runs a command.
func (s *soak) patchbay(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.daemon.Program, args...)
	cmd.Env = append(os.Environ(), "PATCHBAY_CONTROL_SOCKET="+filepath.Join(s.daemon.Dir, "control.sock"), "GORACE=atexit_sleep_ms=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("patchbay %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return text, err
}

// command runs a command that only looks.
func (s *soak) command(ctx context.Context, r *rand.Rand) error {
	commands := [][]string{{"list"}, {"list", "-o", "json"}, {"events"}, {"status", anchorType + "/n0"}, {"version"}, {"fleet", "nodes"}}
	args := commands[r.IntN(len(commands))]
	return s.call(ctx, "command: "+args[0], func(ctx context.Context) error {
		_, err := s.patchbay(ctx, args...)
		return s.etcdAway(err)
	})
}

// sorted returns the keys of a set in order.
func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
