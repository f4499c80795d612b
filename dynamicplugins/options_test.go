package dynamicplugins_test

import (
	"maps"
	"reflect"
	"testing"
)

// TestOptionsAreCopied: what a caller does with its options afterwards changes those of no plugin, whether others have the same or not, and
// plugins with the same ones share them.
func TestOptionsAreCopied(t *testing.T) {
	r := open(t, nil, nil)
	mine := map[string]string{"zone": "a"}
	want := map[string]map[string]string{}
	for _, next := range []struct{ name, zone string }{{"1", "a"}, {"2", "a"}, {"3", "b"}, {"4", "a"}, {"5", ""}, {"6", "a"}} {
		if mine["zone"] = next.zone; next.zone == "" {
			delete(mine, "zone")
		}
		p := plugin("t", next.name, "1")
		p.Options = mine
		check(t, r.RegisterPlugin(p))
		want[next.name] = maps.Clone(mine)
	}
	mine["zone"] = "changed"
	got := map[string]map[string]string{}
	for _, p := range r.ListPlugins("t") {
		got[p.Name] = p.Options
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("options %v, want %v", got, want)
	}
	if same := func(a, b string) bool {
		return reflect.ValueOf(got[a]).Pointer() == reflect.ValueOf(got[b]).Pointer()
	}; !same("1", "2") || same("1", "4") {
		t.Error("1 and 2 should share their options, and 4 have its own")
	}
}
