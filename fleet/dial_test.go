package fleet

import (
	"context"
	"crypto/x509"
	"errors"
	"iter"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// instances are on nodes, each in a zone of its name. On those with an exclamation mark they are unhealthy.
func instances(nodes ...string) []Instance {
	var list []Instance
	for _, n := range nodes {
		n, unhealthy := strings.CutSuffix(n, "!")
		p := Plugin{Node: n, Unhealthy: unhealthy, nodeLabels: map[string]string{"zone": n}}
		list = append(list, Instance{Plugin: p, Address: n + ":1"})
	}
	return list
}

func names(list []candidate) string {
	var text []string
	for _, c := range list {
		text = append(text, c.node)
	}
	return strings.Join(text, " ")
}

func collect(candidates iter.Seq2[candidate, error]) (list []candidate, err error) {
	for c, err := range candidates {
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// place is a fleet of the nodes here, b, c and d, of which those that are listed have the plugin.
func place(local bool, leader string, nodes ...string) *Dialer {
	config := DialerConfig{
		Node: "here", Labels: map[string]string{"zone": "here"},
		Unhealthy: func(ptype, _ string) bool { return ptype == "Unwell" },
		Find: func(_ context.Context, f Filter) ([]Instance, error) {
			return slices.DeleteFunc(instances(nodes...), func(i Instance) bool { return !f.MatchNode(Node{Name: i.Node, Labels: i.nodeLabels}) }), nil
		},
		Local: func(context.Context, string, string) (grpc.ClientConnInterface, error) {
			if local {
				return (*grpc.ClientConn)(nil), nil
			}
			return nil, status.Error(codes.NotFound, "not here")
		},
	}
	if leader != "" {
		config.Leader = func(_ context.Context, l Lock) (string, bool, error) {
			return strings.Trim(leader, "-"), l.Type == "Locked", nil
		}
	}
	return NewDialer(config)
}

func TestCandidates(t *testing.T) {
	for name, test := range map[string]struct {
		dialer *Dialer
		ptype  string
		policy Policy
		want   string
		err    string
	}{
		"this node first":          {dialer: place(true, "", "b"), want: "here b"},
		"published here too":       {dialer: place(true, "", "b", "here"), want: "here b"},
		"another node":             {dialer: place(false, "", "b", "here"), want: "b"},
		"one for each node":        {dialer: place(false, "", "b", "b"), want: "b"},
		"a node":                   {dialer: place(true, "", "b", "c", "d"), policy: Policy{Node: "c"}, want: "c"},
		"this node by name":        {dialer: place(true, "", "b"), policy: Policy{Node: "here"}, want: "here"},
		"this node, without it":    {dialer: place(false, "", "b"), policy: Policy{Node: "here"}, err: "not here"},
		"a node that is not one":   {dialer: place(true, "", "b"), policy: Policy{Node: "x"}},
		"the leader":               {dialer: place(true, "c", "b", "c"), ptype: "Locked", want: "c"},
		"the leader is here":       {dialer: place(true, "here", "b"), ptype: "Locked", want: "here"},
		"no leader":                {dialer: place(true, "-", "b"), ptype: "Locked", err: "no node holds its lock"},
		"no lock":                  {dialer: place(true, "c", "b"), want: "here b"},
		"unhealthy is last":        {dialer: place(false, "", "b!", "c"), want: "c b"},
		"unhealthy here":           {dialer: place(true, "", "b", "c!"), ptype: "Unwell", want: "b c here"},
		"unhealthy here, by name":  {dialer: place(true, "", "b"), ptype: "Unwell", policy: Policy{Node: "here"}, want: "here"},
		"labels":                   {dialer: place(true, "", "b", "c"), policy: Policy{Labels: map[string]string{"zone": "c"}}, want: "c"},
		"labels of this node":      {dialer: place(true, "", "b"), policy: Policy{Labels: map[string]string{"zone": "here"}}, want: "here"},
		"labels of none":           {dialer: place(true, "", "b"), policy: Policy{Labels: map[string]string{"zone": ""}}},
		"labels of a leader":       {dialer: place(true, "c", "c"), ptype: "Locked", policy: Policy{Labels: map[string]string{"zone": "c"}}, want: "c"},
		"a node that is no leader": {dialer: place(true, "c", "b", "c"), ptype: "Locked", policy: Policy{Node: "b"}, want: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := collect(test.dialer.candidates(t.Context(), 0, test.ptype, "n", test.policy))
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, %v", names(list), err)
				}
				return
			}
			if err != nil || names(list) != test.want {
				t.Errorf("got %q, %v; want %q", names(list), err, test.want)
			}
		})
	}
}

