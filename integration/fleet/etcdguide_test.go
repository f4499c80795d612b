package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
)

var buildEtcd = sync.OnceValue(func() error {
	if err := buildOnce(); err != nil { // which makes the directory
		return err
	}
	return errors.Join(
		programs.Put(context.Background(), "..", filepath.Join(bin, "etcd"), false, "go.etcd.io/etcd/server/v3"),
		programs.Put(context.Background(), "..", filepath.Join(bin, "etcdctl"), false, "go.etcd.io/etcd/etcdctl/v3"))
})

// etcdGuide runs the blocks of the guide for etcd in one directory, with members at addresses of this machine.
type etcdGuide struct {
	t       *testing.T
	dir     string
	env     []string
	replace *strings.Replacer // the addresses
}

func newEtcdGuide(t *testing.T) *etcdGuide {
	t.Helper()
	patchbay := program(t, "patchbay")
	if err := buildEtcd(); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("there is no openssl here")
	}
	g := &etcdGuide{t: t, dir: t.TempDir()}
	g.replace = strings.NewReplacer("10.0.0.", fmt.Sprintf("127.%d.%d.", 1+rand.IntN(250), rand.IntN(256)), "/etc/patchbay/etcd", g.dir)
	g.env = append(os.Environ(), "PATH="+filepath.Dir(patchbay)+":"+bin+":"+os.Getenv("PATH"),
		// A member refuses another one that connects from an address which is not in its certificate, and on this machine all of them connect
		// from 127.0.0.1.
		"ETCD_PEER_SKIP_CLIENT_SAN_VERIFICATION=true")
	return g
}

// command returns a command that runs a script.
func (g *etcdGuide) command(script string) *exec.Cmd {
	cmd := exec.Command("bash", "-e", "-c", g.replace.Replace(script))
	cmd.Dir, cmd.Env = g.dir, g.env
	return cmd
}

func (g *etcdGuide) run(script string) {
	g.t.Helper()
	if printed, err := g.command(script).CombinedOutput(); err != nil {
		g.t.Fatalf("%v\n%s\n%s", err, script, printed)
	}
}

// start runs a script until the test ends, and returns a function that kills it before.
func (g *etcdGuide) start(script string) (kill func()) {
	g.t.Helper()
	cmd := g.command(script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	g.t.Cleanup(kill)
	return kill
}

// codeBlocks returns the blocks of code below a heading of a page, or of all of it.
func codeBlocks(t *testing.T, page, heading string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/how-to/" + page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut("\n"+string(text), "\n"+heading)
	if !found {
		t.Fatalf("%s has no %q", page, heading)
	}
	if heading != "" {
		section, _, _ = strings.Cut(section, "\n## ")
	}
	for _, block := range regexp.MustCompile("(?s)```[a-z]+(?: [a-z=]+)?\n(.*?)```").FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, block[1])
	}
	return blocks
}

// memberBlock returns a block for another member than the one that the page shows.
func memberBlock(block string, number int) string {
	return strings.Replace(block, "member=etcd-1 address=10.0.0.1\n", fmt.Sprintf("member=etcd-%[1]d address=10.0.0.%[1]d\n", number), 1)
}

