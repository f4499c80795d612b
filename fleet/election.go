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

// Lock is the lock of a plugin of which one instance in the fleet may be active: it belongs to a type, or role, and a name.
type Lock struct{ Type, Name string }

func (l Lock) String() string { return l.Type + "/" + l.Name }

// key returns what the keys of those that want the lock begin with, without the slash that follows.
func (l Lock) key(s Space) string {
	return s.elections() + url.PathEscape(l.Type) + "/" + url.PathEscape(l.Name)
}

func (s Space) elections() string { return s.Base() + "elections/" }

// parseLock reads a key of one that wants a lock.
func parseLock(s Space, key string) (Lock, bool) {
	rest, ok := strings.CutPrefix(key, s.elections())
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 {
		return Lock{}, false
	}
	ptype, err1 := url.PathUnescape(parts[0])
	name, err2 := url.PathUnescape(parts[1])
	return Lock{ptype, name}, err1 == nil && err2 == nil && ptype != "" && name != ""
}

// Leader is the node that holds a lock.
type Leader struct {
	Lock
	Node string
	// Token is at least the fencing token of this holder, and less than that of the next one.
	Token int64
}

// candidatePrefix stands before the name of a node that wants a lock and has not taken it. Earlier versions wrote the name alone.
const candidatePrefix = "~"

// minTTL is the shortest lease of an [Elector].
const minTTL = 2 * time.Second

// ElectorConfig is what an [Elector] works with.
type ElectorConfig struct {
	Space Space
	// Node is the name of this node. It is required.
	Node string
	// TTL is how long a node that is cut off from etcd, or dead, keeps others from the lock (default [DefaultPresence], at least 2 s). It is
	// rounded up to seconds.
	TTL time.Duration
	// TokenFile remembers the greatest token that the node knows of, over restarts; empty for none. Its directory has to be there.
	TokenFile string
	// Logger is told when locks are won and lost; nil for no log.
	Logger *slog.Logger
}

// Elector competes for locks in etcd: of all nodes that stand for a lock, one holds it. All methods may be called at once from several
// goroutines.
//
// Who holds a lock has a lease in etcd, and gives up by its own clock before that lease can end: a tenth of its length before, counted from
// when the last renewal that succeeded was sent. A renewal succeeds only if the key of each lock is still there, as this node made it, and
// is the first. Behind a new connection, etcd may have been restored to a state that does not know the holder: a lock is taken no earlier
// than one TTL after that began. So no two nodes hold a lock at once, as long as their TTLs are the same and their clocks run equally fast
// within a tenth. Against a process that was stopped between its check of the lock and its work only the fencing token helps.
type Elector struct {
	config  ElectorConfig
	cluster *Cluster
	log     *slog.Logger
	locks   Locks // without a client before Run and after it
	ledger  *ledger
	conns   connections
	changed chan struct{} // gets a value when wanted changes

	mu     sync.Mutex
	wanted map[Lock]bool // it is not changed, but replaced
	term   *term         // nil without a lease
	held   map[Lock]*Hold
}

// NewElector returns an elector. Nothing happens before Run.
func NewElector(c *Cluster, config ElectorConfig) (*Elector, error) {
	config.TTL = cmp.Or(config.TTL, DefaultPresence)
	if config.TTL < minTTL {
		return nil, fmt.Errorf("cannot compete for locks: a lease of %v is too short: use at least %v", config.TTL, minTTL)
	}
	config.TTL = (config.TTL + time.Second - 1).Truncate(time.Second)
	if err := errors.Join(config.Space.Validate(), ValidateNode(config.Node)); err != nil {
		return nil, fmt.Errorf("cannot compete for locks: %w", err)
	}
	ledger, err := openLedger(config.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("cannot compete for locks: %w", err)
	}
	return &Elector{
		config: config, cluster: c, log: cmp.Or(config.Logger, slog.New(slog.DiscardHandler)), changed: make(chan struct{}, 1), ledger: ledger,
		locks: Locks{space: config.Space, timeout: min(c.config.Timeout, config.TTL/3)}, held: map[Lock]*Hold{},
	}, nil
}

// Stand says which locks the node wants. Those that it holds and does not want any more it gives up at once.
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

// Leader returns who holds a lock by etcd's account. Without one, Node is empty.
func (e *Elector) Leader(ctx context.Context, l Lock) (Leader, error) {
	leader, _, err := e.locks.leader(ctx, l)
	return leader, err
}

