package fleet

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Member is what was found out about one member of etcd.
type Member struct {
	// Endpoint is its URL, as it was configured.
	Endpoint string
	// Err says why the fleet cannot be read there, and what to do; nil if it can.
	Err error
}

// Check tries all members at once and returns them in the order in which they were configured: it connects, as the user if there is one,
// and counts the keys of a space, for which the member needs a leader. It changes nothing and blocks for at most the timeout of one
// request, or until ctx ends.
func (c *Cluster) Check(ctx context.Context, s Space) []Member {
	ctx, cancel := within(ctx, c.config.Timeout)
	defer cancel()
	members := make([]Member, len(c.config.Endpoints))
	var checking sync.WaitGroup
	for i, endpoint := range c.config.Endpoints {
		checking.Go(func() {
			members[i].Endpoint = endpoint
			if err := c.check(ctx, i, s); err != nil {
				members[i].Err = explain(err)
			}
		})
	}
	checking.Wait()
	return members
}

func (c *Cluster) check(ctx context.Context, member int, s Space) error {
	store, err := (&clusterDialer{c, member}).dial(ctx)
	if err != nil {
		return err
	}
	defer store.close()
	_, err = store.get(ctx, s.nodes(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	return err
}
