// Package locks decides which node of a fleet may use an exclusive plugin: an [Elector] competes in etcd for the locks of the plugins that
// its node has, and gives each call the fencing token of the lock.
//
// docs/adr/0013-calls-across-nodes.md explains what a lock guarantees, and why it is not an election of etcd's own client.
package locks

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/fleet"
)

// minTTL and maxTTL are the shortest and the longest lease of an [Elector].
const (
	minTTL = 2 * time.Second
	maxTTL = time.Minute
)

// Config configures an [Elector].
type Config struct {
	Space fleet.Space
	// Node is the name of this node. It is required.
	Node string
	// TTL is the lease of the locks (default [fleet.DefaultPresence], at least 2 s). A node that is dead or cut off from etcd keeps others
	// from the lock for at most twice that. It is rounded up to seconds and limited to a minute.
	TTL time.Duration
	// TokenFile stores the greatest token that the node knows of, across restarts; empty for none. Its directory must exist.
	TokenFile string
	// Settings is that of [fleet.PublisherConfig].
	Settings string
	// Differ, if it is not nil, is called when [Elector.Condition] has changed. It must not block.
	Differ func(fleet.Condition)
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
//
// An elector has one connection to etcd at a time, and takes another member when that is lost.
type Elector struct {
	config  Config
	cluster *fleet.Cluster
	log     *slog.Logger
	timeout time.Duration // of one request
	ledger  *ledger
	compare *comparison
	changed chan struct{} // gets a value when wanted changes

	// The following belong to the goroutine of Run.

	member  int           // the member of etcd to connect to next
	longest time.Duration // the longest lease of a contender that was seen

	mu     sync.Mutex
	wanted map[fleet.Lock]bool // it is not changed, but replaced
	term   *term               // nil without a lease
	held   map[fleet.Lock]*Hold
}

// New returns an elector, which does nothing before Run. It returns an error if the configuration is invalid or the token file cannot be
// read.
func New(c *fleet.Cluster, config Config) (*Elector, error) {
	config.TTL = cmp.Or(config.TTL, fleet.DefaultPresence)
	if config.TTL < minTTL {
		return nil, fmt.Errorf("cannot compete for locks: a lease of %v is too short: use at least %v", config.TTL, minTTL)
	}
	config.TTL = min((config.TTL + time.Second - 1).Truncate(time.Second), maxTTL)
	if err := errors.Join(config.Space.Validate(), fleet.ValidateNode(config.Node)); err != nil {
		return nil, fmt.Errorf("cannot compete for locks: %w", err)
	}
	ledger, err := openLedger(config.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("cannot compete for locks: %w", err)
	}
	return &Elector{
		config: config, cluster: c, log: cmp.Or(config.Logger, slog.New(slog.DiscardHandler)), changed: make(chan struct{}, 1), ledger: ledger,
		timeout: min(c.Timeout(), config.TTL/5), held: map[fleet.Lock]*Hold{}, longest: config.TTL,
		compare: newComparison(config), member: rand.IntN(1 << 20),
	}, nil
}

// Stand sets the locks that the node wants. The locks that the node holds and no longer wants are given up immediately.
func (e *Elector) Stand(locks []fleet.Lock) {
	wanted := make(map[fleet.Lock]bool, len(locks))
	for _, l := range locks {
		wanted[l] = true
	}
	e.mu.Lock()
	e.wanted = wanted
	for l, h := range e.held {
		if !wanted[l] {
			h.lose()
		}
	}
	e.mu.Unlock()
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// wants returns the locks that the node wants.
func (e *Elector) wants() map[fleet.Lock]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wanted
}

// Held returns the node's hold of a lock, nil if it does not hold it now.
func (e *Elector) Held(l fleet.Lock) *Hold {
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
	fleet.Lock
	// Held reports whether the node holds the lock, and Calls is the number of calls in progress under it.
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

func newComparison(c Config) *comparison {
	same := fleet.Condition{Name: SettingsCondition, OK: true}
	return &comparison{prefix: c.Space.SettingsKey(""), own: c.Settings, notify: c.Differ, condition: same}
}

// Condition reports whether the nodes of the fleet have the same settings. It is kept up to date while the node wants locks.
func (e *Elector) Condition() fleet.Condition { return e.compare.get() }
