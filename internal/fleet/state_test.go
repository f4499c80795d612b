package fleet

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/plugin"
)

func marshal(t rapid.TB, r *fleetv1.NodeRecord) []byte {
	value, err := encodeRecord(r)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// picture is the state that a subscriber derives from the changes.
type picture struct {
	nodes   map[string]*Node
	plugins map[string]Instance
}

func (p picture) take(t rapid.TB, c Change) {
	if c.Node != nil {
		_, known := p.nodes[c.Node.Name]
		if known == (c.Kind == Added) {
			t.Fatalf("%s of node %s, known: %t", c.Kind, c.Node.Name, known)
		}
		p.nodes[c.Node.Name] = c.Node
		if c.Kind == Removed {
			delete(p.nodes, c.Node.Name)
		}
		return
	}
	key := keyOf(*c.Plugin)
	old, known := p.plugins[key]
	if known == (c.Kind == Added) || c.Kind == Changed && looksLike(old, *c.Plugin) {
		t.Fatalf("%s of plugin %+v, known: %+v", c.Kind, c.Plugin, old)
	}
	p.plugins[key] = *c.Plugin
	if c.Kind == Removed {
		delete(p.plugins, key)
	}
}

func keyOf(i Instance) string { return i.Node.Name + i.GetType() + i.GetName() + i.GetInstance() }

// looksLike reports whether two views of an instance show the same.
func looksLike(a, b Instance) bool {
	return a.Node.State == b.Node.State && a.Node.LastSeen.Equal(b.Node.LastSeen) && a.Node.SeenBefore.Equal(b.Node.SeenBefore) &&
		maps.Equal(a.Node.GetLabels(), b.Node.GetLabels()) && proto.Equal(a.PluginRecord, b.PluginRecord)
}

// TestChangesLeadToTheState checks that the changes lead from each state to the next, and that none is repeated, for any changes of the
// keys of a node and any filter.
func TestChangesLeadToTheState(t *testing.T) {
	filters := []Filter{
		{}, {States: []plugin.State{plugin.StateRegistered}}, {Versions: []string{"1"}}, {Types: []string{"role"}},
		{Nodes: []string{"b"}},
	}
	rapid.Check(t, func(t *rapid.T) {
		known := &facts{}
		var shown *Node
		pictures := make([]picture, len(filters))
		for i := range pictures {
			pictures[i] = picture{map[string]*Node{}, map[string]Instance{}}
		}
		t.Repeat(map[string]func(*rapid.T){
			"presence": func(t *rapid.T) { known.put(keys.Presence, &mvccpb.KeyValue{}) },
			"death":    func(t *rapid.T) { known.put(keys.Presence, nil) },
			"record": func(t *rapid.T) {
				r := &fleetv1.NodeRecord{Instance: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "instance")}
				if rapid.Bool().Draw(t, "stopped") {
					r.StoppedAt = timestamppb.New(time.Unix(1, 0))
				}
				version := rapid.IntRange(0, 3).Draw(t, "version")
				for i := range rapid.IntRange(0, 6).Draw(t, "plugins") {
					p := &fleetv1.PluginRecord{Type: "T", Name: fmt.Sprint(i), Version: fmt.Sprint(version), State: "registered"}
					if version == 2 {
						p.Roles, p.State = []string{"role"}, "backoff"
					}
					r.Plugins = append(r.Plugins, p)
				}
				known.put(keys.Record, &mvccpb.KeyValue{Value: marshal(t, r)})
			},
			"record gone": func(t *rapid.T) { known.put(keys.Record, nil) },
			"garbage": func(t *rapid.T) {
				known.put(keys.Record, &mvccpb.KeyValue{Value: rapid.SliceOf(rapid.Byte()).Draw(t, "value")})
			},
			"": func(t *rapid.T) {
				var now *Node
				if !known.isEmpty() {
					now = known.node("a", shown, time.Unix(100, 0), time.Unix(100, 0))
				}
				changes := differences(shown, now)
				shown = now
				for i, f := range filters {
					for _, c := range changes {
						if c, ok := c.through(f); ok {
							pictures[i].take(t, c)
						}
					}
					want := map[string]Instance{}
					if now != nil {
						for _, r := range now.plugins {
							if p := (Instance{PluginRecord: r, Node: now}); f.match(p) {
								want[keyOf(p)] = p
							}
						}
					}
					if !maps.EqualFunc(want, pictures[i].plugins, looksLike) {
						t.Fatalf("filter %+v: the picture is %v, the state %v", f, pictures[i].plugins, want)
					}
				}
			},
		})
	})
}

// TestTooLarge checks the error for plugins that do not fit into one value.
func TestTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := newFakeLocal()
		for i := range 20_000 {
			local.plugins = append(local.plugins, plugin.Status{Type: "T", Name: fmt.Sprint(i), State: plugin.StateRegistered, Instance: strings.Repeat("x", 100)})
		}
		p := runPublisher(t, newFake(), PublisherConfig{Node: "a", Local: local})
		time.Sleep(time.Minute)
		if c := p.Condition(); c.OK || !strings.Contains(c.Message, "its 20000 plugins take ") {
			t.Errorf("%+v", c)
		}
		local.set("T/one")
		time.Sleep(time.Minute)
		if c := p.Condition(); !c.OK {
			t.Errorf("%+v", c)
		}
	})
}

// TestHostile checks that texts of plugins are made valid, and that large ones are left out.
func TestHostile(t *testing.T) {
	status := plugin.Status{Type: "T\xff", Name: "n\xff", State: plugin.StateRegistered}
	status.Registration.Details = map[string]string{"k": strings.Repeat("x", 2*maxDetails)}
	status.Registration.Roles = []string{"\xff"}
	records := pluginRecords([]plugin.Status{status, {Type: "T"}, {Name: "n"}})
	sick := &plugin.LaunchStatus{ServingStatus: "not-serving"}
	two := pluginRecords([]plugin.Status{{Type: "T", Name: "a", Launch: &plugin.LaunchStatus{}}, {Type: "T", Name: "b", Launch: sick}})
	if two[0].GetUnhealthy() || !two[1].GetUnhealthy() {
		t.Errorf("published: %v", two)
	}
	if len(records) != 1 || records[0].GetDetails() != nil {
		t.Fatalf("published: %v", records)
	}
	marshal(t, &fleetv1.NodeRecord{Plugins: records})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{}, keys.Presence)
	f.Add([]byte("\x08\x01"), keys.Record)
	f.Add(marshal(f, &fleetv1.NodeRecord{Instance: "i", Plugins: []*fleetv1.PluginRecord{{Type: "T", Name: "n"}}}), keys.Record)
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, value []byte, key string) {
		known := &facts{}
		known.put(key, &mvccpb.KeyValue{Value: value})
		m := known.node("a", nil, time.Time{}, time.Unix(1, 0))
		differences(nil, m)
		known.put(key, nil)
		if !known.isEmpty() {
			t.Errorf("%q is left after its end: %+v", key, known)
		}
	})
}
