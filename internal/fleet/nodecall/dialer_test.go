package nodecall

import (
	"context"
	"crypto/x509"
	"errors"
	"iter"
	"net/url"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/plugin"
)

// instances returns instances on nodes, each of which has its name as its zone. Those on nodes with an exclamation mark are unhealthy.
func instances(nodes ...string) []fleet.Instance {
	var list []fleet.Instance
	for _, n := range nodes {
		n, unhealthy := strings.CutSuffix(n, "!")
		list = append(list, fleet.Instance{
			PluginRecord: &fleetv1.PluginRecord{Unhealthy: unhealthy},
			Node:         &fleet.Node{NodeRecord: &fleetv1.NodeRecord{Address: n + ":1"}, Name: n},
		})
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

// place returns a dialer on the node here, in a fleet with the nodes b, c and d. The listed nodes have the plugin.
func place(local bool, leader string, nodes ...string) *Dialer {
	d := &Dialer{
		Node: "here", Labels: map[string]string{"zone": "here"},
		Unhealthy: func(ptype, _ string) bool { return ptype == "Unwell" },
		Find: func(_ context.Context, f fleet.Filter) ([]fleet.Instance, error) {
			return slices.DeleteFunc(instances(nodes...), func(i fleet.Instance) bool {
				labels := &fleetv1.NodeRecord{Labels: map[string]string{"zone": i.Node.Name}}
				return !f.MatchNode(&fleet.Node{NodeRecord: labels, Name: i.Node.Name})
			}), nil
		},
		Local: func(context.Context, string, string) (grpc.ClientConnInterface, error) {
			if local {
				return (*grpc.ClientConn)(nil), nil
			}
			return nil, status.Error(codes.NotFound, "not here")
		},
	}
	if leader != "" {
		d.Leader = func(_ context.Context, l plugin.Name) (string, bool, error) {
			return strings.Trim(leader, "-"), l.Type == "Locked", nil
		}
	}
	return d
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

// TestCallErrors checks that an error has the node that could not be called and the reason, once.
func TestCallErrors(t *testing.T) {
	const without = "this node has no certificate for calls to others; set fleet.serve.cert, key and ca"
	for want, p := range map[string]Policy{
		"cannot call plugin T/n on node b: " + without:                                   {Node: "b"},
		"cannot call plugin T/n in the fleet: node b: " + without:                        {},
		"cannot call plugin T/n on node x: no node that can be called has it registered": {Node: "x"},
	} {
		_, err := place(false, "", "b").Dial("T", "n", p).NewStream(t.Context(), &grpc.StreamDesc{}, "/a.B/C")
		if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestFindFails checks that without the fleet, a plugin of this node can be called, and others cannot.
func TestFindFails(t *testing.T) {
	for _, local := range []bool{true, false} {
		d := place(local, "")
		d.Find = func(context.Context, fleet.Filter) ([]fleet.Instance, error) { return nil, errors.New("etcd is away") }
		if list, err := collect(d.candidates(t.Context(), 0, "", "n", Policy{})); (err == nil) != local || len(list) > 1 {
			t.Errorf("local %t: %v, %v", local, names(list), err)
		}
	}
}

// TestChance checks that each of several equal nodes comes first at times.
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
