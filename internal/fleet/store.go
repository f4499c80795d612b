package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// dialer connects to the members of a cluster in turn, beginning with a random one.
type dialer struct {
	*Cluster
	next int
}

func newDialer(c *Cluster) *dialer { return &dialer{c, rand.IntN(len(c.config.Endpoints))} }

// dial connects to the next member.
func (d *dialer) dial(ctx context.Context, timeout time.Duration) (store, error) {
	member := d.next
	d.next++
	return d.Cluster.dial(ctx, member, timeout)
}

// attempt calls try for one member after another, until it progresses or fails with an error that other members would also return.
func (d *dialer) attempt(ctx context.Context, try func() (progressed bool, err error)) (progressed bool, err error) {
	for range d.config.Endpoints {
		if progressed, err = try(); progressed || ctx.Err() != nil || !isOfMember(err) {
			break
		}
	}
	return progressed, err
}

// store is a connection to one member of etcd. Its methods do not repeat requests.
type store interface {
	get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error)
	commit(ctx context.Context, conditions []clientv3.Cmp, then []clientv3.Op) (*clientv3.TxnResponse, error)
	grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error)
	// renewed returns how long ago a lease was renewed.
	renewed(ctx context.Context, lease clientv3.LeaseID) (ago time.Duration, err error)
	// keepAlive opens a stream that renews leases. There is one answer for each request, in order.
	keepAlive(ctx context.Context) (pb.Lease_LeaseKeepAliveClient, error)
	// watch watches the changes of keys, over one stream for all watches.
	watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan
	// life ends when the connection is lost, with the reason as its cause. Restoring or replacing a cluster ends all connections.
	life() context.Context
	close()
}

const (
	// pingAfter is the time of silence after which a connection is pinged, pingTimeout the time for the answer. Etcd refuses more than one
	// ping every 5 s.
	pingAfter, pingTimeout = 10 * time.Second, 5 * time.Second
	maxMessage             = 256 << 20 // the maximum size of one message from etcd, in bytes
)

func (c *Cluster) dialEtcd(ctx context.Context, member int, timeout time.Duration) (store, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, err := c.client(ctx, member, 2) // for the second attempt, the client gets a new token
	if err != nil {
		return nil, err
	}
	s := &etcdStore{client: client, timeout: timeout}
	if err := s.ready(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// etcdStore is a store. It renews leases with etcd's protocol instead of its client: see docs/adr/0012-fleet.md.
type etcdStore struct {
	client  *clientv3.Client
	timeout time.Duration
}

func (e *etcdStore) life() context.Context { return e.client.Ctx() }
func (e *etcdStore) close()                { _ = e.client.Close() }

// ready returns when there is a connection.
func (e *etcdStore) ready(ctx context.Context) error {
	conn := e.client.ActiveConnection()
	state := conn.GetState()
	for ; state == connectivity.Idle || state == connectivity.Connecting; state = conn.GetState() {
		if conn.Connect(); !conn.WaitForStateChange(ctx, state) {
			return context.Cause(ctx)
		}
	}
	if state == connectivity.Ready {
		return nil
	}
	// A request that does not wait for a connection returns the reason why there is none.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	return cmp.Or(err, errLost)
}

// isExpired reports whether the token of the connection has expired.
func isExpired(err error) bool {
	known := rpctypes.Error(err)
	return errors.Is(known, rpctypes.ErrInvalidAuthToken) || errors.Is(known, rpctypes.ErrAuthOldRevision)
}

func isDenied(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) }

// watchError returns the reason why etcd has ended a watch; nil if it has not. In etcd's client, the reason is the text of a gRPC status.
func watchError(response clientv3.WatchResponse) error {
	err := response.Err()
	if err != nil {
		if _, reason, ok := strings.Cut(err.Error(), " desc = "); ok {
			return rpctypes.Error(errors.New(reason))
		}
	}
	return err
}

// IsLeaseUnknown reports whether etcd does not have a lease.
func IsLeaseUnknown(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) }

