package fleet_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
	"github.com/patchbay-dev/patchbay/plugin"
)

// indexRange is the prefix of the index of plugins.
func indexRange() string { return keys.Space{}.Base() + "index/" }

// users makes etcd ask for users: root, and one that may write the node, its settings and the index, and read all nodes.
func users(t *testing.T, admin *clientv3.Client, user, password, node string) {
	t.Helper()
	nodes := keys.Space{}.Base() + "nodes/"
	do(t, "users", func(ctx context.Context) error {
		_, err := admin.RoleAdd(ctx, "root")
		step := func(f func() error) {
			if err == nil {
				err = f()
			}
		}
		step(func() error { _, err := admin.UserAdd(ctx, "root", "secret"); return err })
		step(func() error { _, err := admin.UserGrantRole(ctx, "root", "root"); return err })
		step(func() error { _, err := admin.RoleAdd(ctx, "node"); return err })
		step(func() error {
			if password == "" {
				_, err := admin.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
				return err
			}
			_, err := admin.UserAdd(ctx, user, password)
			return err
		})
		step(func() error { _, err := admin.UserGrantRole(ctx, user, "node"); return err })
		step(func() error {
			own := keys.Space{}.NodeRange(node)
			_, err := admin.RoleGrantPermission(ctx, "node", own, clientv3.GetPrefixRangeEnd(own), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		})
		step(func() error {
			_, err := admin.RoleGrantPermission(ctx, "node", nodes, clientv3.GetPrefixRangeEnd(nodes), clientv3.PermissionType(clientv3.PermRead))
			return err
		})
		step(func() error {
			_, err := admin.RoleGrantPermission(ctx, "node", keys.Space{}.SettingsKey(node), "", clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		})
		step(func() error {
			index := indexRange()
			_, err := admin.RoleGrantPermission(ctx, "node", index, clientv3.GetPrefixRangeEnd(index), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		})
		step(func() error { _, err := admin.AuthEnable(ctx); return err })
		return err
	})
}

// TestUser: a node with a user and a password may write its own keys and no others, and bears that etcd forgets its token, of whatever kind that
// is.
func TestUser(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("a key for tests"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, kind := range map[string]string{"Simple": "simple", "JWT": "jwt,priv-key=" + key + ",sign-method=HS256,ttl=3s"} {
		t.Run(name, func(t *testing.T) { testUser(t, kind) })
	}
}

func testUser(t *testing.T, tokens string) {
	etcd := newMember(t, func(c *embed.Config) { c.AuthTokenTTL, c.AuthToken = 3, tokens })
	etcd.start()
	users(t, etcd.admin(), "node-a", "open sesame", "a")
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("wrong")
	cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{etcd.client}, User: "node-a", PasswordFile: file})
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t, cluster, "a", "one")
	eventually(t, "a condition that says so", func() bool { return strings.Contains(n.Condition().Message, "etcd does not know its user") })
	write("open sesame")
	n.published(t)
	r := openReader(t, cluster)
	f := follow(t, r)
	shows(t, r, "a/one=registered")
	var log logBuffer
	lookup := openLookup(t, cluster, slog.New(slog.NewTextHandler(&log, nil)))
	caller := &caller{Lookup: lookup, t: t}
	caller.finds("one", nodecall.Policy{Node: "a"}, "a")
	time.Sleep(6 * time.Second)                            // the token is forgotten
	caller.finds("one", nodecall.Policy{Node: "none"}, "") // which is another watch over the same stream
	caller.finds("one", nodecall.Policy{}, "a")
	if log.String() != "" {
		t.Errorf("a lookup says of a token that was forgotten: %s", log.String())
	}
	n.set("two")
	shows(t, r, "a/two=registered")
	if got := n.Stats(); got.Writes > 3 {
		t.Errorf("it was published anew for a token: %+v", got)
	}
	f.agrees(r)
	other := startNode(t, cluster, "b", "one")
	eventually(t, "a condition that says so", func() bool { return strings.Contains(other.Condition().Message, "etcd refuses its user") })
	nobody := startNode(t, connect(t, etcd.client), "c", "one")
	eventually(t, "a condition that says so", func() bool { return strings.Contains(nobody.Condition().Message, "user") })
	shows(t, r, "a/two=registered")
}

// authority signs certificates.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, dir: t.TempDir(), next: 1}
	a.key, a.cert = a.sign("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// sign writes NAME.crt and NAME.key.
func (a *authority) sign(name string, template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.next++
	template.SerialNumber, template.Subject = big.NewInt(a.next), pkix.Name{CommonName: name}
	template.NotBefore = time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(a.file(file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return key, cert
}

// TestCertificates: over TLS, a client certificate is the user; a certificate that was replaced in its file is used from the next
// connection on.
func TestCertificates(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	asClient := func() *x509.Certificate {
		return &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	}
	ca.sign("node-a", asClient())
	ca.sign("root", asClient())
	etcd := newMember(t, func(c *embed.Config) {
		c.ClientTLSInfo = transport.TLSInfo{
			CertFile: ca.file("server.crt"), KeyFile: ca.file("server.key"), TrustedCAFile: ca.file("ca.crt"), ClientCertAuth: true,
		}
	})
	etcd.client = strings.Replace(etcd.client, "http:", "https:", 1)
	ca.sign("server", &x509.Certificate{
		IPAddresses: []net.IP{net.ParseIP(urls(etcd.client)[0].Hostname())}, DNSNames: []string{"etcd.example.com"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	etcd.start()
	info := transport.TLSInfo{CertFile: ca.file("root.crt"), KeyFile: ca.file("root.key"), TrustedCAFile: ca.file("ca.crt")}
	tlsConfig, err := info.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.client}, TLS: tlsConfig})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	users(t, admin, "node-a", "", "a")

	bare, err := fleet.Connect(fleet.Etcd{Endpoints: []string{etcd.client}, CA: ca.file("ca.crt")})
	if err != nil {
		t.Fatal(err)
	}
	stranger := startNode(t, bare, "b", "one")
	eventually(t, "a condition that says so", func() bool {
		return strings.Contains(stranger.Condition().Message, "certificate required")
	})

	// The file has the certificate of another at first.
	copyPair := func(from string) {
		for _, suffix := range []string{".crt", ".key"} {
			text, err := os.ReadFile(ca.file(from + suffix))
			if err == nil {
				err = os.WriteFile(ca.file("client"+suffix), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	ca.sign("somebody", asClient())
	copyPair("somebody")
	cluster, err := fleet.Connect(fleet.Etcd{
		Endpoints: []string{etcd.client}, CA: ca.file("ca.crt"), Cert: ca.file("client.crt"), Key: ca.file("client.key"),
		ServerName: "etcd.example.com",
	})
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t, cluster, "a", "one")
	eventually(t, "a condition that says so", func() bool { return strings.Contains(n.Condition().Message, "user") })
	copyPair("node-a")
	n.published(t)
	r := openReader(t, cluster)
	shows(t, r, "a/one=registered")
	rootPair := fleet.Etcd{
		Endpoints: []string{etcd.client}, CA: ca.file("ca.crt"), Cert: ca.file("root.crt"), Key: ca.file("root.key"), ServerName: "etcd.example.com",
	}
	whole, err := fleet.Connect(rootPair)
	if err != nil {
		t.Fatal(err)
	}
	lock := plugin.Name{Type: "Echo", Name: "one"}
	elector := compete(t, whole, "a", lock)
	eventually(t, "a holds a lock", func() bool { return elector.Held(lock) != nil })
	etcd.restart()
	n.set("two")
	shows(t, r, "a/two=registered")
	eventually(t, "a holds the lock again", func() bool { return elector.Held(lock) != nil })
}
