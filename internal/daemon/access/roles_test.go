package access

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
)

// procedures are the methods of the control API.
func procedures() map[string]protoreflect.MethodDescriptor {
	found := map[string]protoreflect.MethodDescriptor{}
	protoregistry.GlobalFiles.RangeFilesByPackage(patchbayv1.File_patchbay_v1_control_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				found["/"+string(service.FullName())+"/"+string(method.Name())] = method
			}
		}
		return true
	})
	return found
}

// TestEveryMethodHasARole keeps a new method from being for administrators by oversight.
func TestEveryMethodHasARole(t *testing.T) {
	all := procedures()
	if len(all) < 20 {
		t.Fatalf("%d methods were found", len(all))
	}
	for procedure := range all {
		if role := procedureRoles[procedure]; role < Read || role > Admin {
			t.Errorf("%s has no role: add it to procedureRoles", procedure)
		}
	}
	for procedure := range procedureRoles {
		if all[procedure] == nil {
			t.Errorf("%s has a role and does not exist", procedure)
		}
	}
	if RoleFor("/patchbay.v1.ControlService/Unheard") != Admin {
		t.Error("a method without a role is not for administrators")
	}
}

func TestUnknownMembers(t *testing.T) {
	_, err := NewPolicy(config.Roles{
		Read: config.Members{Users: []string{"no-such-user"}}, Admin: config.Members{Groups: []string{"no-such-group", "-1"}},
	})
	var unknown []string
	for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
		field, _ := errors.AsType[*trustjudge.FieldError](err)
		what, _, _ := strings.Cut(field.Err.Error(), " is not known on this machine: ")
		unknown = append(unknown, field.Field+": "+what)
	}
	want := []string{`control.roles.read.users: "no-such-user"`, `control.roles.admin.groups: "no-such-group"`,
		`control.roles.admin.groups: "-1"`}
	if !slices.Equal(unknown, want) {
		t.Errorf("got %q, want %q", unknown, want)
	}
	if _, err := NewPolicy(config.Roles{Operate: config.Members{Groups: []string{""}}}); err == nil {
		t.Error("an empty name is taken")
	}
}

func TestEntryRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEntryRate(maxEntries, maxAllEntries)
		told := 0
		for range 3 {
			if first, _ := s.allow(audited{action: "a"}); first {
				told++
			}
		}
		first, left := s.allow(audited{action: "b"})
		if told != 1 || !first || left != 2 {
			t.Errorf("told %d times; another: %t, %d left out", told, first, left)
		}
		for i := range 2 * maxEntries {
			s.allow(audited{action: strings.Repeat("x", i)})
		}
		if u := s.users[""]; len(u.written) != maxEntries || u.suppressed != maxEntries+2 {
			t.Errorf("%d remembered, %d left out", len(u.written), u.suppressed)
		}
		if first, left := s.allow(audited{who: "1", action: "a"}); !first || left != 0 {
			t.Errorf("what another user does: %t, %d left out", first, left)
		}
		// A crowd is bounded too, and those who take turns are remembered as far as there is room.
		told = 0
		for i := range 3 * maxAllEntries {
			if first, _ := s.allow(audited{who: strconv.Itoa(i % (2 * maxUsers)), action: "y"}); first {
				told++
			}
		}
		if told > maxAllEntries || len(s.users) != maxUsers {
			t.Errorf("%d are told of a crowd, want %d at most; %d users are remembered", told, maxAllEntries, len(s.users))
		}
		time.Sleep(repeatAfter)
		if first, _ := s.allow(audited{who: "late", action: "y"}); !first {
			t.Error("after a while nothing is told")
		}
	})
}

