package fleet_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
)

// faultBed is a fleet of three daemons. Nodes a and b have Plain/two, which is called by the name of the node, and Echo/one, which is
// exclusive and called at the holder of its lock. The daemon c calls.
type faultBed struct {
	t     *testing.T
	etcd  []*member
	ca    *authority
	links map[string][]*proxy // from a node to each member of etcd
	nodes map[string]*daemon
	c     *daemon
	held  string // the node that holds the lock before the fault

	known, knownFailed atomic.Int64
	locked             atomic.Int64
	mu                 sync.Mutex
	token              int64         // the greatest that the plugin was called with
	stale              int           // calls with a smaller one
	last               time.Time     // when a call of the exclusive plugin succeeded
	gap                time.Duration // the longest between two of them
	failure            string        // the last of a call to a known node
}

const faultPresence = 4 * time.Second

func newFaultBed(t *testing.T, etcd []*member, patchbay string) *faultBed {
	t.Helper()
	b := &faultBed{t: t, etcd: etcd, ca: newAuthority(t), links: map[string][]*proxy{}, nodes: map[string]*daemon{}}
	for _, name := range []string{"a", "b", "c"} {
		var urls []string
		for _, m := range etcd {
			link := newProxy(t, m.client)
			b.links[name], urls = append(b.links[name], link), append(urls, link.url)
		}
		d := b.daemon(patchbay, name, urls...)
		d.start()
		b.nodes[name] = d
		if name != "c" {
			d.echoAs("Plain", "two", "plain.sock", nil)
			d.echo(b.called)
		}
	}
	b.c = b.nodes["c"]
	b.c.inFleet(2)
	eventually(t, "a node holds the lock", func() bool { _, err := answers(t, b.c.caller("")); return err == nil })
	return b
}

func (b *faultBed) daemon(patchbay, name string, endpoints ...string) *daemon {
	const allowAll = `[{identity: "*", types: ["*"], names: ["*"], methods: ["*"]}]`
	d := newCaller(b.t, patchbay, name, strings.Join(endpoints, ", "), b.ca, allowAll, "  exclusive: [Echo]\n")
	d.configure("handlers: {Echo: accept}", "handlers: {Echo: accept, Plain: accept}")
	d.configure("presence: 2s", "presence: "+faultPresence.String())
	return d
}

// called notes a call of the exclusive plugin.
func (b *faultBed) called(_ context.Context, token string) {
	n, err := strconv.ParseInt(token, 10, 64)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil || n < b.token {
		b.stale++
	}
	b.token = max(b.token, n)
}

// run makes calls while a fault happens, until the exclusive plugin is called again, and logs a row of the table. If the fault is that of the
// holder's daemon, only the other node is called by its name.
func (b *faultBed) run(name string, ofHolder bool, fault func(ctx context.Context)) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	var running sync.WaitGroup
	call := func(c grpc_testing.TestServiceClient, timeout time.Duration, each func(err error)) {
		running.Go(func() {
			for ; ctx.Err() == nil; pause(ctx, 5*time.Millisecond) {
				bounded, done := context.WithTimeout(ctx, timeout)
				_, err := c.UnaryCall(bounded, &grpc_testing.SimpleRequest{})
				done()
				if ctx.Err() == nil {
					each(err)
				}
			}
		})
	}
	var err error
	if b.held, err = answers(b.t, b.c.caller("")); err != nil {
		b.t.Fatal(err)
	}
	for _, node := range []string{"a", "b"} {
		if ofHolder && node == b.held {
			continue
		}
		c := b.c.callerOf("Plain", "two", node)
		answersFrom(b.t, c, node)
		call(c, patience, func(err error) {
			b.known.Add(1)
			if err != nil {
				b.knownFailed.Add(1)
				b.mu.Lock()
				b.failure = err.Error()
				b.mu.Unlock()
			}
		})
	}
	b.last = time.Now()
	call(b.c.caller(""), time.Second, func(err error) {
		if err != nil {
			return
		}
		b.locked.Add(1)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.gap, b.last = max(b.gap, time.Since(b.last)), time.Now()
	})
	await := func(calls int64) {
		for end := time.Now().Add(patience); b.locked.Load() < calls; pause(ctx, 5*time.Millisecond) {
			if time.Now().After(end) {
				b.t.Errorf("%s: there is no holder", name)
				return
			}
		}
	}
	await(50)
	fault(ctx)
	await(b.locked.Load() + 50)
	cancel()
	running.Wait()
	b.t.Logf("| %s | %d of %d | %d of %d | %.1f s |", name, b.knownFailed.Load(), b.known.Load(), b.stale, b.locked.Load(), b.gap.Seconds())
}