// TestCallErrors: what could not be called, and where, is said once.
func TestCallErrors(t *testing.T) {
	const without = "this node has no certificate for calls to others; set fleet.serve.cert, key and ca"
	for want, p := range map[string]Policy{
		"cannot call plugin T/n on node b: " + without:                                   {Node: "b"},
		"cannot call plugin T/n in the fleet: node b: " + without:                        {},
		"cannot call plugin T/n on node x: no node that can be called has it registered": {Node: "x"},
	} {
		err := place(false, "", "b").Dial("T", "n", p).Invoke(t.Context(), "/a.B/C", nil, nil)
		if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestFindFails: without the fleet, a plugin of this node can be called, and others cannot.
func TestFindFails(t *testing.T) {
	for _, local := range []bool{true, false} {
		d := place(local, "")
		d.config.Find = func(context.Context, Filter) ([]Instance, error) { return nil, errors.New("etcd is away") }
		if list, err := collect(d.candidates(t.Context(), 0, "", "n", Policy{})); (err == nil) != local || len(list) > 1 {
			t.Errorf("local %t: %v, %v", local, names(list), err)
		}
	}
}

// TestChance: of nodes that are alike, each comes first at times.
func TestChance(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		list, err := collect(place(false, "", "b", "c", "d").candidates(t.Context(), 0, "", "n", Policy{}))
		if err != nil || len(list) != 3 {
			t.Fatalf("%v, %v", names(list), err)
		}
		seen[list[0].node] = true
	}
	if len(seen) != 3 {
		t.Errorf("only %v come first", seen)
	}
}

func TestIdentities(t *testing.T) {
	uri, err := url.Parse("spiffe://example.com/nomad")
	if err != nil {
		t.Fatal(err)
	}
	for want, cert := range map[string]*x509.Certificate{
		"spiffe://example.com/nomad": {URIs: []*url.URL{uri}, DNSNames: []string{"a"}},
		"a b.example.com":            {DNSNames: []string{"a", "B.Example.com", "spiffe://fake"}},
		"":                           {},
	} {
		if got := strings.Join(Identities(cert), " "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	named := &x509.Certificate{}
	named.Subject.CommonName = "Root"
	if got := Identities(named); len(got) != 1 || got[0] != "root" {
		t.Errorf("by the common name: %v", got)
	}
}

// TestTerm: a lease is believed in for nine tenths of its time from when its renewal was sent, by both clocks.
func TestTerm(t *testing.T) {
	sent := time.Now()
	now := &term{timer: time.NewTimer(time.Hour)}
	now.living, now.end = context.WithCancelCause(t.Context())
	now.extend(sent, 10*time.Second)
	for after, want := range map[time.Duration]bool{0: true, 8 * time.Second: true, 9 * time.Second: false, time.Hour: false} {
		if got := now.valid(sent.Add(after)); got != want {
			t.Errorf("after %v: %t", after, got)
		}
		if got := now.valid(sent.Add(after).Round(0)); got != want {
			t.Errorf("after %v by the other clock: %t", after, got)
		}
	}
	now.until = time.Now()
	if now.extend(time.Now(), 10*time.Second); now.valid(time.Now()) || !errors.Is(context.Cause(now.living), errTermOver) {
		t.Error("a renewal that comes too late makes it valid again")
	}
	if now.until = sent.Add(time.Hour); now.valid(sent) {
		t.Error("it is valid after its end")
	}
	if (*term)(nil).valid(sent) {
		t.Error("none is valid")
	}
}

func TestContenderKeys(t *testing.T) {
	s := Space{}
	kv := func(key, value string, lease int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), Lease: lease, CreateRevision: 3, ModRevision: 5}
	}
	for _, l := range []Lock{{"csi-controller", "hostpath.csi.k8s.io"}, {"T", "example.com/widget"}, {"T", "a%2Fb c"}, {"@node", "x"}} {
		own, older := contenderKeys(s, "a", l, 0x694d)
		want := contender{lock: l, node: "a", holds: true, ttl: 10 * time.Second, lease: 0x694d, made: 3, changed: 5}
		if got, ok := parseContender(s, kv(own, "holds 10", 0x694d)); !ok || got != want {
			t.Errorf("%s: %+v, %t", own, got, ok)
		}
		want.ttl = 0 // earlier versions do not say
		if got, ok := parseContender(s, kv(older, "a", 0x694d)); !ok || got != want {
			t.Errorf("%s: %+v, %t", older, got, ok)
		}
		want.holds = false
		if got, ok := parseContender(s, kv(older, "~a", 0x694d)); !ok || got != want {
			t.Errorf("%s: %+v, %t", older, got, ok)
		}
	}
	own, older := contenderKeys(s, "a", Lock{"T", "x"}, 1)
	for value, ttl := range map[string]time.Duration{"waits 99999999999999": maxTTL, "waits -1": 0, "x": 0, "waits": 0} {
		if got, ok := parseContender(s, kv(own, value, 1)); !ok || got.holds || got.ttl != ttl {
			t.Errorf("%q: %+v, %t", value, got, ok)
		}
	}
	for name, kv := range map[string]*mvccpb.KeyValue{
		"empty": kv("", "", 1), "left": kv(own, "left", 1), "without lease": kv(own, "holds 10", 0), "of another lease": kv(own, "holds 10", 2),
		"short": kv("/patchbay/default/v1/elections/T/1", "a", 1), "escape": kv("/patchbay/default/v1/elections/T/%zz/1", "a", 1),
		"elsewhere": kv("/patchbay/other/v1/elections/T/x/1", "a", 1), "no node": kv(older, "a b", 1), "base": kv(s.TokenBaseKey("1"), "5", 1),
		"long": kv(own+"/1", "holds 10", 1),
	} {
		if c, ok := parseContender(s, kv); ok {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// refusing is a connection that knows without gRPC that it cannot be used.
type refusing struct{ grpc.ClientConnInterface }

func (refusing) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Unavailable, "gone")
}

func (refusing) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unavailable, "gone")
}

