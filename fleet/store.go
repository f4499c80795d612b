package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// dialer connects to a cluster.
type dialer interface {
	// members returns the number of members that are known.
	members() int
	// dial connects to one member, another one each time, and returns when there is a connection; else the error says why there is none.
	dial(ctx context.Context) (store, error)
}

// store is a connection to one member of etcd. No method tries again by itself, and each ends with its context.
type store interface {
	get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error)
	commit(ctx context.Context, conditions []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error)
	grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error)
	// renewed returns how long ago a lease was renewed.
	renewed(ctx context.Context, lease clientv3.LeaseID) (ago time.Duration, err error)
	keepAlive(ctx context.Context) (keepAliveStream, error)
	watch(ctx context.Context) (watchStream, error)
	close()
}

// keepAliveStream renews leases: one answer for each request, in order.
type keepAliveStream interface {
	Send(*pb.LeaseKeepAliveRequest) error
	Recv() (*pb.LeaseKeepAliveResponse, error)
}

// watchStream is a stream of watches.
type watchStream interface {
	Send(*pb.WatchRequest) error
	Recv() (*pb.WatchResponse, error)
}

const (
	// pingAfter is how long a connection may be silent until it is asked for a sign of life, pingTimeout how long that may take. Etcd refuses
	// to be asked more often than every 5 s.
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// maxMessage bounds one message of etcd, in bytes. A page of a list has at most 500 values.
	maxMessage = 256 << 20
)

// clusterDialer takes the members in turn, from a random one on.
type clusterDialer struct {
	*Cluster
	next int
}

func newDialer(c *Cluster) dialer { return &clusterDialer{c, rand.IntN(len(c.config.Endpoints))} }

func (d *clusterDialer) members() int { return len(d.config.Endpoints) }

func (d *clusterDialer) dial(ctx context.Context) (store, error) {
	endpoint := d.config.Endpoints[d.next%len(d.config.Endpoints)]
	d.next++
	transport := insecure.NewCredentials()
	if d.tls != nil {
		transport = credentials.NewTLS(d.tls)
	}
	s := &etcdStore{config: d.config}
	_, host, _ := strings.Cut(endpoint, "://")
	conn, err := grpc.NewClient("dns:///"+host, append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithPerRPCCredentials(&s.token),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	}, d.options...)...)
	if err != nil {
		return nil, fmt.Errorf("etcd endpoint %s: %w", endpoint, err)
	}
	s.conn, s.kv, s.lease = conn, clientv3.NewKVFromKVClient(pb.NewKVClient(conn), nil), pb.NewLeaseClient(conn)
	if err := s.ready(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// etcdStore is a store. Streams are those of the protocol and not of etcd's client: see docs/adr/0012-fleet.md.
type etcdStore struct {
	config Etcd
	conn   *grpc.ClientConn
	kv     clientv3.KV
	lease  pb.LeaseClient
	token  token
}

func (e *etcdStore) close() { _ = e.conn.Close() }

// ready returns when there is a connection, and a token if one is needed.
func (e *etcdStore) ready(ctx context.Context) error {
	e.conn.Connect()
	for {
		state := e.conn.GetState()
		if state == connectivity.Ready {
			return e.authenticate(ctx)
		}
		if state == connectivity.TransientFailure || !e.conn.WaitForStateChange(ctx, state) {
			return e.whyNot(ctx)
		}
	}
}

// whyNot returns why there is no connection. A request that does not wait for one says so.
func (e *etcdStore) whyNot(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := pb.NewMaintenanceClient(e.conn).Status(ctx, &pb.StatusRequest{})
	if err == nil {
		return errors.New("etcd cannot be reached: the connection was lost at once")
	}
	return err
}

// token is sent with every request, unless it is empty.
type token struct{ value atomic.Pointer[string] }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t *token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	value := t.value.Load()
	if value == nil || *value == "" {
		return nil, nil
	}
	return map[string]string{rpctypes.TokenFieldNameGRPC: *value}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. Whether there is TLS is the business of the configuration.
func (t *token) RequireTransportSecurity() bool { return false }

// authenticate gets a new token, if there is a user.
func (e *etcdStore) authenticate(ctx context.Context) error {
	if e.config.User == "" {
		return nil
	}
	password, err := e.config.password()
	if err != nil {
		return err
	}
	e.token.value.Store(nil)
	response, err := pb.NewAuthClient(e.conn).Authenticate(ctx, &pb.AuthenticateRequest{Name: e.config.User, Password: password})
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled):
		return nil
	case err != nil:
		return err
	}
	e.token.value.Store(new(response.GetToken()))
	return nil
}