// Leaders returns who holds which lock by etcd's account.
func (e *Elector) Leaders(ctx context.Context) (map[Lock]Leader, error) {
	leaders, err := e.locks.leaders(ctx, clientv3.OpGet(e.config.Space.elections(), clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)))
	if err != nil {
		return nil, fmt.Errorf("cannot find out who holds the locks: %w", explain(err))
	}
	return leaders, nil
}

// Locks finds the holders of locks, for programs that call exclusive plugins and compete for no lock themselves. Its methods may be called
// from several goroutines.
type Locks struct {
	client  atomic.Pointer[clientv3.Client]
	space   Space
	timeout time.Duration
}

// OpenLocks returns the locks of a fleet. It does not connect yet. The caller calls Close.
func OpenLocks(c *Cluster, space Space) (*Locks, error) {
	client, err := c.Client()
	if err != nil {
		return nil, fmt.Errorf("cannot find out who holds the locks: %w", err)
	}
	l := &Locks{space: space, timeout: c.config.Timeout}
	l.client.Store(client)
	return l, nil
}

// Close ends the connection to etcd.
func (l *Locks) Close() error {
	if client := l.client.Swap(nil); client != nil {
		return client.Close()
	}
	return nil
}

// Holder returns the node that holds a lock. Exclusive is false for a lock that nobody holds or wants. It asks etcd, and is meant for
// [DialerConfig].Leader.
func (l *Locks) Holder(ctx context.Context, lock Lock) (node string, exclusive bool, err error) {
	leader, exclusive, err := l.leader(ctx, lock)
	return leader.Node, exclusive, err
}

func (l *Locks) leader(ctx context.Context, lock Lock) (leader Leader, found bool, err error) {
	leaders, err := l.leaders(ctx, clientv3.OpGet(lock.key(l.space)+"/", clientv3.WithFirstCreate()...))
	if err != nil {
		return Leader{}, false, fmt.Errorf("cannot find out who holds the lock of %v: %w", lock, explain(err))
	}
	leader, found = leaders[lock]
	leader.Lock = lock
	return leader, found, nil
}

// leaders returns the holders among the keys that a request finds, the eldest first.
func (l *Locks) leaders(ctx context.Context, keys clientv3.Op) (map[Lock]Leader, error) {
	client := l.client.Load()
	if client == nil {
		return nil, errors.New("there is no connection to etcd yet, or no more")
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	bases := clientv3.OpGet(l.space.bases(), clientv3.WithPrefix())
	found, err := client.Txn(clientv3.WithRequireLeader(ctx)).Then(bases, keys).Commit()
	if err != nil {
		return nil, err
	}
	base := baseIn(found.Responses[0].GetResponseRange().GetKvs())
	leaders := map[Lock]Leader{}
	for _, kv := range found.Responses[1].GetResponseRange().GetKvs() {
		lock, ok := parseLock(l.space, string(kv.Key))
		node, waits := strings.CutPrefix(string(kv.Value), candidatePrefix)
		_, later := leaders[lock]
		switch {
		case !ok || later || ValidateNode(node) != nil:
		case waits:
			leaders[lock] = Leader{Lock: lock} // it does not know yet, or may not take it yet
		default:
			leaders[lock] = Leader{Lock: lock, Node: node, Token: base + kv.ModRevision}
		}
	}
	return leaders, nil
}

// Hold is a lock that the node holds.
type Hold struct {
	// Token is the fencing token. It grows whenever the lock passes on, also when etcd is restored from a backup: it is the revision at which
	// etcd was told that the node holds the lock, and a base that nodes raise when they see revisions go back.
	Token int64

	lock  Lock
	key   string // in etcd
	made  int64  // the revision at which the key was made
	lose  context.CancelFunc
	ended context.Context //nolint:containedctx // It is the life of the hold.
	calls atomic.Int64    // those in progress
}

// Done is closed when the lock is not held any more.
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
	// The registry opens a stream anew on a successor. gRPC then tells of an end of which nobody can say whether it is that of the stream.
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

// RecvMsg implements grpc.ClientStream.
func (s heldStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if status.Code(err) == codes.Canceled {
		return s.conn.explain(s.caller, err)
	}
	return err
}
