package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/regular"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Local is the node that a [Publisher] publishes. Its methods are called from one goroutine and do not block.
type Local interface {
	// Plugins returns all plugins; those without a type or name are not published.
	Plugins() []plugin.Status
	Conditions() []plugin.Condition
	// Changes returns a channel that receives a value after changes of plugins; changes may share a value. It is not closed before ctx
	// ends. It need not receive a value after changes of conditions.
	Changes(ctx context.Context) <-chan struct{}
}

// ConditionName is the name of the condition of a [Publisher].
const ConditionName = "fleet"

// The defaults of [PublisherConfig].
const (
	DefaultPresence  = 10 * time.Second
	DefaultRetention = time.Hour

	defaultMinInterval = time.Second
	// maxSpread bounds the time over which nodes reconnect after they have lost etcd; otherwise it is the presence. Starts are spread over
	// a tenth of it.
	maxSpread = 10 * time.Second
)

// PublisherConfig configures a [Publisher].
type PublisherConfig struct {
	Node    string // the name of the node; it must be unique in the fleet
	Address string // HOST:PORT at which the node takes calls from other nodes; empty for none
	Version string // of Patchbay
	// Presence is how long the node counts as alive after it last renewed its presence, which it does every third of that time. Retention
	// is how long its plugins stay visible. They are rounded up to seconds. Presence is at least 2 s, and Retention is longer than
	// Presence.
	Presence, Retention time.Duration
	// InstanceFile keeps the identifiers of the last starts, so that a start after a crash need not wait until the presence has expired.
	// Its directory must exist, and no two publishers may share it. Empty for none.
	InstanceFile string
	Settings     string // a text that should be equal on all nodes; nodes that compete for locks compare it
	// Locked is called when a node competes for locks: when the publisher begins, or when the first node does, and possibly again after
	// etcd was away. Named is called with false if another daemon has the name of the node, and with true if the node has it. Cordoned is
	// called with the cordon of the node, for each connection and after each change. They must not block; nil for none.
	Locked      func()
	Named       func(isOwned bool)
	Cordoned    func(Cordon)
	Labels      map[string]string // see [keys.ValidateLabels]
	MinInterval time.Duration     // the minimum time between two writes (default 1 s)
	Local       Local
	Logger      *slog.Logger // logs the loss of etcd and its return; nil for no log
}

// Publisher publishes one node. It is safe for concurrent use.
type Publisher struct {
	config   PublisherConfig
	dialer   *dialer
	space    keys.Space
	timeout  time.Duration // of one request
	node     string        // the range of the node's keys
	instance string
	started  time.Time
	changes  <-chan struct{}

	// The following belong to the goroutine of Run.

	leases    leases
	held      held
	instances []string        // the identifiers in the file
	indexed   map[string]bool // the names that may be in the index, with whether they have the present lease

	mu     sync.Mutex
	health Health
	stats  Stats
}

// Stats counts what a [Publisher] did.
type Stats struct {
	Sessions      uint64    // the number of connections to etcd over which the node was published
	Writes, Bytes uint64    // transactions that wrote something, and the size of their values
	Failures      uint64    // the number of sessions and writes that failed
	Published     time.Time // the time of the last write; zero for none
}

type leases struct{ presence, retention clientv3.LeaseID } // zero for none

// NewPublisher returns a publisher, which does nothing before Run. It returns an error for an invalid configuration.
func NewPublisher(c *Cluster, config PublisherConfig) (*Publisher, error) {
	config.Presence = cmp.Or(config.Presence, DefaultPresence)
	config.Retention = cmp.Or(config.Retention, DefaultRetention)
	config.MinInterval = cmp.Or(config.MinInterval, defaultMinInterval)
	config.Logger = cmp.Or(config.Logger, slog.New(slog.DiscardHandler))
	if config.Local == nil || config.MinInterval < 0 {
		return nil, errors.New("cannot publish the node: Local is nil, or MinInterval is negative; use 0 for the default")
	}
	if config.Named == nil {
		config.Named = func(bool) {}
	}
	err := errors.Join(c.Space().Validate(), keys.ValidateNode(config.Node), ValidateTimes(config.Presence, config.Retention),
		keys.ValidateLabels(config.Labels), regular.Check(config.InstanceFile))
	if err != nil {
		return nil, fmt.Errorf("cannot publish the node: %w", err)
	}
	instances, _ := regular.Read(config.InstanceFile) // without it, the publisher may wait for the end of an earlier presence
	return &Publisher{
		config: config, dialer: newDialer(c), space: c.Space(), timeout: min(c.Timeout(), config.Presence/2), instance: rand.Text(),
		node: c.Space().NodeRange(config.Node), instances: strings.Fields(string(instances)), indexed: map[string]bool{},
		health: Health{Message: "the node has not been published yet", Since: time.Now()},
	}, nil
}

