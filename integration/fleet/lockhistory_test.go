package fleet_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/fleet/locks"
	pbproxy "github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/plugin"
)

var (
	lockCalls = flag.Int("locks.calls", 20_000, "the number of calls of all histories of locks")
	lockOne   = flag.Int("locks.history", 0, "the number of calls of one history; 0 for one history of each fault")
	lockFirst = flag.Int("locks.first", 0, "the number of the first history")
)

const (
	// lockTTL is the lease of the locks of the tests.
	lockTTL = 2 * time.Second
	// lockTime is how long one history takes, unless its fault takes longer, which begins after a tenth of it.
	lockTime = 12 * time.Second
	// maxHistory bounds the calls of one history: a longer one takes the checker too long.
	maxHistory = 20_000
)

// held is what a node says when it is asked for a lock; nil if it does not hold it.
type held struct {
	*locks.Hold
	token int64
}

// locker is a node that competes for locks, as callers see it.
type locker interface {
	Held(l plugin.Name) *held
	Stand(locks []plugin.Name)
}

// realLocker is the product.
type realLocker struct{ *locks.Elector }

func (r realLocker) Held(l plugin.Name) *held {
	if h := r.Elector.Held(l); h != nil {
		return &held{h, h.Token}
	}
	return nil
}

// lockBed is a fleet whose locks are called, and what was seen.
type lockBed struct {
	t      *testing.T
	etcd   []*member
	nodes  []*lockNode
	locks  []plugin.Name
	reader *clientv3.Client // as a program has it that competes for no lock
	// readerLink leads to each member of etcd.
	readerLink []*proxy
	began      time.Time
	// blind says that what etcd says counts for nothing.
	blind atomic.Bool

	mu      sync.Mutex
	history []porcupine.Operation
}

// lockNode is one node of it.
type lockNode struct {
	locker
	name   string
	link   []*proxy             // to each member of etcd
	wanted map[plugin.Name]bool // belongs to its mover
	// left says that something happens to it, and its mover leaves it alone.
	left atomic.Bool
}

// storage is what is behind an exclusive plugin: it notes the token of a call.
type storage struct{ grpc.ClientConnInterface }

func (storage) Invoke(ctx context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	token, err := strconv.ParseInt(md.Get(pbproxy.FencingTokenKey)[0], 10, 64)
	if err != nil {
		return err
	}
	*reply.(*int64) = token
	return ctx.Err()
}

// record notes one call, unless it failed.
func (b *lockBed) record(in lockInput, call func() (lockOutput, error)) {
	began := time.Since(b.began)
	out, err := call()
	ended := time.Since(b.began)
	if err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.history = append(b.history, porcupine.Operation{Input: in, Output: out, Call: int64(began), Return: int64(ended)})
}

func (b *lockBed) calls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.history)
}

// ask asks a node for a lock, or calls the plugin through it.
func (b *lockBed) ask(ctx context.Context, n *lockNode, l plugin.Name) {
	if rand.IntN(2) == 0 {
		b.record(lockInput{lockAsk, l, n.name}, func() (lockOutput, error) {
			if h := n.Held(l); h != nil {
				return lockOutput{token: h.token}, nil
			}
			return lockOutput{}, nil
		})
		return
	}
	b.record(lockInput{lockCall, l, n.name}, func() (out lockOutput, err error) {
		h := n.Held(l)
		if h == nil {
			return out, nil
		}
		err = h.Conn(storage{}).Invoke(ctx, "/storage/Write", nil, &out.token)
		if err == nil && out.token != h.Token {
			err = fmt.Errorf("the plugin of %s has token %d instead of %d", n.name, out.token, h.Token)
			b.t.Error(err)
		}
		out.token = h.token
		return out, err
	})
}

// observe asks etcd who holds a lock, as a program does that competes for none.
func (b *lockBed) observe(ctx context.Context, l plugin.Name) {
	b.record(lockInput{lockObserve, l, ""}, func() (lockOutput, error) {
		blind := b.blind.Load()
		first, err := b.first(ctx, l)
		if blind || b.blind.Load() {
			err = errors.New("etcd was restored")
		}
		switch {
		case first.Token == 0:
			return lockOutput{}, err
		case first.Node == "evil": // what it says of its token counts for nothing
			first.Token = 0
		}
		return lockOutput{first.Node, first.Token}, err
	})
}

// first returns the contender for a lock that holds it, or will.
func (b *lockBed) first(ctx context.Context, l plugin.Name) (first keys.Contender, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	found, err := b.reader.Get(ctx, keys.Space{}.LockSpace(), clientv3.WithPrefix())
	if err != nil {
		return first, err
	}
	all := keys.Contenders{}
	for _, kv := range found.Kvs {
		all.Put(keys.Space{}, kv)
	}
	return all.First(l), nil
}

