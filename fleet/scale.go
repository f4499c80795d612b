package fleet

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
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
	return PresenceFor(int(found.Count), s.config.Presence, s.config.Retention), s.lookForLocks(ctx)
}

// lookForLocks tells if any node competes for locks, unless this one may not know.
func (s *session) lookForLocks(ctx context.Context) error {
	if s.config.Locked == nil {
		return nil
	}
	found, err := s.store.get(ctx, s.config.Space.contenders(), clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	switch {
	case isDenied(err):
		return nil
	case err == nil && len(found.Kvs) > 0:
		s.config.Locked()
	}
	return err
}

// resized says whether the fleet has a size for which another presence fits. What differs by less than half is not worth a change.
func (s *session) resized(ctx context.Context) (bool, error) {
	fits, err := s.fit(ctx)
	return fits > s.presence*3/2 || fits < s.presence/2, err
}

// maxInstances is how many instances of a node are remembered.
const maxInstances = 4

// readInstances returns the instances of the node that ended before this one began, as far as a file tells.
func readInstances(file string) []string {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

// remember adds this instance to the file of instances, before it can be in etcd.
func (p *Publisher) remember() {
	if p.config.InstanceFile == "" || slices.Contains(p.instances, p.instance) {
		return
	}
	instances := append([]string{p.instance}, p.instances...)
	instances = instances[:min(len(instances), maxInstances)]
	if err := replaceFile(p.config.InstanceFile, strings.Join(instances, "\n")+"\n"); err != nil {
		p.config.Logger.Warn("fleet: cannot remember that the node is published; after a crash it waits until its presence has expired",
			"node", p.config.Node, "error", err)
	}
	p.instances = instances
}
