package trust

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	alice, bob, staff, eve = 60001, 60002, 60003, 60004
)

func judge(t *testing.T, p Policy) *Judge {
	t.Helper()
	j, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func number(n int) []string { return []string{strconv.Itoa(n)} }

func wantReason(t *testing.T, what string, err error, want Reason) {
	t.Helper()
	var got Reason
	if refusal, ok := errors.AsType[*Refusal](err); ok {
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
	open := Policy{Owners: Accounts{Users: number(alice), Groups: number(staff)}}
	sticky := Policy{Sticky: true}
	for name, c := range map[string]struct {
		policy   Policy
		mode     fs.FileMode
		uid, gid uint32
		want     Reason
	}{
		"usual":                     {Policy{}, 0o750, 0, 0, ""},
		"own":                       {Policy{}, 0o755, own, eve, ""},
		"own group":                 {Policy{}, 0o775, own, ownGroup, ""},
		"root's group":              {Policy{}, 0o770, own, 0, ""},
		"another group":             {Policy{}, 0o770, own, staff, Writable},
		"configured group":          {open, 0o770, own, staff, ""},
		"everybody":                 {open, 0o757, own, ownGroup, Writable},
		"everybody, with sticky":    {Policy{}, 0o777 | fs.ModeSticky, own, ownGroup, Writable},
		"sticky as configured":      {sticky, 0o777 | fs.ModeSticky, own, ownGroup, ""},
		"group, sticky":             {sticky, 0o770 | fs.ModeSticky, own, staff, ""},
		"configured and not sticky": {sticky, 0o777, own, ownGroup, Writable},
		"a stranger's":              {open, 0o700, eve, eve, DirectoryOwner},
		"a stranger's, our group":   {open, 0o700, eve, staff, DirectoryOwner},
		"a stranger's, sticky":      {sticky, 0o777 | fs.ModeSticky, eve, eve, DirectoryOwner},
		"a configured user's":       {open, 0o755, alice, alice, ""},
	} {
		wantReason(t, name, judge(t, c.policy).Directory("/d", c.mode, c.uid, c.gid), c.want)
	}
}

func TestSocketAndListener(t *testing.T) {
	open := Policy{Owners: Accounts{Users: number(alice)}, Types: map[string]Type{"T": {Users: number(bob), Groups: number(staff)}}}
	for name, c := range map[string]struct {
		policy   Policy
		uid, gid uint32
		trusted  bool
	}{
		"root":                   {Policy{}, 0, 0, true},
		"own":                    {Policy{}, uint32(os.Geteuid()), eve, true},
		"stranger":               {Policy{}, eve, eve, false},
		"stranger, root's group": {Policy{}, eve, 0, false},
		"owner":                  {open, alice, alice, true},
		"user of a type":         {open, bob, bob, true},
		"group of a type":        {open, eve, staff, true},
		"other stranger":         {open, eve, eve, false},
	} {
		j := judge(t, c.policy)
		want := map[bool][2]Reason{false: {SocketOwner, Listener}}[c.trusted]
		wantReason(t, name, j.Socket("/s", c.uid, c.gid), want[0])
		wantReason(t, name, j.Listener("/s", c.uid, c.gid), want[1])
	}
	if !judge(t, Policy{}).Alone() || judge(t, open).Alone() || judge(t, Policy{Sticky: true}).Alone() {
		t.Error("Alone is wrong")
	}
}

func TestTypes(t *testing.T) {
	j := judge(t, Policy{
		Owners: Accounts{Users: number(alice)},
		Types:  map[string]Type{"Disk": {Users: number(bob), Groups: number(staff)}, "Shared": {Users: []string{strconv.Itoa(alice), strconv.Itoa(bob)}, Supersede: true}},
	})
	as := func(uid uint32) plugin.Account { return plugin.Account{UID: uid, GID: uid, Known: true} }
	launched := as(eve)
	launched.Launched = true
	for _, c := range []struct {
		what  string
		ptype string
		by    plugin.Account
		want  Reason
	}{
		{"root", "Disk", as(0), ""},
		{"the host's user", "Disk", as(uint32(os.Geteuid())), ""},
		{"unknown", "Disk", plugin.Account{}, ""},
		{"listed", "Disk", as(bob), ""},
		{"in a listed group", "Disk", plugin.Account{UID: eve, GID: staff, Known: true}, ""},
		{"owner, not listed", "Disk", as(alice), PluginType},
		{"launched, not listed", "Disk", launched, PluginType},
		{"owner, free type", "Other", as(alice), ""},
		{"listed elsewhere, free type", "Other", as(bob), PluginType},
		{"launched, free type", "Other", launched, ""},
	} {
		wantReason(t, c.what, j.Type(c.ptype, c.by), c.want)
	}
	for _, c := range []struct {
		what      string
		ptype     string
		by, other plugin.Account
		want      Reason
	}{
		{"same user", "Other", as(alice), as(alice), ""},
		{"another user", "Other", as(alice), as(bob), Name},
		{"root's name", "Other", as(alice), as(0), Name},
		{"root", "Other", as(0), as(alice), ""},
		{"unknown other", "Other", as(alice), plugin.Account{}, ""},
		{"supersede", "Shared", as(alice), as(bob), ""},
	} {
		wantReason(t, c.what, j.Supersede(c.ptype, "n", c.by, c.other), c.want)
	}
}

// TestInherit is about names of plugins that are gone.
func TestInherit(t *testing.T) {
	j := judge(t, Policy{Types: map[string]Type{
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
		want  Reason
	}{
		{"its user", "T", as(alice), ""},
		{"another user", "T", as(bob), Name},
		{"root", "T", as(0), ""},
		{"launched under another name", "T", launched("m"), Name},
		{"launched under that name", "T", launched("n"), ""},
		{"a shared type", "Shared", as(bob), ""},
		{"a type that its user may not register any more", "Bobs", as(bob), ""},
		{"any type, of a launched one", "Other", launched("m"), Name},
	} {
		wantReason(t, c.what, j.Inherit(c.ptype, "n", c.by, as(alice), time.Unix(0, 0)), c.want)
	}
	if !j.KeepsNames("T", as(alice)) || !j.KeepsNames("Other", as(0)) || j.KeepsNames("T", plugin.Account{}) || j.KeepsNames("Shared", as(alice)) {
		t.Error("KeepsNames is wrong")
	}
}

func TestUnknownNames(t *testing.T) {
	_, err := New(Policy{Owners: Accounts{Users: []string{"nosuchuser-x"}},
		Types: map[string]Type{"T": {Groups: []string{"4294967295"}, Users: []string{""}}}})
	for _, want := range []string{`owners.users: "nosuchuser-x" is not known on this machine`, `types.T.groups: "4294967295"`, `types.T.users: ""`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := New(Policy{Owners: Accounts{Users: []string{"root"}, Groups: []string{"0"}}}); err != nil {
		t.Error(err)
	}
}

// TestRefuses checks that New refuses keys of Types that are no plugin types, and users and groups that cannot exist, with the field.
func TestRefuses(t *testing.T) {
	types := func(key string) Policy { return Policy{Types: map[string]Type{key: {}}} }
	for name, c := range map[string]struct {
		policy Policy
		field  string
	}{
		"an empty type":          {types(""), "types."},
		"a type with a slash":    {types("a/b"), "types.a/b"},
		"a control character":    {types("a\x1b"), "types.a\x1b"},
		"a type that is no text": {types("a\xff"), "types.a\xff"},
		"an empty user":          {Policy{Owners: Accounts{Users: []string{""}}}, "owners.users"},
		"nobody's number":        {Policy{Owners: Accounts{Users: []string{"4294967295"}}}, "owners.users"},
		"a negative number":      {Policy{Owners: Accounts{Groups: []string{"-1"}}}, "owners.groups"},
		"a NUL in a name":        {Policy{Types: map[string]Type{"T": {Endpoints: []string{"a\x00"}}}}, "types.T.endpoints"},
	} {
		_, err := New(c.policy)
		if wrong, ok := errors.AsType[*FieldError](err); !ok || wrong.Field != c.field {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if _, err := New(Policy{Types: map[string]Type{"my Type.v1": {}}}); err != nil {
		t.Error(err)
	}
}
