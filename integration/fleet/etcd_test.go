package fleet_test

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/internal/fleet"
)

// member is one member of etcd, in this process. It keeps its addresses over restarts.
type member struct {
	t              testing.TB
	name, token    string
	dir            string
	client, peer   string // URLs
	cluster        string
	configure      func(*embed.Config)
	running        *embed.Etcd
	process        *exec.Cmd // instead, if it is a process
	existing       bool
	snapshotNumber int
}

// freeURL returns a URL on which nobody listens.
func freeURL(t testing.TB, scheme string) string {
	t.Helper()
	address, err := rig.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return scheme + "://" + address
}

// newMember returns a member that does not run yet.
func newMember(t testing.TB, configure func(*embed.Config)) *member {
	m := &member{
		t: t, name: "one", token: "first", dir: filepath.Join(t.TempDir(), "etcd"), client: freeURL(t, "http"), peer: freeURL(t, "http"),
		configure: configure,
	}
	m.cluster = m.name + "=" + m.peer
	t.Cleanup(m.stop)
	return m
}

// startOne returns a running member that is a cluster.
func startOne(t testing.TB) *member {
	m := newMember(t, nil)
	m.start()
	return m
}

// launch starts the member without waiting for it.
func (m *member) launch() {
	m.t.Helper()
	config := m.spec().config()
	if m.existing {
		config.ClusterState = embed.ClusterStateFlagExisting
	}
	if m.configure != nil {
		m.configure(config)
	}
	var err error
	for range 50 { // the port may not be free again yet
		if m.running, err = embed.StartEtcd(config); err == nil || !strings.Contains(err.Error(), "address already in use") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		m.t.Fatalf("etcd, for clients at %s and peers at %s: %v", m.client, m.peer, err)
	}
}

func (m *member) spec() memberSpec {
	return memberSpec{m.name, m.dir, m.token, m.client, m.peer, m.cluster}
}

func (m *member) start() {
	m.t.Helper()
	m.launch()
	m.await()
}

func (m *member) await() {
	m.t.Helper()
	select {
	case <-m.running.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		m.t.Fatal("etcd does not start")
	}
}

func (m *member) stop() {
	if m.running == nil {
		return
	}
	// Closed rather than stopped in order: that would wait for the watches of others.
	m.running.Close()
	<-m.running.Server.StopNotify()
	m.running = nil
}

func (m *member) restart() { m.stop(); m.start() }

func urls(u string) []url.URL {
	parsed, err := url.Parse(u)
	if err != nil {
		panic(err)
	}
	return []url.URL{*parsed}
}

// admin returns a client for what an operator does.
func (m *member) admin() *clientv3.Client { return adminOf(m.t, m.client) }

func adminOf(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// save makes a backup and returns its file.
func (m *member) save() string {
	m.t.Helper()
	m.snapshotNumber++
	file := filepath.Join(m.t.TempDir(), fmt.Sprintf("backup-%d.db", m.snapshotNumber))
	config := clientv3.Config{Endpoints: []string{m.client}, Logger: zap.NewNop()}
	if _, err := snapshot.NewV3(zap.NewNop()).Save(m.t.Context(), config, file); err != nil {
		m.t.Fatal(err)
	}
	return file
}

// restore stops the member and starts it from a backup, as the same cluster. Bump is added to the revision.
func (m *member) restore(file string, bump uint64) {
	m.t.Helper()
	m.stop()
	m.dir = filepath.Join(m.t.TempDir(), "restored")
	m.startFrom(file, bump)
}

// restored returns another member that runs from a backup.
func restored(t testing.TB, file string, bump uint64) *member {
	t.Helper()
	m := newMember(t, nil)
	m.startFrom(file, bump)
	return m
}

func (m *member) startFrom(file string, bump uint64) {
	m.t.Helper()
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: m.name, OutputDataDir: m.dir, PeerURLs: []string{m.peer}, InitialCluster: m.cluster,
		InitialClusterToken: m.token, RevisionBump: bump, MarkCompacted: bump > 0,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.start()
}

// connect returns a cluster as the daemon has it.
func connect(t testing.TB, endpoints ...string) *fleet.Cluster {
	t.Helper()
	cluster, err := fleet.Connect(fleet.Etcd{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}

// do bounds one thing that an operator does.
func do(t testing.TB, what string, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := f(ctx); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
