package fleet_test

import (
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	grpcstatus "google.golang.org/grpc/status"
)

// renew signs the certificate of a node, which lasts for a time.
func (a *authority) renew(name string, lasts time.Duration) {
	a.t.Helper()
	a.sign(name, &x509.Certificate{
		DNSNames: []string{name}, NotAfter: time.Now().Add(lasts),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

// ownFiles gives a daemon files of its own in place of those of an authority, and returns a function that replaces one by those of others.
func (d *daemon) ownFiles(ca *authority) (replace func(name string, by ...string)) {
	d.t.Helper()
	replace = func(name string, by ...string) {
		d.t.Helper()
		var text []byte
		for _, file := range by {
			more, err := os.ReadFile(file)
			if err != nil {
				d.t.Fatal(err)
			}
			text = append(text, more...)
		}
		beside := filepath.Join(d.dir, name+".new")
		if err := os.WriteFile(beside, text, 0o600); err != nil {
			d.t.Fatal(err)
		}
		if err := os.Rename(beside, filepath.Join(d.dir, name)); err != nil {
			d.t.Fatal(err)
		}
	}
	for key, name := range map[string]string{"ca": "ca.crt", "cert": d.name + ".crt", "key": d.name + ".key"} {
		d.configure(key+": "+ca.file(name)+"\n", key+": "+filepath.Join(d.dir, key)+"\n")
		replace(key, ca.file(name))
	}
	return replace
}

// TestCertificateExpires: a certificate that has expired is refused, is a condition, an event and a log line, and is in use again with the
// first call after it was renewed, on either side.
func TestCertificateExpires(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca := startOne(t), program(t, "patchbay"), newAuthority(t)
	calling := newCaller(t, patchbay, "calling", etcd.client, ca, `[]`, "")
	serving := newCaller(t, patchbay, "serving", etcd.client, ca, allowNodes, "")
	later := newCaller(t, patchbay, "later", etcd.client, ca, `[]`, "")
	const short = 8 * time.Second
	ca.renew("calling", short)
	for _, d := range []*daemon{serving, calling, later} {
		d.start()
	}
	serving.echo(nil)
	calling.inFleet(1)
	later.inFleet(1)

	// That of the caller expires while its connection is in use.
	c := calling.caller("serving")
	eventually(t, "it is called in time", func() bool {
		_, err := answers(t, c)
		if err != nil {
			ca.renew("calling", short)
		}
		return err == nil
	})
	eventually(t, "the call is refused", func() bool { _, err := answers(t, c); return grpcstatus.Code(err) == codes.Unauthenticated })
	if got := calling.says("fleet-certificates"); !strings.Contains(got, ca.file("calling.crt")+" expired at ") {
		t.Errorf("the condition says %q", got)
	}
	eventually(t, "the log says so", func() bool { return strings.Contains(calling.log.String(), "calling.crt expired at ") })
	if got := calling.run("events", "--kind", "degraded", "--since", "1h"); !strings.Contains(got, "expired") {
		t.Errorf("the events are %s", got)
	}
	ca.renew("calling", time.Hour)
	answersFrom(t, c, "serving")
	if got := calling.says("fleet-certificates"); got != "" {
		t.Errorf("the condition still says %q", got)
	}

	// That of the called node has expired when a connection is made.
	ca.renew("serving", -time.Second)
	c = later.caller("serving")
	for range 3 { // the later ones find a connection that fails
		if _, err := answers(t, c); grpcstatus.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "expired") {
			t.Errorf("a certificate that has expired: %v", err)
		}
	}
	if got := serving.says("fleet-certificates"); !strings.Contains(got, "serving.crt expired at ") {
		t.Errorf("the condition says %q", got)
	}
	ca.renew("serving", time.Hour)
	time.Sleep(100 * time.Millisecond) // a call at most every 50 ms connects
	answersFrom(t, c, "serving")

	// What cannot be used is said too, and what there was stays in use.
	if err := os.WriteFile(ca.file("serving.key"), []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serving.says("fleet-certificates"); !strings.Contains(got, "cannot read certificate") {
		t.Errorf("the condition says %q", got)
	}
	answersFrom(t, c, "serving")
}

// TestCertificateAuthority: the CA of a fleet is exchanged without a call that fails, and one that is withdrawn ends what it has signed,
// also over connections that there are.
func TestCertificateAuthority(t *testing.T) {
	t.Parallel()
	etcd, patchbay, before, after := startOne(t), program(t, "patchbay"), newAuthority(t), newAuthority(t)
	calling := newCaller(t, patchbay, "calling", etcd.client, before, `[]`, "")
	serving := newCaller(t, patchbay, "serving", etcd.client, before, allowNodes, "")
	files := map[*daemon]func(string, ...string){calling: calling.ownFiles(before), serving: serving.ownFiles(before)}
	for d := range files {
		d.start()
	}
	serving.echo(nil)
	calling.inFleet(1)
	c := calling.caller("serving")
	stream, err := c.FullDuplexCall(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	exchange := func() error {
		err := stream.Send(&grpc_testing.StreamingOutputCallRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	if err := exchange(); err != nil {
		t.Fatal(err)
	}
	each := func(do func(d *daemon, replace func(string, ...string))) {
		for d, replace := range files {
			do(d, replace)
			answersFrom(t, c, "serving")
		}
	}
	each(func(_ *daemon, replace func(string, ...string)) {
		replace("ca", before.file("ca.crt"), after.file("ca.crt"))
	})
	each(func(d *daemon, replace func(string, ...string)) {
		after.renew(d.name, time.Hour)
		replace("cert", after.file(d.name+".crt")) // the key does not match yet: the old pair is used
		answersFrom(t, c, "serving")
		replace("key", after.file(d.name+".key"))
	})
	if err := exchange(); err != nil {
		t.Errorf("the call over the first connection: %v", err)
	}
	files[serving]("ca", after.file("ca.crt"))
	answersFrom(t, c, "serving")

	// The stream was opened with the certificate of the CA that is gone.
	serving.run("reload")
	if _, err := stream.Recv(); grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("a call of a caller whose CA was withdrawn: %v", err)
	}
	files[calling]("ca", after.file("ca.crt"))
	answersFrom(t, c, "serving")
	files[serving]("ca", before.file("ca.crt"))
	if _, err := answers(t, c); grpcstatus.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "no longer trusts") {
		t.Errorf("over the connection that there is: %v", err)
	}
	files[serving]("ca", before.file("ca.crt"), after.file("ca.crt"))
	answersFrom(t, c, "serving")
	if err := os.WriteFile(filepath.Join(serving.dir, "ca"), []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	answersFrom(t, c, "serving")
	if got := serving.says("fleet-certificates"); !strings.Contains(got, "no certificate in PEM") {
		t.Errorf("the condition says %q", got)
	}
}

// TestCertificateStranger: a node whose certificate its own CA did not sign, or that does not have its name, says so.
func TestCertificateStranger(t *testing.T) {
	t.Parallel()
	etcd, patchbay, ca, other := startOne(t), program(t, "patchbay"), newAuthority(t), newAuthority(t)
	stranger := newCaller(t, patchbay, "stranger", etcd.client, ca, allowNodes, "")
	replace := stranger.ownFiles(ca)
	other.signNode("stranger")
	replace("cert", other.file("stranger.crt"))
	replace("key", other.file("stranger.key"))
	stranger.start()
	if got := stranger.says("fleet-certificates"); !strings.Contains(got, filepath.Join(stranger.dir, "ca")+" refuse") ||
		!strings.Contains(got, "unknown authority") {
		t.Errorf("the condition says %q", got)
	}
	ca.signNode("another")
	replace("cert", ca.file("another.crt"))
	replace("key", ca.file("another.key"))
	if got := stranger.says("fleet-certificates"); !strings.Contains(got, "not stranger") {
		t.Errorf("with the name of another node, the condition says %q", got)
	}
	replace("cert", ca.file("stranger.crt"))
	replace("key", ca.file("stranger.key"))
	if got := stranger.says("fleet-certificates"); got != "" {
		t.Errorf("with its own certificate, the condition says %q", got)
	}
}

// TestCertificateRecipe: with certificates that are made as the guide says, a node calls another one.
func TestCertificateRecipe(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("there is no openssl here")
	}
	guide, err := os.ReadFile("../../docs/how-to/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(guide), "### Certificates\n")
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, 2)
	if len(blocks) != 2 {
		t.Fatal("the guide has no recipe for certificates")
	}
	made := &authority{t: t, dir: t.TempDir()}
	run := func(script string) {
		bash := exec.Command("bash", "-e", "-c", script)
		bash.Dir = made.dir
		if printed, err := bash.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s\n%s", err, script, printed)
		}
	}
	etcd, patchbay, other := startOne(t), program(t, "patchbay"), newAuthority(t)
	run(blocks[0][1])
	nodes := map[string]*daemon{}
	for _, name := range []string{"node-7", "node-8"} {
		run(strings.Replace(blocks[1][1], "node-7", name, 1))
		d := newCaller(t, patchbay, name, etcd.client, other, `[{identity: "node-*", types: [Echo], names: [one], methods: ["*"]}]`, "")
		for _, file := range []string{"ca.crt", name + ".crt", name + ".key"} {
			d.configure(other.file(file), made.file(file))
		}
		d.start()
		nodes[name] = d
	}
	nodes["node-8"].echo(nil)
	nodes["node-7"].inFleet(1)
	answersFrom(t, nodes["node-7"].caller(""), "node-8")
}
