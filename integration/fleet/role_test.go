package fleet_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
)

// secured is a member of etcd that asks for certificates and users.
type secured struct {
	*member
	ca *authority
}

// startSecured returns a running member whose user root is known by its certificate.
func startSecured(t *testing.T) *secured {
	t.Helper()
	s := &secured{ca: newAuthority(t)}
	s.member = newMember(t, func(c *embed.Config) {
		c.ClientTLSInfo = transport.TLSInfo{
			CertFile: s.ca.file("server.crt"), KeyFile: s.ca.file("server.key"), TrustedCAFile: s.ca.file("ca.crt"), ClientCertAuth: true,
		}
	})
	s.client = strings.Replace(s.client, "http:", "https:", 1)
	s.ca.sign("server", &x509.Certificate{
		IPAddresses: []net.IP{net.ParseIP(urls(s.client)[0].Hostname())},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	s.ca.signNode("root")
	s.start()
	s.shell(t, "etcdctl user add root --no-password\netcdctl user grant-role root root\netcdctl auth enable\n")
	return s
}

// shell runs commands as etcd's user root.
func (s *secured) shell(t *testing.T, commands string) {
	t.Helper()
	if err := buildOnce(); err != nil { // also of etcdctl's directory
		t.Fatal(err)
	}
	if err := buildEtcd(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-e")
	shell.Stdin = strings.NewReader(commands)
	shell.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "ETCDCTL_ENDPOINTS="+s.client, "ETCDCTL_CACERT="+s.ca.file("ca.crt"),
		"ETCDCTL_CERT="+s.ca.file("root.crt"), "ETCDCTL_KEY="+s.ca.file("root.key"))
	if output, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\nof\n%s", err, output, commands)
	}
}

// daemon returns a daemon whose certificate is also the one of its user.
func (s *secured) daemon(t *testing.T, name, more string) *daemon {
	t.Helper()
	d := newCaller(t, program(t, "patchbay"), name, s.client, s.ca, allowNodes, more)
	file := filepath.Join(d.dir, "patchbay.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	end := "endpoints: [" + s.client + "]\n"
	secure := strings.Replace(string(text), end, fmt.Sprintf("%s    ca: %s\n    cert: %s\n    key: %s\n", end, s.ca.file("ca.crt"),
		s.ca.file(name+".crt"), s.ca.file(name+".key")), 1)
	if err := os.WriteFile(file, []byte(secure), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

// role runs the commands that "fleet role" prints.
func (s *secured) role(d *daemon, flags ...string) {
	d.t.Helper()
	s.shell(d.t, d.run(append([]string{"fleet", "role", d.name, "--config", filepath.Join(d.dir, "patchbay.yaml")}, flags...)...))
}

// TestRights: with the rights of "fleet role" nodes are published, are called, compete for locks and drain themselves; they cannot write what is
// another node's, and only one with the rights of an operator drains others.
func TestRights(t *testing.T) {
	t.Parallel()
	etcd := startSecured(t)
	nodes := map[string]*daemon{}
	for _, name := range []string{"a", "b", "c"} {
		d := etcd.daemon(t, name, "  exclusive: [Echo]\n")
		if name == "c" {
			etcd.role(d, "--operator")
		} else {
			etcd.role(d)
		}
		d.start()
		nodes[name] = d
	}
	a, b, c := nodes["a"], nodes["b"], nodes["c"]
	a.echo(nil)
	b.echo(nil)
	b.inFleet(2)
	var holder string
	eventually(t, "one holds the lock and is called from each node", func() bool {
		for _, d := range nodes {
			node, err := answers(t, d.caller(""))
			if err != nil || node == "" {
				return false
			}
			holder = node
		}
		return true
	})
	tls := transport.TLSInfo{CertFile: etcd.ca.file("b.crt"), KeyFile: etcd.ca.file("b.key"), TrustedCAFile: etcd.ca.file("ca.crt")}
	config, err := tls.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	evil, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.client}, TLS: config, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer evil.Close()
	space := keys.Space{}
	for _, key := range []string{
		space.NodeRange("a") + "record", space.NodeRange("a") + "presence", space.NodeRange("a") + "cordon", space.NodeRange("bb") + "record",
		space.LockRange("a") + "Echo/one/1", space.LockRange("c") + "Echo/one/1", space.LockSpace() + "Echo/one/1", space.TokenBaseKey("a"),
		space.TokenBaseKey("bb"), space.SettingsKey("a"), space.SettingsKey("bb"), "other",
	} {
		_, put := evil.Put(soon(t), key, "x")
		_, deleted := evil.Delete(soon(t), key)
		for _, err := range []error{put, deleted} {
			if !errors.Is(err, rpctypes.ErrPermissionDenied) {
				t.Errorf("b writes %s: %v", key, err)
			}
		}
	}
	if _, err := b.try("fleet", "drain", "a"); err == nil || !strings.Contains(err.Error(), "etcd refuses its user") {
		t.Errorf("a node drains another one: %v", err)
	}
	other := map[string]string{"a": "b", "b": "a"}[holder]
	c.run("fleet", "drain", holder, "--wait")
	eventually(t, "the other one holds the lock", func() bool { node, err := answers(t, c.caller("")); return err == nil && node == other })
	c.run("fleet", "uncordon", holder)
	nodes[other].run("fleet", "drain", other, "--wait") // itself
	eventually(t, "the first one holds the lock", func() bool { node, err := answers(t, c.caller("")); return err == nil && node == holder })
}