// isExpired says whether an error means that etcd wants a new token.
func isExpired(err error) bool {
	known := rpctypes.Error(err)
	return errors.Is(known, rpctypes.ErrInvalidAuthToken) || errors.Is(known, rpctypes.ErrAuthOldRevision)
}

// authenticated makes a request, and once more with a new token if etcd has forgotten the old one, as it does after minutes without use and
// when its users change.
func authenticated[T any](ctx context.Context, e *etcdStore, request func() (T, error)) (T, error) {
	answer, err := request()
	if isExpired(err) {
		if err := e.authenticate(ctx); err != nil {
			return answer, err
		}
		return request()
	}
	return answer, err
}

func (e *etcdStore) get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return authenticated(ctx, e, func() (*clientv3.GetResponse, error) { return e.kv.Get(ctx, key, options...) })
}

func (e *etcdStore) commit(
	ctx context.Context, conditions []clientv3.Cmp, then, otherwise []clientv3.Op,
) (*clientv3.TxnResponse, error) {
	return authenticated(ctx, e, func() (*clientv3.TxnResponse, error) {
		return e.kv.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
	})
}

func (e *etcdStore) grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	response, err := e.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: int64((ttl + time.Second - 1) / time.Second)})
	return clientv3.LeaseID(response.GetID()), err
}

func (e *etcdStore) renewed(ctx context.Context, lease clientv3.LeaseID) (time.Duration, error) {
	response, err := e.lease.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: int64(lease)})
	if err != nil {
		return 0, err
	}
	if response.GetTTL() < 0 {
		return 0, rpctypes.ErrLeaseNotFound
	}
	return time.Duration(max(response.GetGrantedTTL()-response.GetTTL(), 0)) * time.Second, nil
}

func (e *etcdStore) keepAlive(ctx context.Context) (keepAliveStream, error) {
	return e.lease.LeaseKeepAlive(clientv3.WithRequireLeader(ctx))
}

func (e *etcdStore) watch(ctx context.Context) (watchStream, error) {
	return pb.NewWatchClient(e.conn).Watch(clientv3.WithRequireLeader(ctx))
}

// elsewhere says whether an error may be that of one member, so that another one is worth a try.
func elsewhere(err error) bool {
	known := rpctypes.Error(err)
	if errors.Is(known, rpctypes.ErrNoLeader) || errors.Is(known, rpctypes.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, errSilent) || errors.Is(err, errQuiet) {
		return true
	}
	code := status.Code(err)
	if answer, ok := errors.AsType[rpctypes.EtcdError](known); ok {
		code = answer.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled
}

// isTooLarge says whether an answer was larger than maxMessage. Etcd has errors with the same code.
func isTooLarge(err error) bool {
	_, known := errors.AsType[rpctypes.EtcdError](rpctypes.Error(err))
	return !known && status.Code(err) == codes.ResourceExhausted
}

// explain makes an error of etcd readable, with what to do where that is known.
func explain(err error) error {
	known := rpctypes.Error(err)
	switch {
	case errors.Is(known, rpctypes.ErrNoSpace):
		return fmt.Errorf("etcd is full and refuses to write: %w; compact and defragment it or raise its quota, and disarm its alarm", known)
	case errors.Is(known, rpctypes.ErrCorrupt):
		return fmt.Errorf("etcd has raised the alarm that its data is corrupt: %w; repair it", known)
	case errors.Is(known, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("etcd refuses its user: %w; grant the user a role for the keys of the node", known)
	case errors.Is(known, rpctypes.ErrAuthFailed), errors.Is(known, rpctypes.ErrUserEmpty), errors.Is(known, rpctypes.ErrInvalidAuthToken):
		return fmt.Errorf("etcd does not know its user: %w; check user and password, or the client certificate", known)
	case errors.Is(known, rpctypes.ErrNoLeader):
		return fmt.Errorf("the member of etcd has no leader: %w; see that most of the members run and reach each other", known)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(known, rpctypes.ErrTimeout):
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
