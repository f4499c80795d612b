package fleet

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/reconciler"
)

func marshal(t rapid.TB, m proto.Message) []byte {
	value, err := deterministic.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// picture is what a subscriber makes of the changes.
type picture struct {
	nodes   map[string]Node
	plugins map[string]Plugin
}

func (p picture) take(t rapid.TB, c Change) {
	if c.Node != nil {
		_, known := p.nodes[c.Node.Name]
		if known == (c.Kind == Added) {
			t.Fatalf("%s of node %s, known: %t", c.Kind, c.Node.Name, known)
		}
		p.nodes[c.Node.Name] = *c.Node
		if c.Kind == Removed {
			delete(p.nodes, c.Node.Name)
		}
		return
	}
	key := c.Plugin.Node + c.Plugin.Type + c.Plugin.Name + c.Plugin.Instance
	old, known := p.plugins[key]
	if known == (c.Kind == Added) || c.Kind == Changed && reflect.DeepEqual(old, *c.Plugin) {
		t.Fatalf("%s of plugin %+v, known: %+v", c.Kind, c.Plugin, old)
	}
	p.plugins[key] = *c.Plugin
	if c.Kind == Removed {
		delete(p.plugins, key)
	}
}

// TestChangesLeadToTheState: whatever happens to the keys of a node, and whatever the filter, the changes lead from one state to the next,
// and none is a repeat. Half of a generation is never seen.
func TestChangesLeadToTheState(t *testing.T) {
	filters := []Filter{
		{}, {States: []reconciler.State{reconciler.StateRegistered}}, {Versions: []string{"1"}}, {Types: []string{"role"}},
		{Nodes: []string{"b"}},
	}
	rapid.Check(t, func(t *rapid.T) {
		known := &facts{}
		var shown *member
		pictures := make([]picture, len(filters))
		for i := range pictures {
			pictures[i] = picture{map[string]Node{}, map[string]Plugin{}}
		}
		revision := int64(0)
		sizes := map[string]int{} // of each generation
		t.Repeat(map[string]func(*rapid.T){
			"presence": func(t *rapid.T) { known.put(presenceKey, &mvccpb.KeyValue{}) },
			"death":    func(t *rapid.T) { known.delete(presenceKey) },
			"record": func(t *rapid.T) {
				r := &fleetv1.NodeRecord{Instance: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "instance")}
				if rapid.Bool().Draw(t, "stopped") {
					r.StoppedAt = timestamppb.New(time.Unix(1, 0))
				}
				known.put(recordKey, &mvccpb.KeyValue{Value: marshal(t, r)})
			},
			"record gone": func(t *rapid.T) { known.delete(recordKey) },
			"part": func(t *rapid.T) {
				revision++
				parts := rapid.IntRange(1, 3).Draw(t, "parts")
				generation := rapid.Uint64Range(1, 3).Draw(t, "generation")
				part, slot := rapid.IntRange(0, parts-1).Draw(t, "part"), rapid.IntRange(0, slots-1).Draw(t, "slot")
				v := &fleetv1.PluginsPart{Instance: "x", Generation: generation, Parts: uint32(parts), Part: uint32(part)}
				for i := range 2 {
					p := &fleetv1.PluginRecord{
						Type: "T", Name: fmt.Sprintf("%d-%d", part, i), Version: fmt.Sprint(generation), State: "registered",
					}
					if generation == 2 {
						p.Roles, p.State = []string{"role"}, "backoff"
					}
					v.Plugins = append(v.Plugins, p)
				}
				sizes[fmt.Sprint(generation, parts)] = 2 * parts
				known.put(partKey(slot, part), &mvccpb.KeyValue{Value: marshal(t, v), ModRevision: revision})
			},
			"part gone": func(t *rapid.T) {
				known.delete(partKey(rapid.IntRange(0, slots-1).Draw(t, "slot"), rapid.IntRange(0, 2).Draw(t, "part")))
			},
			"garbage": func(t *rapid.T) {
				key := rapid.SampledFrom([]string{recordKey, partKey(0, 0), partKey(1, 1)}).Draw(t, "key")
				known.put(key, &mvccpb.KeyValue{Value: rapid.SliceOf(rapid.Byte()).Draw(t, "value"), ModRevision: revision})
			},
			"": func(t *rapid.T) {
				var now *member
				if !known.empty() {
					now = known.member("a", shown, time.Unix(100, 0))
				}
				changes := differences(shown, now)
				shown = now
				for i, f := range filters {
					for _, c := range changes {
						if c, ok := c.through(f); ok {
							pictures[i].take(t, c)
						}
					}
					want := map[string]Plugin{}
					if now != nil {
						for _, r := range now.plugins {
							if p := now.plugin(r); f.match(p) {
								want[p.Node+p.Type+p.Name+p.Instance] = p
							}
						}
					}
					if !reflect.DeepEqual(want, pictures[i].plugins) {
						t.Fatalf("filter %+v: the picture is %v, the state %v", f, pictures[i].plugins, want)
					}
				}
				if now == nil {
					return
				}
				versions := map[string]bool{}
				for _, r := range now.plugins {
					versions[r.Version] = true
				}
				if n := len(now.plugins); len(versions) > 1 || n > 0 && !slices.Contains([]int{2, 4, 6}, n) {
					t.Fatalf("half a generation: %d plugins of generations %v", n, slices.Collect(maps.Keys(versions)))
				}
			},
		})
	})
}