// move has a node want a lock if it does not, and the other way round.
func (b *lockBed) move(ctx context.Context, n *lockNode, l plugin.Name) {
	if n.left.Load() {
		return
	}
	stand := func(wants bool) {
		n.wanted[l] = wants
		var locks []plugin.Name
		for lock, wants := range n.wanted {
			if wants {
				locks = append(locks, lock)
			}
		}
		n.Stand(locks)
	}
	if n.wanted[l] {
		h := n.Held(l)
		if h == nil {
			return // it waits
		}
		b.record(lockInput{lockRelease, l, n.name}, func() (lockOutput, error) {
			stand(false)
			select {
			case <-h.Done():
				return lockOutput{}, nil
			case <-ctx.Done():
				return lockOutput{}, ctx.Err()
			}
		})
		return
	}
	b.record(lockInput{lockAcquire, l, n.name}, func() (lockOutput, error) {
		stand(true)
		for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if h := n.Held(l); h != nil {
				return lockOutput{token: h.token}, nil
			}
		}
		return lockOutput{}, errors.New("it waits")
	})
}

// run makes a number of calls while the fault happens, in the same time whatever the number is.
func (b *lockBed) run(ctx context.Context, calls int, fault func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	faulty := make(chan struct{})
	each := func(every time.Duration, do func()) {
		running.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for ctx.Err() == nil {
				if !b.spared(calls, faulty) {
					do()
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	b.began = time.Now()
	every := lockTime * time.Duration(len(b.nodes)*len(b.locks)) / time.Duration(calls)
	for _, l := range b.locks {
		each(max(every, 20*time.Millisecond), func() { b.observe(ctx, l) })
		for _, n := range b.nodes {
			each(every, func() { b.ask(ctx, n, l) })
		}
	}
	for _, n := range b.nodes {
		each(300*time.Millisecond, func() { b.move(ctx, n, b.locks[rand.IntN(len(b.locks))]) })
	}
	running.Go(func() {
		defer close(faulty)
		time.Sleep(lockTime / 10)
		fault(ctx)
	})
	<-faulty
	for b.calls() < calls && ctx.Err() == nil {
		pause(ctx, 10*time.Millisecond)
	}
	cancel()
	running.Wait()
	if n := b.calls(); n > maxHistory {
		b.t.Errorf("the history has %d calls: the fault took too long", n)
	}
}

// spared says that a call is left out, so that the calls last until the fault is over: most of them once nine tenths have been made.
func (b *lockBed) spared(calls int, over <-chan struct{}) bool {
	select {
	case <-over:
		return false
	default:
		return b.calls() > calls*9/10 && rand.IntN(20) > 0
	}
}

// judge says whether what was seen is what a lock does.
func (b *lockBed) judge() (porcupine.CheckResult, []porcupine.Operation) {
	b.t.Helper()
	var all []porcupine.Operation
	b.mu.Lock()
	all = b.history
	b.mu.Unlock()
	began := time.Now()
	result := porcupine.CheckOperationsTimeout(lockModel, all, 2*time.Minute)
	holders := map[string]bool{}
	kinds := map[lockCallKind]int{}
	for _, op := range all {
		in, out := op.Input.(lockInput), op.Output.(lockOutput)
		kinds[in.kind]++
		if out.token > 0 {
			holders[fmt.Sprint(in.lock, out.token)] = true
		}
	}
	b.t.Logf("%d calls %v, %d holds, judged in %v: %s", len(all), kinds, len(holders), time.Since(began).Round(time.Millisecond), result)
	return result, all
}

// explain logs the end of the shortest beginning of a history that is wrong.
func (b *lockBed) explain(all []porcupine.Operation) {
	for _, part := range lockModel.Partition(all) {
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
		wrong := sort.Search(len(part)+1, func(n int) bool { return !porcupine.CheckOperations(lockModel, part[:n]) })
		if wrong > len(part) {
			continue
		}
		for _, op := range part[max(0, wrong-40):wrong] {
			b.t.Logf("%v to %v: %s", time.Duration(op.Call), time.Duration(op.Return), lockModel.DescribeOperation(op.Input, op.Output))
		}
	}
}

// newLockBed returns four nodes that compete for two locks, on so many members of etcd.
func newLockBed(t *testing.T, etcd []*member, ttl func(node int) time.Duration, mutate func(locker) locker) *lockBed {
	t.Helper()
	b := &lockBed{t: t, etcd: etcd, locks: []plugin.Name{{Type: "Echo", Name: "one"}, {Type: "Echo", Name: "two"}}}
	link := func() (links []*proxy, urls []string) {
		for _, m := range etcd {
			p := newProxy(t, m.client)
			links, urls = append(links, p), append(urls, p.url)
		}
		return links, urls
	}
	var via []string
	b.readerLink, via = link()
	b.reader = adminOf(t, via...)
	for i := range 4 {
		n := &lockNode{name: fmt.Sprintf("n%d", i), wanted: map[plugin.Name]bool{}}
		n.link, via = link()
		e := &locks.Elector{
			Cluster: connect(t, via...), Node: n.name, TTL: ttl(i), TokenFile: filepath.Join(t.TempDir(), "tokens"),
		}
		if err := e.Init(); err != nil {
			t.Fatal(err)
		}
		n.locker = mutate(realLocker{e})
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { e.Run(ctx) })
		t.Cleanup(func() { cancel(); running.Wait() })
		for _, l := range b.locks {
			n.wanted[l] = true
		}
		e.Stand(b.locks)
		b.nodes = append(b.nodes, n)
	}
	for _, l := range b.locks {
		eventually(t, "a node holds the lock", func() bool { return b.holder(l) != nil })
	}
	return b
}

// holder returns the node that holds a lock, by its own account; nil for none.
func (b *lockBed) holder(l plugin.Name) *lockNode {
	for _, n := range b.nodes {
		if n.Held(l) != nil {
			return n
		}
	}
	return nil
}

// settled waits until each lock has a holder whom the reader finds.
func (b *lockBed) settled() {
	b.t.Helper()
	for _, n := range b.nodes {
		n.Stand(b.locks)
	}
	for _, l := range b.locks {
		eventually(b.t, "the reader finds the holder", func() bool {
			first, err := b.first(b.t.Context(), l)
			n := b.holder(l)
			return err == nil && n != nil && first.Token > 0 && n.name == first.Node
		})
	}
}

// TestLocks: callers see one holder of a lock at most, and tokens that grow, through each fault.
func TestLocks(t *testing.T) {
	t.Parallel()
	calls := *lockOne
	if calls == 0 {
		calls = (*lockCalls + len(lockFaults) - 1) / len(lockFaults)
	}
	if calls > maxHistory {
		t.Fatalf("a history has at most %d calls", maxHistory)
	}
	for i := *lockFirst; i < *lockFirst+(*lockCalls+calls-1)/calls; i++ {
		f := lockFaults[i%len(lockFaults)]
		t.Run(fmt.Sprintf("%d-%s", i, f.name), func(t *testing.T) {
			t.Parallel()
			ttl := f.ttl
			if ttl == nil {
				ttl = func(int) time.Duration { return lockTTL }
			}
			b := newLockBed(t, f.etcd(t), ttl, func(l locker) locker { return l })
			b.run(t.Context(), calls, func(ctx context.Context) { f.happen(ctx, b) })
			if result, all := b.judge(); result != porcupine.Ok {
				t.Errorf("the locks are not linearizable (%s)", result)
				b.explain(all)
			}
			b.settled()
		})
	}
}

// TestLocksBroken: the checker finds locks that are broken, in calls of which each alone looks right.
func TestLocksBroken(t *testing.T) {
	t.Parallel()
	for name, mutate := range map[string]func(locker) locker{
		"does-not-notice": func(l locker) locker { return &deaf{locker: l, last: map[plugin.Name]*held{}} },
		"same-token":      func(l locker) locker { return mute{l} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newLockBed(t, one(t), func(int) time.Duration { return lockTTL }, mutate)
			b.run(t.Context(), 1000, func(ctx context.Context) { times(2, deleteKey)(ctx, b) })
			if result, _ := b.judge(); result != porcupine.Illegal {
				t.Errorf("the checker says %s", result)
			}
		})
	}
}

// deaf is a node that notices only after a second that it does not hold a lock any more.
type deaf struct {
	locker

	mu   sync.Mutex
	last map[plugin.Name]*held
	seen time.Time
}

func (d *deaf) Held(l plugin.Name) *held {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.locker.Held(l); h != nil {
		d.last[l], d.seen = h, time.Now()
	}
	if time.Since(d.seen) > time.Second {
		d.last[l] = nil
	}
	return d.last[l]
}

// mute is a node whose tokens do not grow.
type mute struct{ locker }

func (m mute) Held(l plugin.Name) *held {
	h := m.locker.Held(l)
	if h != nil {
		h.token = 7
	}
	return h
}
