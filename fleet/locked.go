package fleet

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// awaitLocks tells once that a node competes for locks, and ends with that or the session. It waits in etcd, where a watch without events
// costs no request. A node that may not know ends here, too.
func (s *session) awaitLocks(ctx context.Context) {
	if s.config.Locked == nil {
		return
	}
	for failures := 1; ; failures++ {
		found, err := s.locked(ctx)
		switch {
		case found:
			s.config.Locked()
			return
		case isDenied(err):
			s.config.Logger.Info("fleet: this node may not read who competes for locks, and calls its own plugins of types that fleet.exclusive "+
				"does not list, whoever else has them; if the fleet has exclusive plugins, grant its user read on the range in etcd",
				"node", s.config.Node, "range", s.config.Space.contenders())
			return
		case failures == 1 && ctx.Err() == nil:
			s.config.Logger.Warn("fleet: cannot be told of nodes that compete for locks, and tries again", "node", s.config.Node,
				"error", explain(err))
		}
		if !backoff.Pause(ctx, retry.After(failures)) {
			return
		}
	}
}

// locked waits until there are contenders. The error says why it stopped waiting.
func (s *session) locked(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefix := s.config.Space.contenders()
	now, err := s.store.get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil || len(now.Kvs) > 0 {
		return err == nil, err
	}
	stream, err := s.store.watch(ctx)
	if err != nil {
		return false, err
	}
	answer, err := ask(stream, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix)), StartRevision: now.Header.GetRevision() + 1,
		Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NODELETE},
	}}}, s.timeout, cancel)
	for err == nil && len(answer.GetEvents()) == 0 {
		if answer.GetCanceled() {
			return false, fmt.Errorf("etcd has ended the watch: %s", answer.GetCancelReason())
		}
		answer, err = stream.Recv()
	}
	return err == nil, err
}
