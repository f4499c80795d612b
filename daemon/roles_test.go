package daemon

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
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
	var s sparse
	told := 0
	for range 3 {
		if first, _ := s.first("a"); first {
			told++
		}
	}
	first, left := s.first("b")
	if told != 1 || !first || left != 2 {
		t.Errorf("told %d times; another: %t, %d left out", told, first, left)
	}
	for i := range 2 * maxSparse {
		s.first(strings.Repeat("x", i))
	}
	if len(s.told) != maxSparse || s.left != maxSparse+2 {
		t.Errorf("%d remembered, %d left out", len(s.told), s.left)
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