// TestKeys: what is written can be read, and nothing else is taken for it.
func TestKeys(t *testing.T) {
	for slot := range slots {
		for _, number := range []int{0, 1, 9, 10, maxParts - 1} {
			if s, n, ok := parsePart(partKey(slot, number)); !ok || s != slot || n != number {
				t.Errorf("part %d of slot %d reads as %d, %d, %t", number, slot, s, n, ok)
			}
		}
	}
	for _, key := range []string{
		"", "plugins", "plugins/", "plugins/0", "plugins/0/", "plugins/0/0", "plugins/2/0000", "plugins/-1/0000", "plugins/0/00000",
		"plugins/0/9999", "plugins/0/0000/x", "plugins/+0/0000", "record/0/0000",
	} {
		if _, _, ok := parsePart(key); ok {
			t.Errorf("%q was taken for a part", key)
		}
	}
	if got := (Space{Prefix: "/x/", Namespace: "y"}).NodeRange("n"); got != "/x/y/v1/nodes/n/" {
		t.Errorf("the range of a node is %q", got)
	}
}

// TestSplit: the parts of a generation have everything, in order, and none is too large.
func TestSplit(t *testing.T) {
	var plugins []*fleetv1.PluginRecord
	for i := range 3000 {
		plugins = append(plugins, &fleetv1.PluginRecord{Type: "T", Name: fmt.Sprint(i), Endpoint: strings.Repeat("x", i%700)})
	}
	c := content{record: &fleetv1.NodeRecord{}, plugins: plugins}
	values, err := c.encodeParts("i", 7, time.Now())
	if err != nil || len(values) < 3 {
		t.Fatalf("%d parts, %v", len(values), err)
	}
	next := 0
	for i, value := range values {
		var part fleetv1.PluginsPart
		err := proto.Unmarshal(value, &part)
		if err != nil || len(value) > maxPart+100 || int(part.GetPart()) != i || int(part.GetParts()) != len(values) {
			t.Errorf("part %d: %d bytes, %v", i, len(value), err)
		}
		for _, p := range part.GetPlugins() {
			if p.GetName() != fmt.Sprint(next) {
				t.Fatalf("plugin %s at %d", p.GetName(), next)
			}
			next++
		}
	}
	if next != len(plugins) {
		t.Errorf("%d of %d plugins", next, len(plugins))
	}
}

// TestHostile: what plugins say is made fit, and what is too much is left out.
func TestHostile(t *testing.T) {
	status := reconciler.Status{Type: "T\xff", Name: "n\xff", State: reconciler.StateRegistered}
	status.Registration.Details = map[string]string{"k": strings.Repeat("x", 2*maxDetails)}
	status.Registration.Roles = []string{"\xff"}
	records := pluginRecords([]reconciler.Status{status, {Type: "T"}, {Name: "n"}}, nil)
	unhealthy := map[string]bool{"/b": true}
	two := pluginRecords([]reconciler.Status{{Type: "T", Name: "a", SocketPath: "/a"}, {Type: "T", Name: "b", SocketPath: "/b"}}, unhealthy)
	if part := partOf(&fleetv1.PluginsPart{Plugins: two}, 1); part.plugins[0].Unhealthy || !part.plugins[1].Unhealthy {
		t.Errorf("published: %v", two)
	}
	if len(records) != 1 || records[0].GetDetails() != nil {
		t.Fatalf("published: %v", records)
	}
	if _, err := (content{plugins: records}).encodeParts("i", 1, time.Now()); err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{}, "plugins/0/0000")
	f.Add([]byte("\x08\x01"), recordKey)
	f.Fuzz(func(t *testing.T, value []byte, key string) {
		known := &facts{}
		known.put(key, &mvccpb.KeyValue{Value: value})
		m := known.member("a", nil, time.Unix(1, 0))
		differences(nil, m)
		known.delete(key)
		if !known.empty() {
			t.Errorf("%q is left after its end: %+v", key, known)
		}
	})
}
