package access

import (
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/usertest"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestRoleOf(t *testing.T) {
	const group, daemonUID = 4242, 777
	listener, path := usertest.Listen(t, group)
	many := make([]uint32, 100)
	for i := range many {
		many[i] = uint32(10_000 + i)
	}
	ids := func(ids ...string) []string { return ids }
	named := config.Roles{
		Read:    config.Members{Users: ids("2001", "nobody"), Groups: ids("3001")},
		Operate: config.Members{Groups: ids("3002", "10050")},
		Admin:   config.Members{Users: ids("2003"), Groups: ids("3003")},
	}
	for name, test := range map[string]struct {
		roles    config.Roles
		uid, gid uint32
		groups   []uint32
		want     Role
	}{
		"root":                         {uid: 0, gid: 0, want: Admin},
		"the daemon's user":            {uid: daemonUID, gid: 9, want: Admin},
		"primary group":                {uid: 65534, gid: group, want: Operate},
		"supplementary group":          {uid: 65534, gid: 65534, groups: []uint32{7, group}, want: Operate},
		"supplementary group of many":  {uid: 65534, gid: 65534, groups: append(many[:len(many):len(many)], group), want: Operate},
		"stranger":                     {uid: 65534, gid: 65534},
		"stranger with other groups":   {uid: 65534, gid: 65534, groups: many},
		"stranger in the root group":   {uid: 65534, gid: 0},
		"stranger with our uid as gid": {uid: 65534, gid: daemonUID},

		"root, whoever is named":         {roles: named, uid: 0, gid: 0, want: Admin},
		"our user, whoever is named":     {roles: named, uid: daemonUID, gid: 9, want: Admin},
		"named user":                     {roles: named, uid: 2001, gid: 9, want: Read},
		"user named by name":             {roles: named, uid: 65534, gid: 9, want: Read},
		"named group":                    {roles: named, uid: 2009, gid: 3002, want: Operate},
		"named supplementary group":      {roles: named, uid: 2009, gid: 9, groups: many, want: Operate},
		"named twice":                    {roles: named, uid: 2001, gid: 3001, groups: []uint32{3003, 3002}, want: Admin},
		"user with the number of group":  {roles: named, uid: 3003, gid: 9},
		"group with the number of user":  {roles: named, uid: 2009, gid: 2003},
		"socket's group, others named":   {roles: named, uid: 2009, gid: group},
		"socket's group, no one by name": {roles: config.Roles{Read: config.Members{Groups: ids("4242")}}, uid: 2009, gid: group, want: Read},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewAuthorizer(path, Policy{byGroup: Operate}, NewAuditor(func(plugin.Event) {}, slog.New(slog.DiscardHandler)))
			g.uid = daemonUID
			p, err := NewPolicy(test.roles)
			if err != nil {
				t.Fatal(err)
			}
			usertest.Dial(t, path, test.uid, test.gid, test.groups...)
			conn, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			c := g.Identify(conn)
			if got := g.roleOf(p, c); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			for needed := Read; needed <= Admin; needed++ {
				err := g.deny(p, c, needed)
				if (err == nil) != (test.want >= needed) || err != nil && !strings.Contains(err.Error(), "control.roles."+needed.String()) {
					t.Errorf("a call that needs %s: %v", needed, err)
				}
			}
		})
	}
	g := NewAuthorizer(path, Policy{byGroup: Operate}, NewAuditor(func(plugin.Event) {}, slog.New(slog.DiscardHandler)))
	if c := g.Identify(&net.TCPConn{}); !g.IsStranger(c) || g.deny(g.Current(), c, Read) == nil {
		t.Error("a connection that is no Unix socket has a role")
	}
	if g.deny(g.Current(), CallerOf(t.Context()), Read) == nil {
		t.Error("whom nobody looked at has a role")
	}
}
