// Package locks decides which node of a fleet may use an exclusive plugin: an [Elector] competes in etcd for the locks of its node's
// plugins, and adds the fencing token of the lock to each call. docs/adr/0013-calls-across-nodes.md explains what a lock guarantees.
package locks

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Elector competes for locks in etcd: of all nodes that compete for a lock, one holds it. The exported fields are set before Init; then an
// Elector is safe for concurrent use.
//
// The holder of a lock has a lease in etcd, and gives up the lock by its own clock before the lease can expire: a tenth of the lease
// earlier, counted from when the last successful renewal was sent. Unless the last holder announced that it gave up, the next one first
// waits for the length of that holder's lease, because the holder may not know that its key is gone. So two nodes never hold a lock at the
// same time, as long as their clocks run at the same rate within a tenth. If a process is paused between its check of the lock and its
// work, only the fencing token helps.
type Elector struct {
	Cluster *fleet.Cluster
	Node    string // the name of this node
	// TTL is the lease of the locks (default [fleet.DefaultPresence]). A node that is dead or cut off from etcd keeps other nodes from the
	// lock for at most twice that. It is rounded up to seconds and limited to a minute.
	TTL       time.Duration
	TokenFile string       // keeps the greatest known token across restarts; empty for none. Its directory must exist.
	Logger    *slog.Logger // logs which locks the node takes and gives up; nil for no log

	space   keys.Space
	timeout time.Duration // of one request
	ledger  *ledger
	changed chan struct{} // gets a value when wanted changes

	// The following two belong to the goroutine of Run.

	member  int           // the member of etcd to connect to next
	longest time.Duration // the longest lease of a contender that was seen

	mu     sync.Mutex
	wanted map[plugin.Name]bool // it is not changed, but replaced
	term   *term                // nil without a lease
	held   map[plugin.Name]*Hold
}

// Init prepares the elector, which does nothing before Run. It returns an error if the token file cannot be read.
func (e *Elector) Init() (err error) {
	if e.ledger, err = openLedger(e.TokenFile); err != nil {
		return fmt.Errorf("cannot compete for locks: %w", err)
	}
	e.TTL = min((cmp.Or(e.TTL, fleet.DefaultPresence) + time.Second - 1).Truncate(time.Second), keys.MaxLockTTL)
	e.Logger = cmp.Or(e.Logger, slog.New(slog.DiscardHandler))
	e.space = e.Cluster.Space()
	e.timeout, e.longest, e.member = min(e.Cluster.Timeout(), e.TTL/5), e.TTL, rand.IntN(1<<20)
	e.changed, e.held = make(chan struct{}, 1), map[plugin.Name]*Hold{}
	return nil
}

// Stand sets the locks that the node wants, of which the first [keys.MaxLocks] count. Locks that the node holds and no longer wants are
// given up immediately.
func (e *Elector) Stand(locks []plugin.Name) {
	wanted := make(map[plugin.Name]bool, len(locks))
	for _, l := range locks[:min(len(locks), keys.MaxLocks)] {
		wanted[l] = true
	}
	e.mu.Lock()
	if len(locks) > keys.MaxLocks && len(e.wanted) < keys.MaxLocks {
		e.Logger.Warn("fleet: the node has more exclusive plugins than it may compete for; run some of them on another node",
			"plugins", len(locks), "limit", keys.MaxLocks)
	}
	e.wanted = wanted
	for l, h := range e.held {
		if !wanted[l] {
			h.lose()
		}
	}
	e.mu.Unlock()
	fleet.Notify(e.changed)
}

func (e *Elector) wants() map[plugin.Name]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wanted
}

// Held returns the node's hold of a lock, nil if the node does not hold it.
func (e *Elector) Held(l plugin.Name) *Hold {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.held[l]
	if h == nil || h.ended.Err() != nil || !e.term.isValid(time.Now()) {
		return nil
	}
	return h
}

// Wanted is a lock that a node wants, whether or not it holds it.
type Wanted struct {
	Lock  plugin.Name
	Held  bool
	Calls int64 // in progress
}

// Wanted returns the locks that the node wants, ordered by type and name; none for a nil Elector.
func (e *Elector) Wanted() (wanted []Wanted) {
	if e == nil {
		return nil
	}
	for _, l := range slices.SortedFunc(maps.Keys(e.wants()), plugin.Name.Compare) {
		w := Wanted{Lock: l}
		if h := e.Held(l); h != nil {
			w.Held, w.Calls = true, h.calls.Load()
		}
		wanted = append(wanted, w)
	}
	return wanted
}

// Hold is one period during which the node holds a lock.
type Hold struct {
	// Token is the fencing token. It grows whenever the lock changes hands, even if etcd is restored from a backup: it is the sum of the
	// revision of etcd when the node took the lock and a base that nodes raise when they see revisions go back.
	Token int64

	lock  plugin.Name
	lose  context.CancelFunc
	ended context.Context //nolint:containedctx // It is the life of the hold.
	calls atomic.Int64    // those in progress
}

// Done is closed when the lock is no longer held.
func (h *Hold) Done() <-chan struct{} { return h.ended.Done() }

// Conn returns a connection whose calls carry the token, with the key [proxy.FencingTokenKey], and end with the hold, with
// codes.Unavailable. A stream counts as a call in progress until its context ends, as package proxy ends it with each call.
func (h *Hold) Conn(conn grpc.ClientConnInterface) grpc.ClientConnInterface { return heldConn{conn, h} }

type heldConn struct {
	grpc.ClientConnInterface
	hold *Hold
}

// begin returns the context for a call, which has the token and ends with the hold. The call is counted until end is called.
func (c heldConn) begin(ctx context.Context) (calling context.Context, end func()) {
	md, _ := metadata.FromOutgoingContext(ctx)
	md = metadata.Join(md) // a copy
	md.Set(proxy.FencingTokenKey, strconv.FormatInt(c.hold.Token, 10))
	calling, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, md))
	forget := context.AfterFunc(c.hold.ended, cancel)
	if c.hold.ended.Err() != nil {
		cancel() // AfterFunc cancels in a goroutine of its own, which may be late
	}
	c.hold.calls.Add(1)
	return calling, sync.OnceFunc(func() {
		forget()
		cancel()
		c.hold.calls.Add(-1)
	})
}

func (c heldConn) explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || c.hold.ended.Err() == nil {
		return err
	}
	return status.Errorf(codes.Unavailable, "the call was ended because its node does not hold the lock of %v any more", c.hold.lock)
}

// Invoke implements grpc.ClientConnInterface.
func (c heldConn) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	calling, end := c.begin(ctx)
	defer end()
	return c.explain(ctx, c.ClientConnInterface.Invoke(calling, method, request, reply, options...))
}

// NewStream implements grpc.ClientConnInterface.
func (c heldConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	calling, end := c.begin(ctx)
	stream, err := c.ClientConnInterface.NewStream(calling, desc, method, options...)
	if err != nil {
		end()
		return nil, c.explain(ctx, err)
	}
	context.AfterFunc(ctx, end) // the registry may repeat the call on a successor, so the end of a stream need not be that of the call
	return heldStream{stream, c, ctx}, nil
}

type heldStream struct {
	grpc.ClientStream
	conn   heldConn
	caller context.Context //nolint:containedctx // A stream has a context.
}

// Unwrap is for package proxy.
func (s heldStream) Unwrap() grpc.ClientStream { return s.ClientStream }

// RecvMsg implements grpc.ClientStream.
func (s heldStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if status.Code(err) == codes.Canceled {
		return s.conn.explain(s.caller, err)
	}
	return err
}