// leader returns the member that leads, and another one.
func (b *faultBed) leader() (leader, other *member) {
	b.t.Helper()
	eventually(b.t, "etcd has a leader", func() bool {
		for _, m := range b.etcd {
			status, err := adminOf(b.t, m.client).Status(soon(b.t), m.client)
			switch {
			case err != nil:
			case status.Leader == status.Header.MemberId:
				leader = m
			default:
				other = m
			}
		}
		return leader != nil && other != nil
	})
	return leader, other
}

// kill kills the process of a member.
func (m *member) kill() {
	_ = m.process.Process.Kill()
	_ = m.process.Wait()
}

// lockKeys calls a function with each key by which the holder stands for the lock.
func (b *faultBed) lockKeys(each func(admin *clientv3.Client, key string, lease clientv3.LeaseID) error) {
	b.t.Helper()
	admin := adminOf(b.t, b.etcd[0].client)
	do(b.t, "keys of the holder", func(ctx context.Context) error {
		found, err := admin.Get(ctx, keys.Space{}.LockRange(b.held), clientv3.WithPrefix())
		if err != nil {
			return err
		}
		for _, kv := range found.Kvs {
			if err := each(admin, string(kv.Key), clientv3.LeaseID(kv.Lease)); err != nil {
				return err
			}
		}
		return nil
	})
}

var faultTable = []struct {
	name   string
	etcd   func(t testing.TB) []*member
	of     bool // the fault is that of the holder's daemon
	happen func(ctx context.Context, b *faultBed)
}{
	{"nothing", one, false, func(ctx context.Context, _ *faultBed) { pause(ctx, 2*time.Second) }},
	{"a member of three is killed, and started after 5 s", startThreeProcesses, false, func(ctx context.Context, b *faultBed) {
		_, other := b.leader()
		other.kill()
		pause(ctx, 5*time.Second)
		other.launchProcess()
	}},
	{"the leader is killed, and started after 5 s", startThreeProcesses, false, func(ctx context.Context, b *faultBed) {
		leader, _ := b.leader()
		leader.kill()
		pause(ctx, 5*time.Second)
		leader.launchProcess()
	}},
	{"the leader is stopped for 10 s", startThreeProcesses, false, func(ctx context.Context, b *faultBed) {
		leader, _ := b.leader()
		leader.freeze(true)
		pause(ctx, 10*time.Second)
		leader.freeze(false)
	}},
	{"a member restarts every 2 s, five times", startThreeProcesses, false, func(ctx context.Context, b *faultBed) {
		for range 5 {
			b.etcd[0].kill()
			pause(ctx, time.Second)
			b.etcd[0].launchProcess()
			pause(ctx, time.Second)
		}
	}},
	{"the leader is cut off from the other members for 10 s", startThree, false, func(ctx context.Context, b *faultBed) {
		leader, _ := b.leader()
		leader.cutOff(b.etcd, true)
		pause(ctx, 10*time.Second)
		leader.cutOff(b.etcd, false)
	}},
	{"all of etcd is down for 10 s", one, false, func(ctx context.Context, b *faultBed) {
		b.etcd[0].stop()
		pause(ctx, 10*time.Second)
		b.etcd[0].start()
	}},
	{"etcd is restored from a backup", one, false, func(ctx context.Context, b *faultBed) {
		backup := b.etcd[0].save()
		pause(ctx, 2*time.Second)
		b.etcd[0].restore(backup, 0)
	}},
	{"etcd is restored, with a bumped revision", one, false, func(ctx context.Context, b *faultBed) {
		backup := b.etcd[0].save()
		pause(ctx, 2*time.Second)
		b.etcd[0].restore(backup, 1_000_000)
	}},
	{"the holder is cut off from etcd for 15 s", one, false, func(ctx context.Context, b *faultBed) {
		b.links[b.held][0].sever()
		pause(ctx, 15*time.Second)
		b.links[b.held][0].mend()
	}},
	{"the holder's key is deleted", one, false, func(_ context.Context, b *faultBed) {
		b.lockKeys(func(admin *clientv3.Client, key string, _ clientv3.LeaseID) error {
			_, err := admin.Delete(soon(b.t), key)
			return err
		})
	}},
	{"the holder's leases are revoked", one, false, func(_ context.Context, b *faultBed) {
		b.lockKeys(func(admin *clientv3.Client, _ string, lease clientv3.LeaseID) error {
			_, err := admin.Revoke(soon(b.t), lease)
			return err
		})
		revokeLeaseOf(b.t, adminOf(b.t, b.etcd[0].client), b.held, "presence")
	}},
	{"a second daemon has the holder's name", one, false, func(_ context.Context, b *faultBed) {
		second := b.daemon(b.c.program, b.held, b.etcd[0].client)
		second.start()
		second.echo(b.called)
		eventually(b.t, "the second one says so", func() bool { return strings.Contains(second.says("fleet"), "another daemon") })
		pause(b.t.Context(), 3*faultPresence)
	}},
	{"the holder's daemon is killed", one, true, func(_ context.Context, b *faultBed) { b.nodes[b.held].kill() }},
	{"the holder's daemon is stopped for 15 s: its clocks jump", one, true, func(ctx context.Context, b *faultBed) {
		process := b.nodes[b.held].cmd.Process
		_ = process.Signal(syscall.SIGSTOP)
		pause(ctx, 15*time.Second)
		_ = process.Signal(syscall.SIGCONT)
	}},
}

