package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/reconciler"
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
		if role := procedureRoles[procedure]; role < roleRead || role > roleAdmin {
			t.Errorf("%s has no role: add it to procedureRoles", procedure)
		}
	}
	for procedure := range procedureRoles {
		if all[procedure] == nil {
			t.Errorf("%s has a role and does not exist", procedure)
		}
	}
	if roleFor("/patchbay.v1.ControlService/Unheard") != roleAdmin {
		t.Error("a method without a role is not for administrators")
	}
}

func TestUnknownMembers(t *testing.T) {
	_, err := Roles{Read: Members{Users: []string{"no-such-user"}}, Admin: Members{Groups: []string{"no-such-group", "-1"}}}.policy()
	var unknown []string
	for _, err := range joined(err) {
		field, _ := errors.AsType[*FieldError](err)
		what, _, _ := strings.Cut(field.Error(), " is not known on this machine: ")
		unknown = append(unknown, field.Field+": "+what)
	}
	want := []string{`control.roles.read.users: user "no-such-user"`, `control.roles.admin.groups: group "no-such-group"`,
		`control.roles.admin.groups: group "-1"`}
	if !slices.Equal(unknown, want) {
		t.Errorf("got %q, want %q", unknown, want)
	}
	if _, err := (Roles{Operate: Members{Groups: []string{""}}}).policy(); err == nil {
		t.Error("an empty name is taken")
	}
	a, b := Roles{Read: Members{Users: []string{"a"}}}, Roles{Operate: Members{Users: []string{"a"}}}
	if a.equal(b) || !a.equal(a) {
		t.Error("equal")
	}
}

func TestSparse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSparse(maxSparse, maxTold)
		told := 0
		for range 3 {
			if first, _, _ := s.first(audited{method: "a"}); first {
				told++
			}
		}
		first, left, full := s.first(audited{method: "b"})
		if told != 1 || !first || left != 2 || full {
			t.Errorf("told %d times; another: %t, %d left out, full %t", told, first, left, full)
		}
		for i := range 2 * maxSparse {
			s.first(audited{method: strings.Repeat("x", i)})
		}
		if u := s.users[""]; len(u.told) != maxSparse || u.left != maxSparse+2 {
			t.Errorf("%d remembered, %d left out", len(u.told), u.left)
		}
		if first, left, _ := s.first(audited{who: "1", method: "a"}); !first || left != 0 {
			t.Errorf("what another user does: %t, %d left out", first, left)
		}
		// A crowd is bounded too, and those who take turns are remembered as far as there is room.
		told = 0
		for i := range 3 * maxTold {
			if first, _, _ := s.first(audited{who: strconv.Itoa(i % (2 * maxUsers)), method: "y"}); first {
				told++
			}
		}
		if told > maxTold || len(s.users) != maxUsers {
			t.Errorf("%d are told of a crowd, want %d at most; %d users are remembered", told, maxTold, len(s.users))
		}
		time.Sleep(sparseQuiet)
		if first, _, _ := s.first(audited{who: "late", method: "y"}); !first {
			t.Error("after a while nothing is told")
		}
	})
}

// TestAuditCannotBeSwitchedOff: made-up names, however many, keep no call of what exists out of the audit.
func TestAuditCannotBeSwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		a := newAuditor(func(e reconciler.Event) { told = append(told, e.Message) }, discard)
		user, other := &caller{peer: sock.Peer{UID: 7}}, &caller{peer: sock.Peer{UID: 77}}
		for i := range 1000 {
			a.called(user, fmt.Sprintf("T/made-up-%d", i), "a.B/C", false, codes.Unavailable)
			a.called(user, "T/disk", fmt.Sprintf("a.B/MadeUp%d", i), true, codes.Unimplemented)
		}
		if len(told) != maxSparse {
			t.Errorf("%d calls of made-up names are told, want %d", len(told), maxSparse)
		}
		told = nil
		for i := range 10_000 { // which may be made up, or have had their effect
			a.called(user, "T/disk", fmt.Sprintf("a.B/Cut%d", i), true, codes.Canceled)
		}
		if len(told) != maxSparse+1 || !strings.Contains(told[maxSparse], "T/disk: a further method: canceled") {
			t.Errorf("%d calls that were cut off are told, want %d and one: %q", len(told), maxSparse, told[len(told)-1])
		}
		told = nil
		a.called(user, "T/other", "a.B/Format", true, codes.Canceled)
		if len(told) != 1 {
			t.Errorf("of another plugin, after them, is told: %q", told)
		}
		for i := range 1000 {
			told = nil
			a.called(user, "T/disk", fmt.Sprintf("a.B/Method%d", i), true, codes.NotFound)
			a.called(other, "T/disk", fmt.Sprintf("a.B/Method%d", i), true, codes.NotFound)
			if len(told) != 2 {
				t.Fatalf("a first call of what exists is left out after %d others: told %q", i, told)
			}
		}
		told = nil
		a.called(&caller{peer: sock.Peer{UID: 1}}, "1T/n", "a.B/C", true, codes.OK) // would be alike if user and name were one text
		a.called(&caller{peer: sock.Peer{UID: 11}}, "T/n", "a.B/C", true, codes.OK)
		if len(told) != 2 {
			t.Errorf("of two users one is told of: %q", told)
		}
		told = nil
		for i := range 4 * maxCalled {
			a.called(user, "T/disk", fmt.Sprintf("a.B/Other%d", i), true, codes.OK)
		}
		if len(told) > maxCalled {
			t.Errorf("%d calls of one user are told within a moment", len(told))
		}
		for i := range 2 * maxUsers {
			a.called(&caller{peer: sock.Peer{UID: uint32(i)}}, "T/disk", "a.B/C", true, codes.OK)
		}
		if len(a.calls.users) > maxUsers {
			t.Errorf("too much is remembered, of %d users", len(a.calls.users))
		}
	})
}

// TestFleetDenialsOfOneHideNoOther: what one node may not do is told however much another one may not.
func TestFleetDenialsOfOneHideNoOther(t *testing.T) {
	var told []string
	d := newDenials(func(e reconciler.Event) { told = append(told, e.Message) }, discard)
	for i := range 2 * maxSparse {
		_ = d.deny(&fleetCall{identities: []string{"node-a"}, plugin: named("T", fmt.Sprint("made-up", i)), method: "a.B/C"})
	}
	_ = d.deny(&fleetCall{identities: []string{"node-b"}, plugin: named("CSIPlugin", "disk"), method: "csi.v1.Node/NodePublishVolume"})
	if len(told) != maxSparse+1 || !strings.Contains(told[maxSparse], "node-b may not call") {
		t.Errorf("%d are told, the last: %q", len(told), told[len(told)-1])
	}
}

// privileged are the methods that need more than the role read.
func privileged() []string {
	var found []string
	for procedure, needed := range procedureRoles {
		if needed > roleRead {
			found = append(found, procedure)
		}
	}
	slices.Sort(found)
	return found
}
