package fleet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/fleet"
)

// TestCheck tries a member that can be used, and beside it one that is not there; then with a user that etcd does not know.
func TestCheck(t *testing.T) {
	etcd := newMember(t, nil)
	etcd.start()
	cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{etcd.client, "http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	members := cluster.Check(t.Context())
	if len(members) != 2 || members[0].Err != nil || members[0].Cluster == 0 || members[1].Err == nil {
		t.Errorf("got %+v, want that the first can be used and the second not", members)
	}

	users(t, etcd.admin(), "node-a", "open sesame", "a")
	file := filepath.Join(t.TempDir(), "password")
	for password, says := range map[string]string{"open sesame": "", "wrong": "check user and password"} {
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{etcd.client}, User: "node-a", PasswordFile: file})
		if err != nil {
			t.Fatal(err)
		}
		err = cluster.Check(t.Context())[0].Err
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("with password %q: %v", password, err)
		}
	}
}