// TestAuditCannotBeSwitchedOff: made-up names, however many, keep no call that reached a plugin out of the audit. Who makes so many different
// ones that they are too many to tell is refused.
func TestAuditCannotBeSwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		a := NewAuditor(func(e plugin.Event) { told = append(told, e.Message) }, slog.New(slog.DiscardHandler))
		user, other := &Caller{peer: sock.Credentials{UID: 7}}, &Caller{peer: sock.Credentials{UID: 77}}
		call := func(who Actor, plugin, method string, reached bool, code codes.Code) {
			a.Called(who, Call{Plugin: named("T", plugin), Method: method}, reached, code)
		}
		for i := range 1000 {
			call(user, fmt.Sprintf("made-up-%d", i), "a.B/C", false, codes.Unavailable)
			call(user, "disk", fmt.Sprintf("a.B/MadeUp%d", i), true, codes.Unimplemented)
		}
		if len(told) != maxEntries {
			t.Errorf("%d calls of made-up names are told, want %d", len(told), maxEntries)
		}
		for i := range 2 * maxEntries { // which may be made up, or have had their effect
			told = nil
			call(user, "disk", fmt.Sprintf("a.B/Cut%d", i), true, codes.Canceled)
			call(user, "disk", fmt.Sprintf("a.B/Method%d", i), true, codes.NotFound)
			call(other, "disk", fmt.Sprintf("a.B/Method%d", i), true, codes.NotFound)
			if len(told) != 3 {
				t.Fatalf("a first call of what may exist is left out after %d others: told %q", i, told)
			}
		}
		told = nil
		call(user, "disk", "a.B/Format", true, codes.Canceled)
		call(user, "disk", "a.B/Format", true, codes.Canceled)
		if len(told) != 1 || !strings.Contains(told[0], "T/disk: a.B/Format: canceled") {
			t.Errorf("of a call that was cut off after others is told: %q", told)
		}
		told = nil
		call(&Caller{peer: sock.Credentials{UID: 1}}, "1n", "a.B/C", true, codes.OK) // would be alike if user and name were one text
		call(&Caller{peer: sock.Credentials{UID: 11}}, "n", "a.B/C", true, codes.OK)
		if len(told) != 2 {
			t.Errorf("of two users one is told of: %q", told)
		}
		told = nil
		refused := 0
		for i := range 4 * maxCalls {
			if err := a.Admit(user); err != nil {
				if refused++; status.Code(err) != codes.ResourceExhausted {
					t.Error(err)
				}
				continue
			}
			call(user, "disk", fmt.Sprintf("a.B/Other%d", i), true, codes.OK)
		}
		if len(told) > maxCalls || refused == 0 {
			t.Errorf("%d calls of one user are told within a moment, and %d refused", len(told), refused)
		}
		if !slices.ContainsFunc(told, func(m string) bool { return strings.Contains(m, "resource_exhausted") }) {
			t.Error("the refusals are not told")
		}
		if err := a.Admit(other); err != nil {
			t.Errorf("another user may not call: %v", err)
		}
		if maxCallsAtOnce < h2proxy.DefaultLimits.UserCalls {
			t.Error("a user may have more calls in progress than there is room for")
		}
		told = nil
		for i := range maxCallsAtOnce { // those that had begun
			call(user, "disk", fmt.Sprintf("a.B/Begun%d", i), true, codes.OK)
		}
		if len(told) != maxCallsAtOnce {
			t.Errorf("%d of %d calls that had begun are told", len(told), maxCallsAtOnce)
		}
		time.Sleep(repeatAfter)
		if err := a.Admit(user); err != nil {
			t.Errorf("after a while: %v", err)
		}
		for i := range 2 * maxUsers {
			call(&Caller{peer: sock.Credentials{UID: uint32(i)}}, "disk", "a.B/C", true, codes.OK)
		}
		if len(a.calls.users) > maxUsers {
			t.Errorf("too much is remembered, of %d users", len(a.calls.users))
		}
		told = nil
		for range 2 * maxCalls { // by root, who is not refused
			call(&Caller{}, "disk", fmt.Sprint("a.B/", len(told)), true, codes.OK)
		}
		if len(told) != 2*maxCalls || len(a.calls.users[(&Caller{}).Key()].written) > maxCalls {
			t.Errorf("%d of %d different calls of root are told", len(told), 2*maxCalls)
		}
	})
}

// TestCallsThatLookAlike: of two calls that differ both are told, however alike their names look.
func TestCallsThatLookAlike(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", maxShort)
	for _, calls := range [][2]Call{
		{{Plugin: named("T", "n in the fleet"), Method: "a.B/C"}, {Plugin: named("T", "n"), Fleet: true, Method: "a.B/C"}},
		{{Plugin: named("T", long+"1"), Method: "a.B/C"}, {Plugin: named("T", long+"2"), Method: "a.B/C"}},
		{{Plugin: named("T", "n"), Method: long + "1"}, {Plugin: named("T", "n"), Method: long + "2"}},
		{{Plugin: named("T", "n: a"), Method: "b"}, {Plugin: named("T", "n"), Method: "a: b"}},
	} {
		told := 0
		a := NewAuditor(func(plugin.Event) { told++ }, slog.New(slog.DiscardHandler))
		for _, call := range calls {
			a.Called(&Caller{}, call, true, codes.OK)
		}
		if told != 2 {
			t.Errorf("of %+v %d are told", calls, told)
		}
	}
}

// TestFleetDenialsOfOneHideNoOther: denied calls of one node suppress neither those of another node nor other denials of the same node.
func TestFleetDenialsOfOneHideNoOther(t *testing.T) {
	var told []string
	d := NewAuditor(func(e plugin.Event) { told = append(told, e.Message) }, slog.New(slog.DiscardHandler))
	for i := range 2 * maxEntries {
		_ = d.DenyNode(node("node-a"), Call{Plugin: named("T", fmt.Sprint("made-up", i)), Method: "a.B/C"})
	}
	_ = d.DenyNode(node("node-b"), Call{Plugin: named("CSIPlugin", "disk"), Method: "csi.v1.Node/NodePublishVolume"})
	if len(told) != maxEntries+1 || !strings.Contains(told[maxEntries], "node-b may not call") {
		t.Errorf("%d are told, the last: %q", len(told), told[len(told)-1])
	}
	d.denied(node("node-a"), "Drain", errors.New("no role"))
	if last := told[len(told)-1]; !strings.Contains(last, "node-a: Drain: denied") {
		t.Errorf("the denial of another action is not told; the last is %q", last)
	}
}

// node is an actor on another node.
type node string

func (n node) Key() string { return string(n) }

func (n node) String() string { return string(n) }

func (n node) Attrs() []any { return nil }

func TestDenials(t *testing.T) {
	var events []string
	d := NewAuditor(func(e plugin.Event) { events = append(events, string(e.Kind)+" "+e.Message) }, slog.New(slog.DiscardHandler))
	for range 3 {
		err := d.DenyNode(node("node"), Call{Plugin: named("T", strings.Repeat("n", 1000)), Method: "s/m"})
		if status.Code(err) != codes.PermissionDenied || len(err.Error()) > 400 {
			t.Errorf("got %v", err)
		}
	}
	if len(events) != 1 || !strings.HasPrefix(events[0], "fleet-call-denied node may not call s/m of plugin T/nnn") {
		t.Errorf("events %q", events)
	}
	for i := range 2 * maxEntries {
		_ = d.DenyNode(node("node"), Call{Plugin: named("T", fmt.Sprint(i)), Method: "s/m"})
	}
	if len(events) > maxEntries || len(d.nodeDenials.users["node"].written) > maxEntries {
		t.Errorf("%d events, %d remembered", len(events), len(d.nodeDenials.users["node"].written))
	}
}

func named(ptype, name string) plugin.Name {
	return plugin.Name{Type: ptype, Name: name}
}
