package fleet

import (
	"cmp"
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Locks finds the holders of locks, for programs that call exclusive plugins and compete for no lock themselves. Its methods may be called
// from several goroutines.
type Locks struct {
	client  *clientv3.Client
	space   Space
	timeout time.Duration
}

// OpenLocks returns the locks of a fleet. It does not connect yet. The caller calls Close.
func OpenLocks(c *Cluster, space Space) (*Locks, error) {
	client, err := c.Client()
	if err != nil {
		return nil, fmt.Errorf("cannot find out who holds the locks: %w", err)
	}
	return &Locks{client, space, cmp.Or(c.config.Timeout, defaultTimeout)}, nil
}

// Close ends the connection to etcd.
func (l *Locks) Close() error { return l.client.Close() }

// Holder returns the node that holds a lock. Exclusive is false for a lock that nobody holds or wants. It asks etcd, and is meant for
// [DialerConfig].Leader.
func (l *Locks) Holder(ctx context.Context, lock Lock) (node string, exclusive bool, err error) {
	ctx, cancel := within(ctx, l.timeout)
	defer cancel()
	leaders, err := leadersIn(ctx, l.client, l.space, lock.key(l.space)+"/", clientv3.WithFirstCreate()...)
	if err != nil {
		return "", false, fmt.Errorf("cannot find out who holds the lock of %v: %w", lock, explain(err))
	}
	holder, exclusive := leaders[lock]
	return holder.Node, exclusive, nil
}
