package fleet_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/patchbay-dev/patchbay/fleet"
	"github.com/patchbay-dev/patchbay/fleet/locks"
)

// documented are the commands of the guide that make the role and the user of node-7, without etcdctl.
func documented(t *testing.T) (commands [][]string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/how-to/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```sh needs=etcd\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for line := range strings.Lines(block[1]) {
			if words := strings.Fields(line); words[0] == "etcdctl" && (words[1] == "role" || words[1] == "user") {
				commands = append(commands, words[1:])
			}
		}
	}
	return commands
}

// allow carries the documented commands out for a node, whose user gets a password.
func allow(t *testing.T, admin *clientv3.Client, node, password string) {
	t.Helper()
	granted := 0
	for _, words := range documented(t) {
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "node-7", node)
		}
		do(t, strings.Join(words, " "), func(ctx context.Context) (err error) {
			switch words[0] + " " + words[1] {
			case "role add":
				_, err = admin.RoleAdd(ctx, words[2])
			case "role grant-permission":
				granted++
				end, rest := "", words[2:]
				if rest[0] == "--prefix=true" {
					rest = rest[1:]
					end = clientv3.GetPrefixRangeEnd(rest[2])
				}
				kind := clientv3.PermissionType(clientv3.PermRead)
				if rest[1] == "readwrite" {
					kind = clientv3.PermissionType(clientv3.PermReadWrite)
				}
				_, err = admin.RoleGrantPermission(ctx, rest[0], rest[2], end, kind)
			case "user add":
				_, err = admin.UserAdd(ctx, words[2], password)
			case "user grant-role":
				_, err = admin.UserGrantRole(ctx, words[2], words[3])
			default:
				err = errors.New("the test does not know it")
			}
			return err
		})
	}
	if granted != 8 {
		t.Fatalf("the guide grants %d permissions", granted)
	}
}

// TestIndexHostile: a key in the index is a hint. A node is called only if it says in its own range that it has the plugin, and one whose keys
// were removed from the index is still called by its name.
func TestIndexHostile(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	cluster, evil := connect(t, etcd.client), etcd.admin()
	startNode(t, cluster, "a", "one", "two").published(t)
	startNode(t, cluster, "b", "one").published(t)
	index := indexRange()
	for _, kv := range indexed(t, evil, 3).Kvs {
		key := string(kv.Key)
		switch rest := strings.TrimPrefix(key, index); {
		case strings.HasPrefix(rest, "one/") && strings.HasSuffix(rest, "/b"): // as if b had it too
			key = index + strings.Replace(rest, "one/", "two/", 1)
			do(t, "write", func(ctx context.Context) error { _, err := evil.Put(ctx, key, "127.0.0.1:1"); return err })
		case strings.HasPrefix(rest, "one/"): // as if a had it no more
			do(t, "remove", func(ctx context.Context) error { _, err := evil.Delete(ctx, key); return err })
		}
	}
	do(t, "write", func(ctx context.Context) error { _, err := evil.Put(ctx, index+"two/00000000/nobody", ""); return err })
	c := newLookup(t, etcd.client)
	c.finds("two", fleet.Policy{}, "a")
	c.finds("one", fleet.Policy{Node: "a"}, "a")
	c.finds("one", fleet.Policy{}, "b")
}

// TestRights: with the roles of the guide, nodes are published and compete for locks, and none of them can write what is another one's.
func TestRights(t *testing.T) {
	t.Parallel()
	etcd := newMember(t, nil)
	etcd.start()
	admin := etcd.admin()
	users(t, admin, "somebody", "secret", "somebody") // from here on etcd asks for users
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.client}, Username: "root", Password: "secret", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	lock := fleet.Lock{Type: "Echo", Name: "one"}
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("sesame"), 0o600); err != nil {
		t.Fatal(err)
	}
	electors := map[string]*locks.Elector{}
	for _, node := range []string{"a", "b"} {
		allow(t, root, node, "sesame")
		cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{etcd.client}, User: node, PasswordFile: password})
		if err != nil {
			t.Fatal(err)
		}
		startNode(t, cluster, node, "one").published(t)
		electors[node] = compete(t, cluster, node, lock)
		eventually(t, "a holds the lock", func() bool { return electors["a"].Held(lock) != nil })
	}
	evil, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.client}, Username: "b", Password: "sesame", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer evil.Close()
	space := fleet.Space{}
	var keys []string
	eventually(t, "a and b compete", func() bool { // on a busy machine a lease may be lost, and the node competes again
		keys = nil
		do(t, "list the keys", func(ctx context.Context) error {
			found, err := evil.Get(ctx, space.LockSpace(), clientv3.WithPrefix())
			for _, kv := range found.Kvs {
				keys = append(keys, string(kv.Key))
			}
			return err
		})
		return slices.ContainsFunc(keys, func(key string) bool { return strings.HasPrefix(key, space.LockRange("a")) })
	})
	for _, key := range slices.Concat(keys, []string{space.LockRange("a") + "Echo/one/1", space.TokenBaseKey("a"), space.NodeRange("a") + "record",
		space.LockSpace() + "Echo/one/1", space.LockSpace() + "@node/c/Echo/one/1", space.TokenBaseKey("bb"), space.SettingsKey("a")}) {
		if strings.HasPrefix(key, space.LockRange("b")) {
			continue
		}
		_, err := evil.Put(t.Context(), key, "x")
		_, err2 := evil.Delete(t.Context(), key)
		for _, err := range []error{err, err2} {
			if !errors.Is(err, rpctypes.ErrPermissionDenied) {
				t.Errorf("b writes %s: %v", key, err)
			}
		}
	}
	electors["a"].Stand(nil)
	eventually(t, "b holds the lock", func() bool { return electors["b"].Held(lock) != nil })
}
