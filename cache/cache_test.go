package cache_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/plugin"
)

func paths(infos []cache.PluginInfo) []string {
	found := []string{}
	for _, info := range infos {
		found = append(found, info.SocketPath)
	}
	return found
}

func TestDesiredStateOfWorld(t *testing.T) {
	dsw := cache.NewDesired()
	if err := dsw.AddOrUpdatePlugin(""); err == nil || err.Error() != "socket path is empty" {
		t.Errorf("an empty path: %v", err)
	}
	if dsw.MoveSocket("", cache.PluginInfo{SocketPath: "/a"}) == nil || dsw.MoveSocket("/a", cache.PluginInfo{}) == nil {
		t.Error("MoveSocket accepted an empty path")
	}
	for _, path := range []string{"/c", "/a", "/b"} {
		if err := dsw.AddOrUpdatePlugin(path); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"/a", "/b", "/c"}, paths(dsw.GetPluginsToRegister())); diff != "" {
		t.Error(diff)
	}
	before := dsw.GetPluginsToRegister()[0]
	if err := dsw.AddOrUpdatePlugin("/a"); err != nil {
		t.Fatal(err)
	}
	after := dsw.GetPluginsToRegister()[0]
	if !after.Timestamp.After(before.Timestamp) || after.Appearance <= before.Appearance || after == before {
		t.Errorf("the update of /a is no new appearance: %+v, then %+v", before, after)
	}
	dsw.RemovePlugin("/a")
	dsw.RemovePlugin("/a")
	if dsw.PluginExists("/a") || !dsw.PluginExists("/b") {
		t.Error("RemovePlugin removed the wrong one")
	}
}

func TestSetSocketTellsSocketsApart(t *testing.T) {
	dsw := cache.NewDesired()
	socket := cache.PluginInfo{SocketPath: "/a", Socket: plugin.SocketID{Device: 1, Inode: 2, Birth: 3}}
	get := func() cache.PluginInfo { return dsw.GetPluginsToRegister()[0] }
	set := func(s cache.PluginInfo) {
		if err := dsw.SetSocket(s); err != nil {
			t.Fatal(err)
		}
	}
	set(socket)
	first := get()
	set(socket)
	if get() != first {
		t.Error("the same socket is a new appearance")
	}
	dsw.MoveSocket("/a", cache.PluginInfo{SocketPath: "/b", FoundInDeprecatedDir: true})
	moved := get()
	if moved.SocketPath != "/b" || moved.Appearance != first.Appearance || !moved.FoundInDeprecatedDir {
		t.Errorf("after the move: %+v", moved)
	}
	dsw.MoveSocket("/b", cache.PluginInfo{SocketPath: "/a"})
	socket.Socket.Birth++
	set(socket)
	if get().Appearance == first.Appearance {
		t.Error("another socket at the same path is no new appearance")
	}
	// Removed and made again, with an identity that looks the same.
	last := get()
	dsw.RemovePlugin("/a")
	set(socket)
	if get().Appearance == last.Appearance || !get().Timestamp.After(last.Timestamp) {
		t.Error("a socket that was removed and made again is no new appearance")
	}
	if err := dsw.SetSocket(cache.PluginInfo{}); err == nil {
		t.Error("an empty path is accepted")
	}
}

func TestChanges(t *testing.T) {
	dsw := cache.NewDesired()
	add := func(path string) {
		if err := dsw.AddOrUpdatePlugin(path); err != nil {
			t.Fatal(err)
		}
	}
	add("/b")
	add("/a")
	changes := dsw.Changes()
	took := func() []string {
		got := []string{}
		for _, c := range changes.Take() {
			got = append(got, fmt.Sprint(c.Path, " ", c.Info != nil))
		}
		return got
	}
	<-changes.C()
	if diff := cmp.Diff([]string{"/b true", "/a true"}, took()); diff != "" {
		t.Errorf("what is there at the beginning, oldest first:\n%s", diff)
	}
	add("/c")
	add("/c")
	dsw.RemovePlugin("/a")
	dsw.RemovePlugin("/unknown")
	<-changes.C()
	if diff := cmp.Diff([]string{"/c true", "/a false"}, took()); diff != "" {
		t.Error(diff)
	}
	dsw.MoveSocket("/b", cache.PluginInfo{SocketPath: "/d"})
	<-changes.C()
	if diff := cmp.Diff([]string{"/b false", "/d true"}, took()); diff != "" {
		t.Error(diff)
	}
	changes.Close()
	add("/e")
	select {
	case <-changes.C():
		t.Error("a closed subscription is told of changes")
	default:
	}
}

func TestActualStateOfWorld(t *testing.T) {
	asw := cache.NewActualStateOfWorld()
	if err := asw.AddPlugin(cache.PluginInfo{}); err == nil || err.Error() != "socket path is empty" {
		t.Errorf("an empty path: %v", err)
	}
	info := cache.PluginInfo{SocketPath: "/a", Timestamp: time.Now(), Name: "foo", Appearance: 1}
	if err := asw.AddPlugin(info); err != nil {
		t.Fatal(err)
	}
	if !asw.PluginExistsWithCorrectTimestamp(info) {
		t.Error("it is not there")
	}
	later := info
	later.Timestamp = info.Timestamp.Add(1)
	if asw.PluginExistsWithCorrectTimestamp(later) {
		t.Error("it is there with another timestamp")
	}
	again := info
	again.Appearance++
	if asw.PluginExistsWithCorrectTimestamp(again) {
		t.Error("it is there in another appearance of the same clock tick")
	}
	if diff := cmp.Diff([]string{"/a"}, paths(asw.GetRegisteredPlugins())); diff != "" {
		t.Error(diff)
	}
	asw.RemovePlugin("/a")
	asw.RemovePlugin("/a")
	if len(asw.GetRegisteredPlugins()) != 0 {
		t.Error("it is still there")
	}
}