func (e *etcdStore) get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	return e.client.Get(ctx, key, options...)
}

func (e *etcdStore) commit(ctx context.Context, conditions []clientv3.Cmp, then []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	return e.client.Txn(ctx).If(conditions...).Then(then...).Commit()
}

func (e *etcdStore) grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	granted, err := e.client.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return 0, err
	}
	return granted.ID, nil
}

func (e *etcdStore) renewed(ctx context.Context, lease clientv3.LeaseID) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	left, err := e.client.TimeToLive(ctx, lease)
	switch {
	case err != nil:
		return 0, err
	case left.TTL < 0:
		return 0, rpctypes.ErrLeaseNotFound
	}
	return time.Duration(max(left.GrantedTTL-left.TTL, 0)) * time.Second, nil
}

func (e *etcdStore) keepAlive(ctx context.Context) (pb.Lease_LeaseKeepAliveClient, error) {
	return pb.NewLeaseClient(e.client.ActiveConnection()).LeaseKeepAlive(clientv3.WithRequireLeader(ctx))
}

func (e *etcdStore) watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	return e.client.Watch(clientv3.WithRequireLeader(ctx), key, options...)
}

// Retry is the time before the next request after a failure.
var Retry = backoff.Backoff{Min: time.Second, Max: 30 * time.Second}

// spread returns a random time below d. around returns a random time that differs from d by at most a tenth.
func spread(d time.Duration) time.Duration { return rand.N(max(d, 1)) }
func around(d time.Duration) time.Duration { return d - d/10 + spread(d/5) }

// Notify sends a value to a channel with room for one, unless it is full.
func Notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// isOfMember reports whether the error may be that of one member only.
func isOfMember(err error) bool {
	known, code := rpctypes.Error(err), status.Code(err)
	if answer, ok := errors.AsType[rpctypes.EtcdError](known); ok {
		code = answer.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled ||
		errors.Is(known, rpctypes.ErrNoLeader) || errors.Is(known, rpctypes.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, errSilent) || errors.Is(err, errQuiet) || errors.Is(err, errUnreachable)
}

// isTooLarge reports whether an answer was larger than maxMessage. Etcd has errors with the same code.
func isTooLarge(err error) bool {
	_, known := errors.AsType[rpctypes.EtcdError](rpctypes.Error(err))
	return !known && status.Code(err) == codes.ResourceExhausted
}

const unknownUser = "etcd does not know its user: %w; check user and password, or the client certificate"

var explanations = []struct {
	err  error
	text string
}{
	{rpctypes.ErrNoSpace, "etcd is full and refuses to write: %w; compact and defragment it or raise its quota, and disarm its alarm"},
	{rpctypes.ErrCorrupt, "etcd has raised the alarm that its data is corrupt: %w; repair it"},
	{rpctypes.ErrPermissionDenied, "etcd refuses its user: %w; grant the user a role for the keys of the node"},
	{rpctypes.ErrAuthFailed, unknownUser}, {rpctypes.ErrUserEmpty, unknownUser}, {rpctypes.ErrInvalidAuthToken, unknownUser},
	{rpctypes.ErrNoLeader, "the member of etcd has no leader: %w; see that most of the members run and reach each other"},
}

// Explain returns an error of etcd with a text for operators.
func Explain(err error) error {
	known := rpctypes.Error(err)
	for _, e := range explanations {
		if errors.Is(known, e.err) {
			return fmt.Errorf(e.text, known)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(known, rpctypes.ErrTimeout) {
		return errors.New("etcd does not answer in time; see that it runs and can be reached")
	}
	if answer, ok := errors.AsType[rpctypes.EtcdError](known); ok {
		return fmt.Errorf("etcd refuses: %w", answer)
	}
	if s, ok := status.FromError(err); ok && s.Message() != "" {
		return fmt.Errorf("etcd cannot be reached: %s", strings.ReplaceAll(s.Message(), "\n", " "))
	}
	return err
}
