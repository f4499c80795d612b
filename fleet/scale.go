package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/regular"
)

const (
	// renewalsPerSecond is how many renewals of presence all nodes of a fleet make in a second at most, if it is not small.
	renewalsPerSecond = 200
	// firstCount is after which time a node counts the fleet once more: many may have started at once.
	firstCount = 2 * time.Minute
)

// errResized says that the fleet has another size, for which another presence fits.
var errResized = errors.New("the fleet has grown or shrunk; the node gets a presence of another length")

// PresenceFor returns the presence for a fleet with this number of nodes: the configured one or, if that is longer, the one with which all
// nodes together renew 200 times a second, each every third of it, but at most a quarter of the retention.
func PresenceFor(nodes int, configured, retention time.Duration) time.Duration {
	grown := time.Duration(nodes) * 3 * time.Second / renewalsPerSecond
	return max(configured, min(grown, retention/4).Truncate(time.Second))
}

// fit returns the presence that fits the size of the fleet. A node that may not count it has the one that was configured.
func (s *session) fit(ctx context.Context) (time.Duration, error) {
	found, err := s.store.get(ctx, s.config.Space.settings(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		return s.config.Presence, nil
	}
	if err != nil {
		return 0, err
	}
	return PresenceFor(int(found.Count), s.config.Presence, s.config.Retention), nil
}

// resized says whether the fleet has a size for which another presence fits. What differs by less than half is not worth a change.
func (s *session) resized(ctx context.Context) (bool, error) {
	fits, err := s.fit(ctx)
	return fits > s.presence*3/2 || fits < s.presence/2, err
}

// maxInstances is how many instances of a node are remembered.
const maxInstances = 4

// memory is what a node keeps in a file for its next start: its last instances, the newest first, and how long its presence was. Of a fleet
// that starts all at once, each node begins with the presence of the size that the fleet had, which etcd does not know yet.
type memory struct {
	instances []string
	presence  time.Duration
}

const presencePrefix = "presence="

// readMemory returns what is in a file, as far as that can be read.
func readMemory(file string) (m memory) {
	text, err := regular.Read(file)
	if err != nil {
		return memory{}
	}
	for _, word := range strings.Fields(string(text)) {
		if presence, is := strings.CutPrefix(word, presencePrefix); is {
			m.presence, _ = time.ParseDuration(presence) // zero is none
		} else {
			m.instances = append(m.instances, word)
		}
	}
	return m
}

func (m memory) String() string {
	lines := slices.Clone(m.instances)
	if m.presence > 0 {
		lines = append(lines, presencePrefix+m.presence.String())
	}
	return strings.Join(lines, "\n") + "\n"
}

// remember keeps this instance and its presence, before they can be in etcd.
func (p *Publisher) remember() {
	now := memory{instances: p.instances}
	if p.presence > p.config.Presence {
		now.presence = p.presence
	}
	if !slices.Contains(now.instances, p.instance) {
		now.instances = append([]string{p.instance}, now.instances...)
		now.instances = now.instances[:min(len(now.instances), maxInstances)]
	}
	if p.config.InstanceFile == "" || now.String() == p.kept {
		return
	}
	if err := replaceFile(p.config.InstanceFile, now.String()); err != nil {
		p.config.Logger.Warn("fleet: cannot remember that the node is published; after a crash it waits until its presence has expired",
			"node", p.config.Node, "error", err)
	}
	p.instances, p.kept = now.instances, now.String()
}
