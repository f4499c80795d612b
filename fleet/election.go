package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
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
	// Token is the fencing token: it grows whenever the lock passes on.
	Token int64
}

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
	// Timeout bounds one request (default 5 s, but at most a third of TTL).
	Timeout time.Duration
	// Logger is told when locks are won and lost; nil for no log.
	Logger *slog.Logger
}

// Elector competes for locks in etcd: of all nodes that stand for a lock, one holds it. All methods may be called at once from several
// goroutines.
//
// Who holds a lock has a lease in etcd, and gives up by its own clock before that lease can end: a tenth of its length before, counted from
// when the last renewal that succeeded was sent. So no two nodes hold a lock at once, as long as their clocks run equally fast within a
// tenth. Against a process that was stopped between its check of the lock and its work only the fencing token helps.
type Elector struct {
	config  ElectorConfig
	cluster *Cluster
	log     *slog.Logger
	changed chan struct{} // gets a value when wanted changes

	mu     sync.Mutex
	client *clientv3.Client // nil before Run and after it
	wanted map[Lock]bool
	term   *term // nil without a lease
	held   map[Lock]*Hold
}

// NewElector returns an elector. Nothing happens before Run.
func NewElector(c *Cluster, config ElectorConfig) (*Elector, error) {
	config.TTL = cmp.Or(config.TTL, DefaultPresence)
	if config.TTL < minTTL {
		return nil, fmt.Errorf("cannot compete for locks: a lease of %v is too short: use at least %v", config.TTL, minTTL)
	}
	config.TTL = (config.TTL + time.Second - 1).Truncate(time.Second)
	config.Timeout = min(cmp.Or(config.Timeout, defaultTimeout), config.TTL/3)
	if err := errors.Join(config.Space.Validate(), ValidateNode(config.Node)); err != nil {
		return nil, fmt.Errorf("cannot compete for locks: %w", err)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	return &Elector{
		config: config, cluster: c, log: config.Logger, changed: make(chan struct{}, 1), wanted: map[Lock]bool{}, held: map[Lock]*Hold{},
	}, nil
}

// Stand says which locks the node wants. Those that it holds and does not want any more it gives up at once.
func (e *Elector) Stand(locks []Lock) {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.wanted)
	for _, l := range locks {
		e.wanted[l] = true
	}
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// wants returns the locks that the node wants.
func (e *Elector) wants() map[Lock]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	wanted := make(map[Lock]bool, len(e.wanted))
	for l := range e.wanted {
		wanted[l] = true
	}
	return wanted
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

// errNoClient says that there is no client of etcd yet.
var errNoClient = errors.New("etcd has not been reached yet")

// Leader returns who holds a lock by etcd's account. Without one, Node is empty.
func (e *Elector) Leader(ctx context.Context, l Lock) (Leader, error) {
	leaders, err := e.leaders(ctx, l.key(e.config.Space)+"/", clientv3.WithFirstCreate()...)
	if err != nil {
		return Leader{}, fmt.Errorf("cannot find out who holds the lock of %v: %w", l, explain(err))
	}
	for _, leader := range leaders {
		return leader, nil
	}
	return Leader{Lock: l}, nil
}

// Leaders returns who holds which lock by etcd's account.
func (e *Elector) Leaders(ctx context.Context) (map[Lock]Leader, error) {
	leaders, err := e.leaders(ctx, e.config.Space.elections(), clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return nil, fmt.Errorf("cannot find out who holds the locks: %w", explain(err))
	}
	return leaders, nil
}

func (e *Elector) leaders(ctx context.Context, key string, options ...clientv3.OpOption) (map[Lock]Leader, error) {
	e.mu.Lock()
	client := e.client
	e.mu.Unlock()
	if client == nil {
		return nil, errNoClient
	}
	ctx, cancel := within(ctx, e.config.Timeout)
	defer cancel()
	return leadersIn(ctx, client, e.config.Space, key, options...)
}

// leadersIn reads who holds which locks.
func leadersIn(
	ctx context.Context, client *clientv3.Client, space Space, key string, options ...clientv3.OpOption,
) (map[Lock]Leader, error) {
	response, err := client.Get(clientv3.WithRequireLeader(ctx), key, options...)
	if err != nil {
		return nil, err
	}
	leaders := map[Lock]Leader{}
	for _, kv := range response.Kvs {
		l, ok := parseLock(space, string(kv.Key))
		if _, later := leaders[l]; ok && !later && ValidateNode(string(kv.Value)) == nil {
			leaders[l] = Leader{Lock: l, Node: string(kv.Value), Token: kv.CreateRevision}
		}
	}
	return leaders, nil
}
