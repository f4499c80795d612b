package trustjudge

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

const (
	alice, bob, staff, eve = 60001, 60002, 60003, 60004
)

func judge(t *testing.T, p trust.Policy) *Judge {
	t.Helper()
	j, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func number(n int) []string { return []string{strconv.Itoa(n)} }

func wantReason(t *testing.T, what string, err error, want trust.Reason) {
	t.Helper()
	var got trust.Reason
	if refusal, ok := errors.AsType[*trust.Refusal](err); ok {
		got = refusal.Reason
		if refusal.Problem == "" || refusal.Remedy == "" || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the refusal %q does not say what is wrong and what to do in one line", what, err)
		}
	}
	if got != want || (err == nil) != (want == "") {
		t.Errorf("%s: got %v, want the reason %q", what, err, want)
	}
}

func TestDirectory(t *testing.T) {
	own, ownGroup := uint32(os.Geteuid()), uint32(os.Getegid())
	open := trust.Policy{Owners: trust.Accounts{Users: number(alice), Groups: number(staff)}}
	sticky := trust.Policy{Sticky: true}
	for name, c := range map[string]struct {
		policy   trust.Policy
		mode     fs.FileMode
		uid, gid uint32
		want     trust.Reason
	}{
		"usual":                     {trust.Policy{}, 0o750, 0, 0, ""},
		"own":                       {trust.Policy{}, 0o755, own, eve, ""},
		"own group":                 {trust.Policy{}, 0o775, own, ownGroup, ""},
		"root's group":              {trust.Policy{}, 0o770, own, 0, ""},
		"another group":             {trust.Policy{}, 0o770, own, staff, trust.Writable},
		"configured group":          {open, 0o770, own, staff, ""},
		"everybody":                 {open, 0o757, own, ownGroup, trust.Writable},
		"everybody, with sticky":    {trust.Policy{}, 0o777 | fs.ModeSticky, own, ownGroup, trust.Writable},
		"sticky as configured":      {sticky, 0o777 | fs.ModeSticky, own, ownGroup, ""},
		"group, sticky":             {sticky, 0o770 | fs.ModeSticky, own, staff, ""},
		"configured and not sticky": {sticky, 0o777, own, ownGroup, trust.Writable},
		"a stranger's":              {open, 0o700, eve, eve, trust.DirectoryOwner},
		"a stranger's, our group":   {open, 0o700, eve, staff, trust.DirectoryOwner},
		"a stranger's, sticky":      {sticky, 0o777 | fs.ModeSticky, eve, eve, trust.DirectoryOwner},
		"a configured user's":       {open, 0o755, alice, alice, ""},
	} {
		wantReason(t, name, judge(t, c.policy).Directory("/d", c.mode, c.uid, c.gid), c.want)
	}
}

func TestSocketAndListener(t *testing.T) {
	open := trust.Policy{Owners: trust.Accounts{Users: number(alice)}, Types: map[string]trust.Type{"T": {Users: number(bob), Groups: number(staff)}}}
	for name, c := range map[string]struct {
		policy   trust.Policy
		uid, gid uint32
		trusted  bool
	}{
		"root":                   {trust.Policy{}, 0, 0, true},
		"own":                    {trust.Policy{}, uint32(os.Geteuid()), eve, true},
		"stranger":               {trust.Policy{}, eve, eve, false},
		"stranger, root's group": {trust.Policy{}, eve, 0, false},
		"owner":                  {open, alice, alice, true},
		"user of a type":         {open, bob, bob, true},
		"group of a type":        {open, eve, staff, true},
		"other stranger":         {open, eve, eve, false},
	} {
		j := judge(t, c.policy)
		want := map[bool][2]trust.Reason{false: {trust.SocketOwner, trust.Listener}}[c.trusted]
		wantReason(t, name, j.Socket("/s", c.uid, c.gid), want[0])
		wantReason(t, name, j.Listener("/s", c.uid, c.gid), want[1])
	}
	if !judge(t, trust.Policy{}).Alone() || judge(t, open).Alone() || judge(t, trust.Policy{Sticky: true}).Alone() {
		t.Error("Alone is wrong")
	}
}