// TestFaultTable makes the table of docs/explanation/scale.md: what callers see of each fault. No call to a node that is known fails, and
// the exclusive plugin is never called with a token that is older than one before.
func TestFaultTable(t *testing.T) {
	t.Parallel()
	for _, f := range faultTable {
		t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			b := newFaultBed(t, f.etcd(t), program(t, "patchbay"))
			b.run(f.name, f.of, func(ctx context.Context) { f.happen(ctx, b) })
			if b.knownFailed.Load() > 0 {
				t.Errorf("calls to known nodes failed, the last with: %s", b.failure)
			}
			if b.stale > 0 {
				t.Error("there were two holders")
			}
		})
	}
}

// TestFaultTableUpgrade replaces the daemons of another version, PATCHBAY_BEFORE, by those of this one, the caller's last.
func TestFaultTableUpgrade(t *testing.T) {
	before := os.Getenv("PATCHBAY_BEFORE")
	if before == "" {
		t.Skip("PATCHBAY_BEFORE does not say where another version is")
	}
	b := newFaultBed(t, one(t), before)
	replace := func(name string) {
		d := b.nodes[name]
		d.end(syscall.SIGTERM)
		d.program = program(t, "patchbay")
		d.start()
	}
	b.run("the holder's daemon is replaced", true, func(context.Context) { replace(b.held) })
	pause(t.Context(), 5*faultPresence)
	for _, seen := range []string{"a", "b", "c"} {
		nodes, err := b.nodes[seen].try("fleet", "nodes")
		locks, err2 := b.nodes[seen].try("fleet", "locks")
		t.Logf("%s sees\n%s%s%v %v", seen, nodes, locks, err, err2)
	}
	for _, name := range []string{"a", "b", "c"} {
		if name != b.held {
			replace(name)
		}
	}
	b.c.inFleet(2)
	eventually(t, "the exclusive plugin is called", func() bool { _, err := answers(t, b.c.caller("")); return err == nil })
	t.Logf("calls with an old token: %d", b.stale)
}
