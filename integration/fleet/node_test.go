package fleet_test

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/plugin"
)

// leftBehind are what the server of etcd leaves for good.
var leftBehind = []goleak.Option{
	goleak.IgnoreAnyFunction("go.etcd.io/etcd/server/v3/mvcc.(*store).restore"),
	goleak.IgnoreAnyFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"),
}

// ending are the tests, which end when the connections of the last members to each other have: etcd reads from them for up to 5 s.
type ending struct{ *testing.M }

func (e ending) Run() int {
	code := e.M.Run()
	end := time.Now().Add(15 * time.Second)
	for goleak.Find(leftBehind...) != nil && time.Now().Before(end) { // Find waits for a while itself
		runtime.Gosched()
	}
	if err := os.RemoveAll(bin); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

func TestMain(m *testing.M) {
	if spec := os.Getenv(memberEnv); spec != "" {
		fmt.Fprintln(os.Stderr, beMember(spec))
		os.Exit(1)
	}
	// More than there are processors, unless -parallel says otherwise: these tests wait for leases to end.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(ending{m}, leftBehind...)
}

// patience bounds every wait for what should happen.
const patience = 2 * time.Minute

// presence is the presence of the tests: the shortest that etcd allows.
const presence = 2 * time.Second

// local is a node that tests change.
type local struct {
	changed chan struct{}

	mu      sync.Mutex
	plugins []plugin.Status
}

func newLocal(names ...string) *local {
	l := &local{changed: make(chan struct{}, 1)}
	l.set(names...)
	return l
}

func status(name string) plugin.Status {
	return plugin.Status{
		Type: "CSIPlugin", Name: name, Version: "1.0.0", State: plugin.StateRegistered, Current: true, Instance: "i-" + name,
		Endpoint: "/run/" + name + ".sock", Source: plugin.SourceDiscovered, RegisteredAt: time.Unix(1700000000, 0),
	}
}

func (l *local) set(names ...string) {
	var plugins []plugin.Status
	for _, name := range names {
		plugins = append(plugins, status(name))
	}
	l.setAll(plugins)
}

func (l *local) setAll(plugins []plugin.Status) {
	l.mu.Lock()
	l.plugins = plugins
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *local) Plugins() []plugin.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.plugins
}

func (l *local) Conditions() []plugin.Condition {
	return []plugin.Condition{{Name: "discovery", OK: true}}
}

func (l *local) Changes(context.Context) <-chan struct{} { return l.changed }

// node is a publisher that runs.
type node struct {
	*local
	*fleet.Publisher
	// stop ends it in order, and returns when it has ended.
	stop func()
}

func startNode(t testing.TB, client *fleet.Cluster, name string, plugins ...string) *node {
	t.Helper()
	return startNodeWith(t, client, fleet.PublisherConfig{Node: name}, newLocal(plugins...))
}

func startNodeWith(t testing.TB, client *fleet.Cluster, config fleet.PublisherConfig, l *local) *node {
	t.Helper()
	config.Local, config.MinInterval, config.Version = l, 20*time.Millisecond, "v1.2.3"
	if config.Presence == 0 {
		config.Presence = presence
	}
	if config.Retention == 0 {
		config.Retention = time.Minute
	}
	p, err := fleet.NewPublisher(client, config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	n := &node{local: l, Publisher: p, stop: func() { cancel(); <-done }}
	t.Cleanup(n.stop)
	return n
}

func openReader(t testing.TB, client *fleet.Cluster) *fleet.Reader {
	t.Helper()
	r := fleet.Open(client, fleet.ReaderConfig{})
	t.Cleanup(r.Close)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return r
}

// eventually waits until something is true. It pauses for longer than it takes to find out: most conditions are what a command prints, and
// four tests that run one command after the other would keep the machine busy.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		began := time.Now()
		if is() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not in %v: %s", patience, what)
		}
		time.Sleep(10*time.Millisecond + 3*time.Since(began))
	}
}

func (n *node) published(t testing.TB) {
	t.Helper()
	eventually(t, "the node is published: "+n.Condition().Message, func() bool { return n.Condition().OK })
}

// names returns NODE/NAME=STATE of every plugin.
func names(r *fleet.Reader) []string {
	list := []string{}
	for _, p := range r.Plugins(fleet.Filter{}) {
		list = append(list, fmt.Sprintf("%s/%s=%s", p.Node.Name, p.GetName(), p.State()))
	}
	slices.Sort(list)
	return list
}