// TestEtcdGuide sets up etcd with TLS, authentication and rights as the guide says, runs two nodes, and checks what certificates are not
// allowed to do.
func TestEtcdGuide(t *testing.T) {
	t.Parallel()
	g := newEtcdGuide(t)
	blocks := codeBlocks(t, "fleet-etcd.md", "")
	if len(blocks) != 8 {
		t.Fatalf("the guide has %d blocks", len(blocks))
	}
	authorities, ofMember, ofClient, member := blocks[0], blocks[1], blocks[2], blocks[3]
	authentication, configuration, check, forbidden := blocks[4], blocks[5], blocks[6], blocks[7]
	g.run(authorities)
	g.run(ofClient)
	kills := map[int]func(){}
	for i := 1; i <= 3; i++ {
		g.run(memberBlock(ofMember, i))
	}
	for i := 1; i <= 3; i++ {
		kills[i] = g.start(memberBlock(member, i))
	}
	admin, commands, _ := strings.Cut(authentication, "etcdctl")
	eventually(t, "the members are healthy", func() bool { return g.command(admin+"etcdctl endpoint health").Run() == nil })
	g.run(admin + "etcdctl" + commands)

	nodes := map[string]*daemon{}
	for _, name := range []string{"node-7", "node-8"} {
		g.run(strings.Replace(ofClient, "user=root", "user="+name, 1))
		d := newDaemon(t, program(t, "patchbay"), name)
		text := g.replace.Replace(strings.ReplaceAll(configuration, "node-7", name))
		d.configure("fleet:\n  etcd:\n    endpoints: []\n  node: "+name+"\n", "handlers: {Echo: accept}\n"+text+"  exclusive: [Echo]\n")
		rights := strings.ReplaceAll(strings.Join(codeBlocks(t, "fleet.md", "## Rights in etcd\n"), ""), "node-7", name)
		g.run(admin + "export PATCHBAY_CONFIG=" + filepath.Join(d.dir, "patchbay.yaml") + "\n" + rights)
		d.start()
		nodes[name] = d
	}
	d := nodes["node-7"]
	for _, name := range []string{"node-7", "node-8"} {
		nodes[name].echo(nil)
	}
	d.inFleet(2)
	var holder string
	eventually(t, "a node holds the lock", func() bool { holder = d.holder("Echo", "one"); return holder != "" })
	g.env = append(g.env, "PATCHBAY_CONTROL_SOCKET="+filepath.Join(d.dir, "control.sock"))
	g.run(check)
	g.env = append(g.env, "ETCDCTL_COMMAND_TIMEOUT=1m")
	printed, err := g.command(admin + forbidden).CombinedOutput()
	if err == nil || !strings.Contains(string(printed), "permission denied") {
		t.Errorf("a node that writes for another one: %v\n%s", err, printed)
	}
	const client, peer = "https://10.0.0.2:2379", "https://10.0.0.2:2380"
	for _, c := range []struct {
		url, ca, cert, key string
		allowed            bool
	}{
		{client, "clients-ca.crt", "node-7.crt", "node-7.key", true},
		{client, "clients-ca.crt", "", "", false},
		{client, "clients-ca.crt", "etcd-1-peer.crt", "etcd-1.key", false},
		{peer, "members-ca.crt", "etcd-1-peer.crt", "etcd-1.key", true},
		{peer, "members-ca.crt", "node-7.crt", "node-7.key", false},
		{peer, "members-ca.crt", "etcd-1.crt", "etcd-1.key", false},
	} {
		if _, err := g.connect(c.url, c.ca, c.cert, c.key); (err == nil) != c.allowed {
			t.Errorf("%s at %s: %v, want it to be allowed: %t", c.cert, c.url, err, c.allowed)
		}
	}

	// A renewed certificate is used without a restart, and two members are enough.
	before, _ := g.connect(client, "clients-ca.crt", "node-7.crt", "node-7.key")
	g.run(memberBlock(ofMember, 2))
	after, err := g.connect(client, "clients-ca.crt", "node-7.crt", "node-7.key")
	if err != nil || after == before {
		t.Errorf("the member has the certificate %s, before it had %s: %v", after, before, err)
	}
	kills[1]()
	nodes["node-8"].plugin("two")
	d.run("fleet", "wait", "CSIPlugin/two", "--node", "node-8")
	g.start(memberBlock(member, 1))
	eventually(t, "the members are healthy", func() bool { return g.command(admin+"etcdctl endpoint health").Run() == nil })
}

// connect makes a request to a member with a certificate and returns the serial number of the member's.
func (g *etcdGuide) connect(url, ca, cert, key string) (serial string, err error) {
	g.t.Helper()
	info := transport.TLSInfo{TrustedCAFile: filepath.Join(g.dir, ca)}
	if cert != "" {
		info.CertFile, info.KeyFile = filepath.Join(g.dir, cert), filepath.Join(g.dir, key)
	}
	config, err := info.ClientConfig()
	if err != nil {
		g.t.Fatal(err)
	}
	caller := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(soon(g.t), http.MethodGet, g.replace.Replace(url)+"/version", http.NoBody)
	if err != nil {
		g.t.Fatal(err)
	}
	response, err := caller.Do(request)
	if err != nil {
		return "", err
	}
	return response.TLS.PeerCertificates[0].SerialNumber.String(), response.Body.Close()
}
