package fleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
)

// stuck is an etcd that does not answer requests for a lease.
type stuck struct{ *fake }

func (s stuck) dial(ctx context.Context, timeout time.Duration) (store, error) {
	if _, err := s.fake.dial(ctx, timeout); err != nil {
		return nil, err
	}
	return s, nil
}

func (s stuck) grant(ctx context.Context, _ time.Duration) (clientv3.LeaseID, error) {
	<-ctx.Done()
	return 0, context.Cause(ctx)
}

// TestNothingWithoutLease checks that a node that ends before it has its leases writes nothing, because that would stay forever.
func TestNothingWithoutLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := stuck{newFake()}
		p, err := NewPublisher(clusterOf(f, defaultTimeout), PublisherConfig{Node: "a", Local: newFakeLocal("T/one")})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { p.Run(ctx) })
		time.Sleep(maxSpread/10 + time.Second)
		synctest.Wait()
		cancel()
		running.Wait()
		if f.writes() != 0 {
			t.Errorf("%d writes; the record is %q", f.writes(), f.value(keys.Space{}.NodeRange("a")+keys.Record))
		}
	})
}

// TestTimeoutOfEtcd checks that publishers, readers and locks use the timeout of etcd, within the limits of the presence.
func TestTimeoutOfEtcd(t *testing.T) {
	c, err := Connect(Etcd{Endpoints: []string{"http://127.0.0.1:1"}, Timeout: 700 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPublisher(c, PublisherConfig{Node: "a", Local: newFakeLocal()})
	if err != nil {
		t.Fatal(err)
	}
	r := Open(c, ReaderConfig{})
	defer r.Close()
	if p.timeout != 700*time.Millisecond || r.timeout != 700*time.Millisecond || c.Timeout() != 700*time.Millisecond {
		t.Errorf("publisher %v, reader %v, locks %v", p.timeout, r.timeout, c.Timeout())
	}
}

// TestHostileTimes checks that a reader shows the fleet if a node has times that time formats cannot represent.
func TestHostileTimes(t *testing.T) {
	for _, at := range []*timestamppb.Timestamp{
		{Seconds: math.MaxInt64}, {Seconds: math.MinInt64}, {Seconds: 1 << 40, Nanos: -1}, {Nanos: math.MaxInt32}, {Seconds: 253402300799},
	} {
		known := &facts{}
		known.put(keys.Record, &mvccpb.KeyValue{Value: marshal(t, &fleetv1.NodeRecord{
			StartedAt: at, StoppedAt: at, WrittenAt: at, Conditions: []*fleetv1.Condition{{Name: "c", Since: at}},
			Plugins: []*fleetv1.PluginRecord{{Type: "T", Name: "n", RegisteredAt: at}},
		})})
		n := known.node("a", nil, time.Time{}, time.Now())
		for _, shown := range []proto.Message{n.NodeRecord, n.plugins[0]} {
			if _, err := protojson.Marshal(shown); err != nil {
				t.Errorf("%v: %v", at, err)
			}
		}
	}
}

// pages is an etcd for which pages of more than a few keys are too large.
type pages struct {
	*fake
	most   int64
	limits []int64
}

func (p *pages) get(_ context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	op := clientv3.OpGet(key, options...)
	limit := op.Limit()
	p.limits = append(p.limits, limit)
	if limit > p.most {
		return nil, status.Error(codes.ResourceExhausted, "grpc: received message larger than max (268435457 vs. 268435456)")
	}
	response := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: 9}}
	for n := range 100 {
		k := fmt.Sprintf("%s%03d/presence", keys.Space{}.NodeSpace(), n)
		if k >= key && int64(len(response.Kvs)) < limit {
			response.Kvs = append(response.Kvs, &mvccpb.KeyValue{Key: []byte(k), ModRevision: 9})
		}
	}
	last := string(response.Kvs[len(response.Kvs)-1].GetKey())
	response.More = !strings.HasSuffix(last, "099/presence")
	return (*clientv3.GetResponse)(response), nil
}