// ValidateTimes returns an error if presence is below 2s, or retention is not longer than presence.
func ValidateTimes(presence, retention time.Duration) error {
	if presence < 2*time.Second {
		return fmt.Errorf("presence is %v: etcd needs at least 2s", presence)
	}
	if retention <= presence {
		return fmt.Errorf("retention is %v: it must be longer than presence, which is %v", retention, presence)
	}
	return nil
}

// Instance returns the identifier of this start.
func (p *Publisher) Instance() string { return p.instance }

// Condition returns the condition of the node: it is OK if etcd has the present state of the node.
func (p *Publisher) Condition() plugin.Condition {
	p.mu.Lock()
	defer p.mu.Unlock()
	return plugin.Condition{Name: ConditionName, OK: p.health.Current, Message: p.health.Message, Since: p.health.Since}
}

// Stats returns the numbers so far.
func (p *Publisher) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Run publishes the node until ctx ends. It then publishes that the node has stopped, which takes at most 2 s. It may be called once.
func (p *Publisher) Run(ctx context.Context) {
	p.started = time.Now()
	p.changes = p.config.Local.Changes(ctx)
	failures, over := 0, min(p.config.Presence, maxSpread)
	for delay := spread(over / 10); backoff.Pause(ctx, delay); {
		isPublished, err := p.dialer.attempt(ctx, func() (bool, error) { return (&session{Publisher: p}).run(ctx) })
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errNameTaken) {
			p.config.Named(false)
		}
		if !isPublished || !isExpired(err) { // if the token has expired, the next session gets a new one
			p.failed(err)
		}
		switch {
		case isPublished:
			failures = 0
			delay = spread(p.config.Presence / 4) // when a node notices the loss, three fifths of the presence are left
			if errors.Is(err, errLeaseLost) {
				delay = spread(over)
			}
		case errors.Is(err, errNameTaken):
			delay = around(p.config.Presence / 3)
		default:
			failures++
			delay = Retry.After(failures)
			if failures == 1 {
				delay = max(delay, spread(over))
			}
		}
	}
}

const maxInstances = 4 // more than one may be in etcd after starts that crashed early

// remember writes the identifier of this start to the file. It is called before the identifier is written to etcd.
func (p *Publisher) remember() {
	if p.config.InstanceFile == "" || slices.Contains(p.instances, p.instance) {
		return
	}
	instances := append([]string{p.instance}, p.instances[:min(len(p.instances), maxInstances-1)]...)
	if err := regular.Replace(p.config.InstanceFile, strings.Join(instances, "\n")+"\n"); err != nil {
		p.config.Logger.Warn("fleet: cannot remember that the node is published; after a crash it waits until its presence has expired",
			"node", p.config.Node, "error", err)
		return
	}
	p.instances = instances
}

func (p *Publisher) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Failures++
	if message := "the node is not published as it is: " + Explain(err).Error(); p.health.lose(message) {
		p.config.Logger.Warn("fleet: "+message, "node", p.config.Node)
	}
}

// succeeded records that etcd has the present state of the node.
func (p *Publisher) succeeded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.health.Current {
		p.config.Logger.Info("fleet: the node is published", "node", p.config.Node)
	}
	p.health = Health{Current: true}
}

func (p *Publisher) count(add func(*Stats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add(&p.stats)
}