func TestMessages(t *testing.T) {
	info := &cache.PluginInfo{SocketPath: "/run/a.sock", Name: "foo", Type: "CSIPlugin"}
	cause := errors.New("cause")
	simple, detailed := info.GenerateMsg("before", "after")
	for _, msg := range []string{simple, detailed, info.GenerateMsgDetailed("before", "after")} {
		if !strings.HasPrefix(msg, "before ") || !strings.HasSuffix(msg, " after") || !strings.Contains(msg, "/run/a.sock") {
			t.Errorf("message %q", msg)
		}
	}
	if strings.Contains(simple, "foo") || !strings.Contains(detailed, "foo") {
		t.Errorf("only the detailed message has details: %q, %q", simple, detailed)
	}
	simpleErr, detailedErr := info.GenerateError("before", cause)
	for _, err := range []error{simpleErr, detailedErr, info.GenerateErrorDetailed("before", cause)} {
		if !strings.HasPrefix(err.Error(), "before ") || !strings.HasSuffix(err.Error(), ": cause") || !errors.Is(err, cause) ||
			!strings.Contains(err.Error(), "/run/a.sock") {
			t.Errorf("error %q", err)
		}
	}
	if err := info.GenerateErrorDetailed("before", nil); strings.Contains(err.Error(), "%!") {
		t.Errorf("without a cause: %q", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	dsw, asw := cache.NewDesired(), cache.NewActualStateOfWorld()
	changes := dsw.Changes()
	var users sync.WaitGroup
	for i := range 8 {
		users.Go(func() {
			for j := range 200 {
				path := fmt.Sprint("/", (i+j)%10)
				_ = dsw.AddOrUpdatePlugin(path)
				dsw.MoveSocket(path, cache.PluginInfo{SocketPath: path + "x"})
				dsw.RemovePlugin(path)
				for _, info := range dsw.GetPluginsToRegister() {
					_ = asw.AddPlugin(info)
				}
				changes.Take()
				asw.RemovePlugin(path)
				asw.GetRegisteredPlugins()
			}
		})
	}
	users.Wait()
}

// documentedLoop is what reconciles with the documented fields and methods only: a plugin whose socket was made again is unregistered,
// and one that is not registered as it is now is registered. It counts the registrations.
func documentedLoop(t *testing.T, dsw cache.DesiredStateOfWorld, asw cache.ActualStateOfWorld) (registered int) {
	for _, known := range asw.GetRegisteredPlugins() {
		stale := !dsw.PluginExists(known.SocketPath)
		for _, wanted := range dsw.GetPluginsToRegister() {
			stale = stale || wanted.SocketPath == known.SocketPath && !wanted.Timestamp.Equal(known.Timestamp)
		}
		if stale {
			asw.RemovePlugin(known.SocketPath)
		}
	}
	for _, wanted := range dsw.GetPluginsToRegister() {
		if asw.PluginExistsWithCorrectTimestamp(wanted) {
			continue
		}
		registered++
		err := asw.AddPlugin(cache.PluginInfo{SocketPath: wanted.SocketPath, Timestamp: wanted.Timestamp, Name: "n"})
		if err != nil {
			t.Fatal(err)
		}
	}
	return registered
}

func TestDocumentedFieldsSuffice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dsw, asw := cache.NewDesired(), cache.NewActualStateOfWorld()
		if err := dsw.AddOrUpdatePlugin("/a"); err != nil {
			t.Fatal(err)
		}
		for _, want := range []int{1, 2} {
			registered := want - 1
			for range 10 {
				registered += documentedLoop(t, dsw, asw)
				time.Sleep(time.Second)
			}
			if registered != want {
				t.Errorf("registered %d times in 10 s after appearance %d, want %d", registered, want, want)
			}
			if err := dsw.AddOrUpdatePlugin("/a"); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestRefuses checks that empty paths are errors, what is not there is removed without one, and a subscription may be closed twice and used
// after that.
func TestRefuses(t *testing.T) {
	d := cache.NewDesired()
	actual := cache.NewActualStateOfWorld()
	changes := d.Changes()
	for range 2 {
		for call, err := range map[string]error{
			"AddOrUpdatePlugin": d.AddOrUpdatePlugin(""), "SetSocket": d.SetSocket(cache.PluginInfo{}),
			"MoveSocket from": d.MoveSocket("", cache.PluginInfo{SocketPath: "/a"}), "MoveSocket to": d.MoveSocket("/a", cache.PluginInfo{}),
			"AddPlugin": actual.AddPlugin(cache.PluginInfo{}),
		} {
			if err == nil {
				t.Errorf("%s of no path: no error", call)
			}
		}
		d.RemovePlugin("")
		actual.RemovePlugin("")
		if len(changes.Take())+len(d.GetPluginsToRegister())+len(actual.GetRegisteredPlugins()) > 0 || d.PluginExists("") {
			t.Error("there is something")
		}
		changes.Close()
	}
	if err := d.SetSocket(cache.PluginInfo{SocketPath: "/a"}); err != nil || len(changes.Take()) > 0 {
		t.Errorf("a closed subscription has changes, or %v", err)
	}
	// A Clock that panics leaves no lock held.
	d.Clock = func() (none time.Time) { panic("oops") }
	func() {
		defer func() { _ = recover() }()
		_ = d.AddOrUpdatePlugin("/b")
	}()
	if d.PluginExists("/b") {
		t.Error("the socket without a time is there")
	}
	if cache.EndpointDialer(t.Context()) != nil || cache.EndpointDialer(cache.WithEndpointDialer(t.Context(), nil)) != nil {
		t.Error("a context without a dialer has one")
	}
}