// shows waits until the reader has exactly these plugins, as NODE/NAME=STATE.
func shows(t testing.TB, r *fleet.Reader, want ...string) {
	t.Helper()
	slices.Sort(want)
	deadline := time.Now().Add(patience)
	for {
		got := names(r)
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v the fleet is\n%v\nand not\n%v\nhealth: %+v", patience, got, want, r.Health())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func stateOf(r *fleet.Reader, name string) fleet.NodeState {
	for _, n := range r.Nodes() {
		if n.Name == name {
			return n.State
		}
	}
	return ""
}

// follower is a subscriber that keeps its own picture and checks that no change is a repeat or comes after a gap.
type follower struct {
	t      testing.TB
	cancel func()
	done   chan struct{}

	mu      sync.Mutex
	nodes   map[string]*fleet.Node
	plugins map[string]fleet.Instance
	changes []string
	wrong   []string
}

func pluginKey(p fleet.Instance) string {
	return p.Node.Name + "/" + p.GetType() + "/" + p.GetName() + "/" + p.GetInstance()
}

// looks returns what a node looks like, and what an instance looks like.
func looks(n *fleet.Node) string {
	return fmt.Sprint(n.Name, n.State, n.LastSeen, n.SeenBefore, n.Cordon, n.Count(), n.NodeRecord)
}

func looksOf(p fleet.Instance) string {
	return fmt.Sprint(pluginKey(p), p.Node.State, p.Node.LastSeen, p.Node.SeenBefore, p.Node.GetLabels(), p.PluginRecord)
}

func follow(t testing.TB, r *fleet.Reader) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	snapshot, changes, err := r.Watch(ctx, fleet.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{t: t, cancel: cancel, done: make(chan struct{}), nodes: map[string]*fleet.Node{}, plugins: map[string]fleet.Instance{}}
	for _, n := range snapshot.Nodes {
		f.nodes[n.Name] = n
	}
	for _, p := range snapshot.Plugins {
		f.plugins[pluginKey(p)] = p
	}
	go func() {
		defer close(f.done)
		for c := range changes {
			f.take(c)
		}
	}()
	t.Cleanup(func() { cancel(); <-f.done })
	return f
}

func (f *follower) take(c fleet.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var known, same bool
	var what string
	switch {
	case c.Node != nil:
		old, has := f.nodes[c.Node.Name]
		what, known, same = "node "+c.Node.Name+" "+string(c.Node.State), has, has && looks(old) == looks(c.Node)
		f.nodes[c.Node.Name] = c.Node
		if c.Kind == fleet.Removed {
			delete(f.nodes, c.Node.Name)
		}
	case c.Plugin != nil:
		key := pluginKey(*c.Plugin)
		old, has := f.plugins[key]
		what, known, same = key+" "+string(c.Plugin.State()), has, has && looksOf(old) == looksOf(*c.Plugin)
		f.plugins[key] = *c.Plugin
		if c.Kind == fleet.Removed {
			delete(f.plugins, key)
		}
	}
	what = string(c.Kind) + " " + what
	f.changes = append(f.changes, what)
	switch {
	case c.Kind == fleet.Resync:
		f.wrong = append(f.wrong, "a resync")
	case c.Kind == fleet.Added && known, c.Kind != fleet.Added && !known, c.Kind == fleet.Changed && same:
		f.wrong = append(f.wrong, what)
	}
}

// agrees waits until the picture is that of the reader and says what was wrong on the way.
func (f *follower) agrees(r *fleet.Reader) {
	f.t.Helper()
	var why string
	same := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		snapshot := fleet.Snapshot{Nodes: r.Nodes(), Plugins: r.Plugins(fleet.Filter{})}
		why = fmt.Sprintf("nodes %v\nreader %v", f.nodes, snapshot.Nodes)
		if len(snapshot.Nodes) != len(f.nodes) || len(snapshot.Plugins) != len(f.plugins) {
			return false
		}
		for _, n := range snapshot.Nodes {
			if old := f.nodes[n.Name]; old == nil || looks(n) != looks(old) {
				return false
			}
		}
		for _, p := range snapshot.Plugins {
			if old, has := f.plugins[pluginKey(p)]; !has || looksOf(p) != looksOf(old) {
				return false
			}
		}
		return true
	}
	deadline := time.Now().Add(patience)
	for !same() {
		if time.Now().After(deadline) {
			f.t.Fatalf("the picture of a subscriber is not that of the reader\n%s\nchanges: %v", why, f.changes)
		}
		time.Sleep(10 * time.Millisecond)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.wrong) > 0 {
		f.t.Errorf("repeats, or changes after a gap: %v\nall changes: %v", f.wrong, f.changes)
	}
}

// bury puts a dead node with one plugin into etcd, under no lease. Nothing that it says has been checked by anybody.
func bury(t testing.TB, admin *clientv3.Client, node, name string) {
	t.Helper()
	text, err := proto.Marshal(&fleetv1.NodeRecord{Instance: "i", Version: "v\x1b[2J", Plugins: []*fleetv1.PluginRecord{
		{Type: "CSIPlugin", Name: name, State: "registered"},
	}})
	var value bytes.Buffer
	w, failed := flate.NewWriter(&value, flate.BestSpeed)
	if failed == nil {
		_, failed = w.Write(text)
	}
	if err := errors.Join(err, failed, w.Close()); err != nil {
		t.Fatal(err)
	}
	do(t, "put", func(ctx context.Context) error {
		_, err := admin.Put(ctx, keys.Space{}.NodeRange(node)+"record", value.String())
		return err
	})
}
