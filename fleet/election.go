package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/proxy"
)

// Lock identifies the lock of an exclusive plugin, of which one instance in the fleet may be active, by type, or role, and name.
type Lock struct{ Type, Name string }

func (l Lock) String() string { return l.Type + "/" + l.Name }

// key returns what the keys of those that want the lock begin with, without the slash that follows.
func (l Lock) key(s Space) string {
	return s.elections() + url.PathEscape(l.Type) + "/" + url.PathEscape(l.Name)
}

func (s Space) elections() string { return s.Base() + "elections/" }

// Leader is the node that holds a lock.
type Leader struct {
	Lock
	Node string
	// Token is at least the fencing token of this holder, and less than that of the next one.
	Token int64
}

// candidatePrefix stands before the name of a node that wants a lock and has not taken it. Earlier versions wrote the name alone.
const candidatePrefix = "~"

// minTTL and maxTTL are the shortest and the longest lease of an [Elector].
const (
	minTTL = 2 * time.Second
	maxTTL = time.Minute
)

// ElectorConfig configures an [Elector].
type ElectorConfig struct {
	Space Space
	// Node is the name of this node. It is required.
	Node string
	// TTL is the lease of the locks (default [DefaultPresence], at least 2 s). A node that is dead or cut off from etcd keeps others from
	// the lock for at most twice that. It is rounded up to seconds and limited to a minute.
	TTL time.Duration
	// TokenFile stores the greatest token that the node knows of, across restarts; empty for none. Its directory must exist.
	TokenFile string
	// Settings are those that all nodes should have.
	Settings Settings
	// Differ, if it is not nil, is called when [Elector.Condition] has changed. It must not block.
	Differ func(Condition)
	// Logger logs when locks are won and lost; nil for no log.
	Logger *slog.Logger
}

// Elector competes for locks in etcd: of all nodes that compete for a lock, one holds it. All methods are safe for concurrent use.
//
// The holder of a lock has a lease in etcd, and gives up by its own clock before the lease can expire: a tenth of the lease earlier,
// counted from when the last successful renewal was sent. A renewal succeeds only if the key of each lock still exists as this node made
// it. Unless the last holder announced that it gave up, the next one first waits for the length of that holder's lease: the holder's key
// may have been deleted, its lease have expired, or etcd have been restored behind a new connection, and the holder may not know. So no two
// nodes hold a lock at once, as long as their clocks run at the same rate within a tenth. If a process is paused between its check of the
// lock and its work, only the fencing token helps.
type Elector struct {
	config  ElectorConfig
	cluster *Cluster
	log     *slog.Logger
	timeout time.Duration // of one request
	ledger  *ledger
	compare *comparison
	conns   connections
	changed chan struct{} // gets a value when wanted changes

	mu     sync.Mutex
	wanted map[Lock]bool // it is not changed, but replaced
	term   *term         // nil without a lease
	held   map[Lock]*Hold
	seen   time.Duration // the longest lease of a contender, in terms that are over
}

// NewElector returns an elector, which does nothing before Run. It returns an error if the configuration is invalid or the token file
// cannot be read.
func NewElector(c *Cluster, config ElectorConfig) (*Elector, error) {
	config.TTL = cmp.Or(config.TTL, DefaultPresence)
	if config.TTL < minTTL {
		return nil, fmt.Errorf("cannot compete for locks: a lease of %v is too short: use at least %v", config.TTL, minTTL)
	}
	config.TTL = min((config.TTL + time.Second - 1).Truncate(time.Second), maxTTL)
	if err := errors.Join(config.Space.Validate(), ValidateNode(config.Node)); err != nil {
		return nil, fmt.Errorf("cannot compete for locks: %w", err)
	}
	ledger, err := openLedger(config.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("cannot compete for locks: %w", err)
	}
	return &Elector{
		config: config, cluster: c, log: cmp.Or(config.Logger, slog.New(slog.DiscardHandler)), changed: make(chan struct{}, 1), ledger: ledger,
		timeout: min(c.config.Timeout, config.TTL/3), held: map[Lock]*Hold{},
		compare: newComparison(config.Space, config.Settings, config.Differ), conns: connections{began: make(chan struct{}, 1)},
	}, nil
}

// Stand sets the locks that the node wants. It gives up at once those that it holds and no longer wants.
func (e *Elector) Stand(locks []Lock) {
	wanted := make(map[Lock]bool, len(locks))
	for _, l := range locks {
		wanted[l] = true
	}
	e.mu.Lock()
	e.wanted = wanted
	e.mu.Unlock()
	tell(e.changed)
}

// wants returns the locks that the node wants.
func (e *Elector) wants() map[Lock]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wanted
}

// Held returns the node's hold of a lock, nil if it does not hold it now.
func (e *Elector) Held(l Lock) *Hold {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.held[l]
	if h == nil || h.ended.Err() != nil || !e.term.valid(time.Now()) {
		return nil
	}
	return h
}

// Wanted is a lock that a node wants, whether or not it holds it.
type Wanted struct {
	Lock
	// Held says whether the node holds it, and Calls how many calls are then in progress.
	Held  bool
	Calls int64
}

// Wanted returns the locks that the node wants, ordered by type and name.
func (e *Elector) Wanted() []Wanted {
	var wanted []Wanted
	for l := range e.wants() {
		w := Wanted{Lock: l}
		if h := e.Held(l); h != nil {
			w.Held, w.Calls = true, h.calls.Load()
		}
		wanted = append(wanted, w)
	}
	slices.SortFunc(wanted, func(a, b Wanted) int { return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name)) })
	return wanted
}