// TestLargeValues checks that a list is read in smaller pages if pages are too large for one message, and fails only if one value is too
// large.
func TestLargeValues(t *testing.T) {
	for _, most := range []int64{500, 7, 1, 0} {
		etcd := &pages{fake: newFake(), most: most}
		r := Open(clusterOf(&fake{away: true}, time.Second), ReaderConfig{})
		r.Close()
		r.use()
		got, err := r.all().read(t.Context(), etcd)
		if err == nil {
			got.install(time.Now())
		}
		switch {
		case most == 0 && status.Code(err) != codes.ResourceExhausted:
			t.Errorf("one value is too large: %v", err)
		case most > 0 && (err != nil || len(r.Nodes()) != 100):
			t.Errorf("at most %d: %d nodes, %v; limits %v", most, len(r.Nodes()), err, etcd.limits)
		}
	}
}

// TestManyEntries checks that a node cannot make readers keep a hundred times the size that it may write, not even with a small value that
// is large after decompression.
func TestManyEntries(t *testing.T) {
	for _, r := range []*fleetv1.NodeRecord{
		{Plugins: make([]*fleetv1.PluginRecord, maxEntries+1)}, {Conditions: make([]*fleetv1.Condition, maxEntries+1)},
		{Version: strings.Repeat("v", maxRecord)},
	} {
		known := &facts{}
		known.put(keys.Record, &mvccpb.KeyValue{Value: marshal(t, r)})
		if m := known.node("a", nil, time.Time{}, time.Now()); m.State != NodeUnknown || len(m.plugins)+len(m.GetConditions()) > 0 {
			t.Errorf("%d plugins and %d conditions of a node in state %s", len(m.plugins), len(m.GetConditions()), m.State)
		}
	}
}

// expired is an etcd in which one lease has expired.
type expired struct{ *fake }

func (expired) renewed(_ context.Context, lease clientv3.LeaseID) (time.Duration, error) {
	if lease == 1 {
		return 0, rpctypes.ErrLeaseNotFound
	}
	return time.Minute, nil
}

// TestDates checks that a dead node whose retention has just ended does not prevent the dates of the others.
func TestDates(t *testing.T) {
	all := map[string]*facts{}
	for n := range 50 {
		all[fmt.Sprint(n)] = &facts{hasRecord: true, record: record{NodeRecord: &fleetv1.NodeRecord{}, lease: clientv3.LeaseID(n + 1)}}
	}
	date(t.Context(), expired{newFake()}, all)
	dated := 0
	for name, known := range all {
		if !known.node(name, nil, time.Time{}, time.Now()).LastSeen.IsZero() {
			dated++
		}
	}
	if dated != 49 {
		t.Errorf("%d of 49 nodes were dated", dated)
	}
}

// TestErrors checks that errors from etcd and missing answers are distinguished, and that another member is tried if it may succeed.
func TestErrors(t *testing.T) {
	for _, test := range []struct {
		err       error
		elsewhere bool
		says      string
	}{
		{rpctypes.ErrGRPCRequestTooLarge, false, "etcd refuses: etcdserver: request is too large"},
		{rpctypes.Error(rpctypes.ErrGRPCRequestTooLarge), false, "etcd refuses: etcdserver: request is too large"},
		{rpctypes.Error(rpctypes.ErrGRPCLeaderChanged), true, "etcd refuses: etcdserver: leader changed"},
		{rpctypes.Error(rpctypes.ErrGRPCTimeoutDueToConnectionLost), true, "etcd refuses: etcdserver: request timed out"},
		{rpctypes.Error(rpctypes.ErrGRPCNoSpace), false, "etcd is full"},
		{rpctypes.ErrGRPCNoLeader, true, "no leader"},
		{status.Error(codes.Unavailable, "gone\naway"), true, "etcd cannot be reached: gone away"},
		{context.DeadlineExceeded, true, "does not answer in time"},
		{fmt.Errorf("%w: no connection to a: %w", errUnreachable, errLost), true, "etcd cannot be reached: no connection to a: the connection was lost"},
		{errors.New("no such file"), false, "no such file"},
	} {
		if got := isOfMember(test.err); got != test.elsewhere {
			t.Errorf("%v: another member: %v", test.err, got)
		}
		if got := Explain(test.err).Error(); !strings.Contains(got, test.says) {
			t.Errorf("%v: %q", test.err, got)
		}
	}
}
