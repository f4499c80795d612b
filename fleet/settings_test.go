package fleet

import (
	"strings"
	"testing"
	"time"
)

// TestComparison: what differs is counted and named, and the condition is told when it is another one.
func TestComparison(t *testing.T) {
	space, own := Space{}, Settings{[]string{"b", "a", "a"}, 10 * time.Second}
	var told []Condition
	c := newComparison(space, own, func(now Condition) { told = append(told, now) })
	same, other := Settings{[]string{"a", "b"}, 10 * time.Second}.encode(), Settings{nil, 20 * time.Second}.encode()
	c.change(true, map[string]string{space.SettingsKey("n"): same})
	if got := c.get(); !got.OK || len(told) != 0 {
		t.Errorf("%+v, told %v", got, told)
	}
	c.change(false, map[string]string{space.SettingsKey("n"): other, space.SettingsKey("no node/"): "x", space.SettingsKey("m"): "\xff"})
	got := c.get()
	if got.OK || got.Since.IsZero() || !strings.Contains(got.Message, "2 from this one, node m") || len(told) != 1 || told[0] != got {
		t.Errorf("%+v, told %v", got, told)
	}
	c.change(false, map[string]string{space.SettingsKey("m"): ""})
	if now := c.get(); now.OK || !strings.Contains(now.Message, `{"exclusive":[],"presence":"20s"}`) || !now.Since.Equal(got.Since) {
		t.Errorf("%+v", now)
	}
	c.change(true, nil)
	if got := c.get(); !got.OK || len(told) != 3 {
		t.Errorf("%+v, told %v", got, told)
	}
}