// Condition says whether the nodes of the fleet have the same settings, as far as the node knows: it looks while it wants locks.
func (e *Elector) Condition() Condition { return e.compare.get() }

// Locks finds the holders of locks, for programs that call exclusive plugins and compete for no lock themselves. Its methods are safe for
// concurrent use.
type Locks struct {
	client  *clientv3.Client
	space   Space
	timeout time.Duration
}

// OpenLocks returns the locks of a fleet. It fails as [Cluster.Client] does. The caller calls Close.
func OpenLocks(c *Cluster, space Space) (*Locks, error) {
	client, err := c.Client()
	if err != nil {
		return nil, fmt.Errorf("cannot find out who holds the locks: %w", err)
	}
	return &Locks{client: client, space: space, timeout: c.config.Timeout}, nil
}

// Close ends the connection to etcd.
func (l *Locks) Close() error { return l.client.Close() }

// Holder asks etcd which node holds a lock. Exclusive is false for a lock that nobody holds or wants. The error says why etcd did not
// answer. It is meant for [DialerConfig].Leader. Each node writes below a range of its own, so that each request reads the contenders for
// all locks: in large fleets use [Lookup.Holder], which reads them once and follows them.
func (l *Locks) Holder(ctx context.Context, lock Lock) (node string, exclusive bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	own := clientv3.OpGet(l.space.contenders(), clientv3.WithPrefix())
	older := clientv3.OpGet(lock.key(l.space)+"/", clientv3.WithPrefix())
	found, err := l.client.Txn(clientv3.WithRequireLeader(ctx)).Then(own, older).Commit()
	if err != nil {
		return "", false, fmt.Errorf("cannot find out who holds the lock of %v: %w", lock, explain(err))
	}
	all := standing{}
	for _, response := range found.Responses {
		for _, kv := range response.GetResponseRange().GetKvs() {
			all.put(l.space, kv)
		}
	}
	holder, exclusive := all.holder(lock)
	return holder.node, exclusive, nil
}

// Hold is a lock that the node holds.
type Hold struct {
	// Token is the fencing token. It grows whenever the lock passes on, even when etcd is restored from a backup: it is the sum of the
	// revision at which the node took the lock in etcd and a base that nodes raise when they see revisions go back.
	Token int64

	lock  Lock
	key   string    // in etcd
	older string    // the key that earlier versions look at; empty if the node may not write it
	made  int64     // the revision at which the keys were made
	stood time.Time // when that was known
	lose  context.CancelFunc
	ended context.Context //nolint:containedctx // It is the life of the hold.
	calls atomic.Int64    // those in progress
}

// Done is closed when the lock is no longer held.
func (h *Hold) Done() <-chan struct{} { return h.ended.Done() }

// Conn returns a connection whose calls carry the token, with the key [proxy.FencingTokenKey], and end with the hold, with
// codes.Unavailable.
func (h *Hold) Conn(conn grpc.ClientConnInterface) grpc.ClientConnInterface { return heldConn{conn, h} }

type heldConn struct {
	grpc.ClientConnInterface
	hold *Hold
}

// begin counts a call until end, and has it end with the hold too and carry the token.
func (c heldConn) begin(ctx context.Context) (calling context.Context, end func()) {
	calling, cancel := context.WithCancel(withMetadata(ctx, proxy.FencingTokenKey, strconv.FormatInt(c.hold.Token, 10)))
	forget := context.AfterFunc(c.hold.ended, cancel)
	if c.hold.ended.Err() != nil {
		cancel() // at once: AfterFunc takes its time
	}
	c.hold.calls.Add(1)
	return calling, sync.OnceFunc(func() {
		forget()
		cancel()
		c.hold.calls.Add(-1)
	})
}

// withMetadata sets metadata of a call, pairs of key and value.
func withMetadata(ctx context.Context, pairs ...string) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	md = metadata.Join(md) // a copy
	for pair := range slices.Chunk(pairs, 2) {
		md.Set(pair[0], pair[1])
	}
	return metadata.NewOutgoingContext(ctx, md)
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
	// The registry reopens a stream on a successor. gRPC then reports an end, and nobody can say whether it is that of this stream.
	const opening, unclear, open = 0, 1, 2
	var state atomic.Int32
	finished := grpc.OnFinish(func(error) {
		if !state.CompareAndSwap(opening, unclear) && state.Load() == open {
			end()
		}
	})
	stream, err := c.ClientConnInterface.NewStream(calling, desc, method, append(slices.Clip(options), finished)...)
	if err != nil {
		end()
		return nil, c.explain(ctx, err)
	}
	if !state.CompareAndSwap(opening, open) {
		context.AfterFunc(stream.Context(), end)
	}
	return heldStream{stream, c, ctx}, nil
}

type heldStream struct {
	grpc.ClientStream
	conn   heldConn
	caller context.Context //nolint:containedctx // A stream has a context.
}

// Unwrap returns the registry's stream, for package proxy.
func (s heldStream) Unwrap() grpc.ClientStream { return s.ClientStream }

// RecvMsg implements grpc.ClientStream.
func (s heldStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if status.Code(err) == codes.Canceled {
		return s.conn.explain(s.caller, err)
	}
	return err
}