// TestHoldCountsCalls: a call that its connection refused is over, so the end of the hold does not wait for it.
func TestHoldCountsCalls(t *testing.T) {
	h := &Hold{Token: 7, ended: t.Context()}
	conn := h.Conn(refusing{})
	if err := conn.Invoke(t.Context(), "/s/m", nil, nil); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if _, err := conn.NewStream(t.Context(), &grpc.StreamDesc{}, "/s/m"); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if n := h.calls.Load(); n != 0 {
		t.Errorf("%d calls are in progress", n)
	}
}

// retrying is a connection that makes a call anew when the instance of the plugin was superseded before it was sent, as the registry's does.
type retrying struct{ grpc.ClientConnInterface }

func (retrying) NewStream(
	ctx context.Context, _ *grpc.StreamDesc, _ string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	finish := func() {
		for _, option := range options {
			if o, ok := option.(grpc.OnFinishCallOption); ok {
				o.OnFinish(nil)
			}
		}
	}
	finish()
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	streaming, cancel := context.WithCancel(ctx)
	return finishing{ctx: streaming, finish: func() { cancel(); finish() }}, nil
}

func (c retrying) Invoke(ctx context.Context, method string, _, _ any, options ...grpc.CallOption) error {
	stream, err := c.NewStream(ctx, nil, method, options...)
	if err == nil {
		_ = stream.CloseSend()
	}
	return err
}

type finishing struct {
	grpc.ClientStream
	ctx    context.Context //nolint:containedctx // A stream has a context.
	finish func()
}

func (f finishing) Context() context.Context { return f.ctx }
func (f finishing) CloseSend() error         { f.finish(); return nil }

// TestHoldOutlivesAnInstance: a call that is made again on another instance is one call, and the end of its first try is not that of the call.
func TestHoldOutlivesAnInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Hold{Token: 7, ended: t.Context()}
		conn := h.Conn(retrying{})
		if err := conn.Invoke(t.Context(), "/s/m", nil, nil); err != nil {
			t.Error(err)
		}
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{}, "/s/m")
		if err != nil {
			t.Fatal(err)
		}
		if n := h.calls.Load(); n != 1 {
			t.Errorf("%d calls are in progress while one is", n)
		}
		_ = stream.CloseSend()
		synctest.Wait()
		if n := h.calls.Load(); n != 0 {
			t.Errorf("%d calls are in progress", n)
		}
	})
}
