package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestDrainCondition checks that a drained node is degraded until it has held no locks and had no calls of other nodes for some time, and
// that the condition has the time of the drain.
func TestDrainCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var holds atomic.Bool
		holds.Store(true)
		d := newDrain(holds.Load)
		var announced []bool
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			watched{look: d.look, changed: d.changed}.watch(ctx, func(c plugin.Condition) { announced = append(announced, c.OK) })
		}()
		is := func(what string, wantDrained, wantOK bool, message string) {
			t.Helper()
			c, drained := d.condition()
			if drained != wantDrained || c.OK != wantOK || !strings.Contains(c.Message, message) || drained && c.Name != drainCondition {
				t.Errorf("%s: %+v, drained: %t", what, c, drained)
			}
		}
		is("nothing is known", false, false, "")
		if d.isOpen() {
			t.Error("a node competes before it knows whether it is drained")
		}
		d.set(fleet.Cordon{})
		is("not drained", false, false, "")
		if !d.isOpen() {
			t.Error("a node that is not drained does not compete")
		}
		end := d.begin()
		since := time.Now()
		d.set(fleet.Cordon{Drained: true, Since: since})
		time.Sleep(time.Hour)
		is("a lock is held", true, false, "holds a lock")
		holds.Store(false)
		is("a call is in progress", true, false, "has served calls")
		end()
		time.Sleep(drainQuiet - time.Second)
		d.begin()()
		time.Sleep(drainQuiet - time.Second)
		is("a call has just ended", true, false, "has served calls")
		time.Sleep(2 * time.Second)
		is("it is left alone", true, true, "")
		if c, _ := d.condition(); !c.Since.Equal(since) {
			t.Errorf("it speaks of the drain of %v, not of %v", c.Since, since)
		}
		d.begin()()
		time.Sleep(2 * drainLook)
		is("it is called again", true, false, "has served calls")
		time.Sleep(drainQuiet)
		is("it is left alone again", true, true, "")
		d.set(fleet.Cordon{})
		d.set(fleet.Cordon{Drained: true, Since: time.Now()})
		is("drained again", true, false, "has served calls")
		time.Sleep(drainLook)
		d.set(fleet.Cordon{})
		time.Sleep(drainLook)
		cancel()
		<-ended
		if want := []bool{false, true, false, true, false, true}; !slices.Equal(announced, want) {
			t.Errorf("announced: %v, want %v", announced, want)
		}
	})
}

// TestVersions checks that each version of a plugin is listed with its nodes and the time since which the versions differ, and that the
// condition is degraded only after the drift.
func TestVersions(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	instance := func(name, version, node string, minute int) fleet.Instance {
		return fleet.Instance{Node: &fleet.Node{Name: node}, PluginRecord: &fleetv1.PluginRecord{
			Type: "T", Name: name, Version: version, Current: true, RegisteredAt: timestamppb.New(begin.Add(time.Duration(minute) * time.Minute)),
		}}
	}
	standby := instance("x", "0", "a", 0)
	standby.Current = false
	versions := versionsOf([]fleet.Instance{
		instance("same", "1", "a", 0), instance("same", "1", "b", 500),
		instance("x", "1", "a", 0), instance("x", "2", "b", 30), instance("x", "1", "c", 5), instance("x", "3", "d", 90), instance("x", "2", "e", 20), standby,
		instance("y", "2", "a", 0), instance("y", "1", "b", 100),
	})
	var got []string
	for _, v := range versions {
		line := fmt.Sprint(v.GetName(), " ", v.GetVersion(), " ", strings.Join(v.GetNodes(), ","))
		if since := v.GetDiffersSince(); since != nil {
			line += fmt.Sprint(" ", since.AsTime().Sub(begin))
		}
		got = append(got, line)
	}
	if want := "same 1 a,b; x 1 a,c 20m0s; x 2 b,e 20m0s; x 3 d 20m0s; y 1 b 1h40m0s; y 2 a 1h40m0s"; strings.Join(got, "; ") != want {
		t.Errorf("versions: %s, want %s", strings.Join(got, "; "), want)
	}
	for _, test := range []struct {
		minute         int
		want, unwanted string
	}{{79, "", "T"}, {81, "T/x for", "T/y"}, {200, "T/x, T/y for", "same"}} {
		c := versionsDiffer(versions, map[string]time.Time{}, time.Hour, begin.Add(time.Duration(test.minute)*time.Minute))
		if c.Name != versionsCondition || c.OK != (test.want == "") || !strings.Contains(c.Message, test.want) || strings.Contains(c.Message, test.unwanted) {
			t.Errorf("after %d minutes: %+v", test.minute, c)
		}
		if !c.OK && !c.Since.Equal(begin.Add(20*time.Minute)) {
			t.Errorf("after %d minutes: since %v", test.minute, c.Since)
		}
	}
	differ := map[string]time.Time{}
	for minute := 50; minute <= 150; minute += 50 { // the plugin with the old version is restarted each time
		versions := versionsOf([]fleet.Instance{instance("x", "2", "a", 0), instance("x", "1", "b", minute)})
		c := versionsDiffer(versions, differ, time.Hour, begin.Add(time.Duration(minute)*time.Minute))
		if c.OK != (minute < 150) {
			t.Errorf("a plugin that is restarted, after %d minutes: %+v", minute, c)
		}
	}
	if versionsDiffer(nil, differ, time.Hour, begin); len(differ) > 0 {
		t.Errorf("equal versions still differ: %v", differ)
	}
}