func TestTypes(t *testing.T) {
	j := judge(t, trust.Policy{
		Owners: trust.Accounts{Users: number(alice)},
		Types:  map[string]trust.Type{"Disk": {Users: number(bob), Groups: number(staff)}, "Shared": {Users: []string{strconv.Itoa(alice), strconv.Itoa(bob)}, Supersede: true}},
	})
	as := func(uid uint32) plugin.Account { return plugin.Account{UID: uid, GID: uid, Known: true} }
	launched := as(eve)
	launched.Launched = true
	for _, c := range []struct {
		what  string
		ptype string
		by    plugin.Account
		want  trust.Reason
	}{
		{"root", "Disk", as(0), ""},
		{"the host's user", "Disk", as(uint32(os.Geteuid())), ""},
		{"unknown", "Disk", plugin.Account{}, ""},
		{"listed", "Disk", as(bob), ""},
		{"in a listed group", "Disk", plugin.Account{UID: eve, GID: staff, Known: true}, ""},
		{"owner, not listed", "Disk", as(alice), trust.PluginType},
		{"launched, not listed", "Disk", launched, trust.PluginType},
		{"owner, free type", "Other", as(alice), ""},
		{"listed elsewhere, free type", "Other", as(bob), trust.PluginType},
		{"launched, free type", "Other", launched, ""},
	} {
		wantReason(t, c.what, j.Type(c.ptype, c.by), c.want)
	}
	for _, c := range []struct {
		what      string
		ptype     string
		by, other plugin.Account
		want      trust.Reason
	}{
		{"same user", "Other", as(alice), as(alice), ""},
		{"another user", "Other", as(alice), as(bob), trust.Name},
		{"root's name", "Other", as(alice), as(0), trust.Name},
		{"root", "Other", as(0), as(alice), ""},
		{"unknown other", "Other", as(alice), plugin.Account{}, ""},
		{"supersede", "Shared", as(alice), as(bob), ""},
	} {
		wantReason(t, c.what, j.Supersede(c.ptype, "n", c.by, c.other), c.want)
	}
}

// TestInherit tests the reserved names of plugins that are gone.
func TestInherit(t *testing.T) {
	j := judge(t, trust.Policy{Types: map[string]trust.Type{
		"T": {Users: []string{strconv.Itoa(alice), strconv.Itoa(bob)}}, "Shared": {Users: number(alice), Supersede: true}, "Bobs": {Users: number(bob)},
	}})
	as := func(uid uint32) plugin.Account { return plugin.Account{UID: uid, GID: uid, Known: true} }
	launched := func(name string) plugin.Account {
		return plugin.Account{UID: eve, GID: eve, Known: true, Launched: true, Name: name}
	}
	for _, c := range []struct {
		what  string
		ptype string
		by    plugin.Account
		want  trust.Reason
	}{
		{"its user", "T", as(alice), ""},
		{"another user", "T", as(bob), trust.Name},
		{"root", "T", as(0), ""},
		{"launched under another name", "T", launched("m"), trust.Name},
		{"launched under that name", "T", launched("n"), ""},
		{"a shared type", "Shared", as(bob), ""},
		{"a type that its user may not register any more", "Bobs", as(bob), ""},
		{"any type, of a launched one", "Other", launched("m"), trust.Name},
	} {
		wantReason(t, c.what, j.Inherit(c.ptype, "n", c.by, as(alice), time.Unix(0, 0)), c.want)
	}
	if !j.ReservesNames("T", as(alice)) || !j.ReservesNames("Other", as(0)) || j.ReservesNames("T", plugin.Account{}) || j.ReservesNames("Shared", as(alice)) {
		t.Error("ReservesNames is wrong")
	}
}

func TestUnknownNames(t *testing.T) {
	_, err := New(trust.Policy{Owners: trust.Accounts{Users: []string{"nosuchuser-x"}},
		Types: map[string]trust.Type{"T": {Groups: []string{"4294967295"}, Users: []string{""}}}})
	for _, want := range []string{`owners.users: "nosuchuser-x" is not known on this machine`, `types.T.groups: "4294967295"`, `types.T.users: ""`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := New(trust.Policy{Owners: trust.Accounts{Users: []string{"root"}, Groups: []string{"0"}}}); err != nil {
		t.Error(err)
	}
}

// TestRefuses checks that New refuses keys of Types that are not plugin types, and users and groups that cannot exist, with the field.
func TestRefuses(t *testing.T) {
	types := func(key string) trust.Policy { return trust.Policy{Types: map[string]trust.Type{key: {}}} }
	for name, c := range map[string]struct {
		policy trust.Policy
		field  string
	}{
		"an empty type":          {types(""), "types."},
		"a type with a slash":    {types("a/b"), "types.a/b"},
		"a control character":    {types("a\x1b"), "types.a\x1b"},
		"a type that is no text": {types("a\xff"), "types.a\xff"},
		"an empty user":          {trust.Policy{Owners: trust.Accounts{Users: []string{""}}}, "owners.users"},
		"nobody's number":        {trust.Policy{Owners: trust.Accounts{Users: []string{"4294967295"}}}, "owners.users"},
		"a negative number":      {trust.Policy{Owners: trust.Accounts{Groups: []string{"-1"}}}, "owners.groups"},
		"a NUL in a name":        {trust.Policy{Types: map[string]trust.Type{"T": {Endpoints: []string{"a\x00"}}}}, "types.T.endpoints"},
	} {
		_, err := New(c.policy)
		if wrong, ok := errors.AsType[*FieldError](err); !ok || wrong.Field != c.field {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if _, err := New(trust.Policy{Types: map[string]trust.Type{"my trust.Type.v1": {}}}); err != nil {
		t.Error(err)
	}
}
