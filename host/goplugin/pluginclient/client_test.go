//go:build unix

package pluginclient_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"hash"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	library "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient"
)

// config is that of a host, whose plugin is the test binary.
func config(mode string, env ...string) *library.ClientConfig {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append([]string{modeEnv + "=" + mode, "GORACE=atexit_sleep_ms=0"}, env...)
	return &library.ClientConfig{
		HandshakeConfig: handshake, Plugins: library.PluginSet{"talker": &talkerPlugin{}}, Cmd: cmd,
		AllowedProtocols: []library.Protocol{library.ProtocolGRPC}, Logger: hclog.NewNullLogger(),
	}
}

func dispense(t *testing.T, c *pluginclient.Client) *talker {
	t.Helper()
	protocol, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := protocol.Ping(); err != nil {
		t.Error(err)
	}
	raw, err := protocol.Dispense("talker")
	if err != nil {
		t.Fatal(err)
	}
	return raw.(*talker)
}

func newClient(t *testing.T, c *library.ClientConfig) *pluginclient.Client {
	t.Helper()
	client := pluginclient.NewClient(c)
	killed := client
	t.Cleanup(func() {
		killed.Kill()
		killed = nil
		if c.Reattach == nil { // else the process may live on
			collect(t)
		}
	})
	return client
}

// collect waits until no descriptor is left of a process that has ended: the library leaves it to the collector to close those that it had.
func collect(t *testing.T) {
	t.Helper()
	await(t, "the end of the last descriptor of a process that has ended", func() bool {
		runtime.GC()
		infos, err := filepath.Glob("/proc/self/fdinfo/*")
		return err == nil && !slices.ContainsFunc(infos, func(info string) bool {
			text, err := os.ReadFile(info)
			return err == nil && bytes.Contains(text, []byte("\nPid:\t-1\n"))
		})
	})
}

// answers fails the test unless a call answers what is wanted.
func answers(t *testing.T, want string, call func() (string, error)) {
	t.Helper()
	if got, err := call(); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestBroker: both sides serve on connections that they broker, with one socket for all or one each, with and without certificates.
func TestBroker(t *testing.T) {
	for name, change := range map[string]func(*library.ClientConfig){
		"plain":                func(*library.ClientConfig) {},
		"AutoMTLS":             func(c *library.ClientConfig) { c.AutoMTLS = true },
		"multiplexed":          func(c *library.ClientConfig) { c.GRPCBrokerMultiplex = true },
		"multiplexed AutoMTLS": func(c *library.ClientConfig) { c.GRPCBrokerMultiplex, c.AutoMTLS = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			c := config("serve")
			change(c)
			p := dispense(t, newClient(t, c))
			answers(t, "hello host", p.callPlugin)
			answers(t, "hello plugin", p.beCalled)
		})
	}
}

// TestRestart: a plugin that is killed is started again, and is there for who dispenses again, its broker too.
func TestRestart(t *testing.T) {
	t.Parallel()
	client := newClient(t, config("serve"))
	first := client.ID()
	if first != "" {
		t.Errorf("process %s runs before it is wanted", first)
	}
	p := dispense(t, client)
	for range 3 {
		pid, err := strconv.Atoi(client.ID())
		if err != nil {
			t.Fatal(err)
		}
		answers(t, strconv.Itoa(pid), func() (string, error) { return p.ask("") })
		kill(t, strconv.Itoa(pid))
		for deadline := time.Now().Add(30 * time.Second); ; {
			got, err := again(client, &p)
			if err == nil && got != strconv.Itoa(pid) {
				// What was dispensed before the end was noticed has a broker of the process that ended, though its calls follow the plugin.
				if got, err = p.beCalled(); err == nil && got == "hello plugin" {
					break
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("got %q, %v", got, err)
			}
			<-time.After(time.Millisecond)
		}
	}
	if client.Exited() || client.NegotiatedVersion() != 3 || client.Protocol() != library.ProtocolGRPC {
		t.Errorf("exited %t, version %d, protocol %s", client.Exited(), client.NegotiatedVersion(), client.Protocol())
	}
	client.Kill()
	if !client.Exited() {
		t.Error("it lives on after Kill")
	}
}

// TestRemovedSocket: a plugin whose socket a cleaner removes is dispensed and called as before.
func TestRemovedSocket(t *testing.T) {
	client := newClient(t, config("serve"))
	address, err := client.Start()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(address.String()); err != nil {
		t.Fatal(err)
	}
	answers(t, client.ID(), func() (string, error) { return dispense(t, client).ask("") })
}

// kill ends a process with SIGKILL.
func kill(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(n)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(process.Kill(), process.Release()); err != nil {
		t.Fatal(err)
	}
}

// TestDispensedOnce: what was dispensed once is answered by each life that the plugin has, also while it is being started again, and ends
// with Kill at once, with what is under way.
func TestDispensedOnce(t *testing.T) {
	for name, multiplexed := range map[string]bool{"a socket each": false, "multiplexed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config("serve")
			c.AutoMTLS, c.GRPCBrokerMultiplex = true, multiplexed
			client := newClient(t, c)
			p := dispense(t, client)
			seen := map[string]bool{}
			for range 2 {
				pid := client.ID()
				answers(t, pid, func() (string, error) { return p.ask("") })
				seen[pid] = true
				kill(t, pid)
				// Until the end of the process is noticed, calls find nobody.
				for deadline := time.Now().Add(30 * time.Second); ; {
					got, err := p.ask("")
					if err == nil && got != pid {
						break
					} else if status.Code(err) != codes.Unavailable && err != nil || time.Now().After(deadline) {
						t.Fatalf("process %s, %v", got, err)
					}
				}
			}
			if len(seen) != 2 {
				t.Errorf("processes %v, want two", seen)
			}
			answers(t, client.ID(), func() (string, error) { return dispense(t, client).ask("") })
			hangs := make(chan error, 1)
			go func() {
				_, err := p.ask("hang")
				hangs <- err
			}()
			begun := time.Now()
			answers(t, "hanging", func() (string, error) { return p.ask("await hang") })
			client.Kill()
			if err := <-hangs; status.Code(err) != codes.Unavailable || time.Since(begun) > 4*time.Second {
				t.Errorf("the call that was under way: %v, after %v", err, time.Since(begun))
			}
			if _, err := p.ask(""); err == nil {
				t.Error("it answers after Kill")
			}
		})
	}
}

// TestAnotherVersion: a client of a version that the plugin no longer speaks gets an error that says so.
func TestAnotherVersion(t *testing.T) {
	c := config("serve")
	c.VersionedPlugins = map[int]library.PluginSet{3: c.Plugins, 4: c.Plugins}
	versions := filepath.Join(t.TempDir(), "versions")
	if err := os.WriteFile(versions, []byte("3"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Cmd.Env = append(c.Cmd.Env, versionEnv+"="+versions)
	client := newClient(t, c)
	p := dispense(t, client)
	answers(t, client.ID(), func() (string, error) { return p.ask("") })
	if err := os.WriteFile(versions, []byte("4"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ask("exit"); err == nil {
		t.Error("it has not ended")
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		_, err := p.ask("")
		if status.Code(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "speaks version 4 now") {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	answers(t, client.ID(), func() (string, error) { return dispense(t, client).ask("") })
}

// again dispenses anew and asks who answers.
func again(client *pluginclient.Client, p **talker) (string, error) {
	protocol, err := client.Client()
	if err != nil {
		return "", err
	}
	raw, err := protocol.Dispense("talker")
	if err != nil {
		return "", err
	}
	*p = raw.(*talker)
	return (*p).ask("")
}

// TestReattach: another client attaches to what runs, and leaves it running; so does one to a server in test mode, in this very process.
func TestReattach(t *testing.T) {
	client := newClient(t, config("serve"))
	dispense(t, client)
	c := config("")
	c.Cmd, c.Reattach = nil, client.ReattachConfig()
	c.Reattach.Test = true // so that it is not killed
	c.Reattach.ProtocolVersion = 3
	other := newClient(t, c)
	answers(t, client.ID(), func() (string, error) { return dispense(t, other).ask("") })
	other.Kill()
	closeProtocol(t, other)
}

// closeProtocol ends what Kill leaves of a plugin in test mode.
func closeProtocol(t *testing.T, client *pluginclient.Client) {
	t.Helper()
	protocol, err := client.Client()
	if err == nil {
		err = protocol.Close()
	}
	if err != nil {
		t.Error(err)
	}
}

func TestTestMode(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	attach, closed := make(chan *library.ReattachConfig, 1), make(chan struct{})
	go library.Serve(&library.ServeConfig{
		HandshakeConfig: handshake, Plugins: library.PluginSet{"talker": &talkerPlugin{}}, GRPCServer: library.DefaultGRPCServer,
		Logger: hclog.NewNullLogger(), Test: &library.ServeTestConfig{Context: ctx, ReattachConfigCh: attach, CloseCh: closed},
	})
	c := config("")
	c.Cmd, c.Reattach = nil, <-attach
	client := newClient(t, c)
	answers(t, strconv.Itoa(os.Getpid()), func() (string, error) { return dispense(t, client).ask("") })
	client.Kill()
	answers(t, strconv.Itoa(os.Getpid()), func() (string, error) { return dispense(t, client).ask("") })
	closeProtocol(t, client)
	<-closed // not ended in two ways at the same time, which the library's server does not expect
}

// certificate makes one for localhost and returns its files and who trusts it.
func certificate(t *testing.T) (certFile, keyFile string, trusted *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	if err := errors.Join(os.WriteFile(certFile, certPEM, 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600)); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	return certFile, keyFile, &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS12}
}

func TestStaticTLS(t *testing.T) {
	certFile, keyFile, trusted := certificate(t)
	c := config("tls", certEnv+"="+certFile, keyEnv+"="+keyFile)
	c.TLSConfig = trusted
	client := newClient(t, c)
	answers(t, client.ID(), func() (string, error) { return dispense(t, client).ask("env NOTHING") })
	if got, err := dispense(t, client).ask(""); err != nil || got != client.ID() {
		t.Errorf("process %q answers, %v", got, err)
	}
}

func TestChecksum(t *testing.T) {
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]hash.Hash{"SHA-256": sha256.New(), "another": md5.New()} {
		h.Write(program)
		c := config("serve")
		c.SecureConfig = &library.SecureConfig{Checksum: h.Sum(nil), Hash: h}
		if got, err := dispense(t, newClient(t, c)).ask("env " + modeEnv); err != nil || got != "serve" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		c = config("serve")
		c.SecureConfig = &library.SecureConfig{Checksum: []byte("wrong"), Hash: h}
		if _, err := newClient(t, c).Client(); !errors.Is(err, library.ErrChecksumsDoNotMatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		mode   string
		change func(*library.ClientConfig)
		want   string
	}{
		"start timeout":   {"late", func(c *library.ClientConfig) { c.StartTimeout = 300 * time.Millisecond }, "timeout while waiting for plugin to start"},
		"net/rpc":         {"serve", func(c *library.ClientConfig) { c.AllowedProtocols = nil }, "net/rpc are not offered"},
		"speaks net/rpc":  {"netrpc", func(*library.ClientConfig) {}, `unsupported plugin protocol "netrpc"`},
		"nothing to run":  {"serve", func(c *library.ClientConfig) { c.Cmd = nil }, "set Cmd or Reattach"},
		"no such program": {"serve", func(c *library.ClientConfig) { c.Cmd = exec.Command("/no/such/program") }, "no such file"},
		"another cookie":  {"serve", func(c *library.ClientConfig) { c.MagicCookieValue = "coffee" }, "another magic cookie"},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(tc.mode)
			tc.change(c)
			if _, err := newClient(t, c).Client(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("OF_THE_HOST", "yes")
	for skip, want := range map[bool]string{false: "yes", true: ""} {
		c := config("serve", "OF_THE_PLUGIN=too")
		c.SkipHostEnv = skip
		p := dispense(t, newClient(t, c))
		answers(t, want, func() (string, error) { return p.ask("env OF_THE_HOST") })
		answers(t, "too", func() (string, error) { return p.ask("env OF_THE_PLUGIN") })
	}
}

// TestPorts: the range of ports reaches the plugin, as the library hands it on.
func TestPorts(t *testing.T) {
	c := config("serve")
	c.MinPort, c.MaxPort = 11000, 12000
	p := dispense(t, newClient(t, c))
	answers(t, "11000", func() (string, error) { return p.ask("env PLUGIN_MIN_PORT") })
	answers(t, "12000", func() (string, error) { return p.ask("env PLUGIN_MAX_PORT") })
}

// seen is a writer in which a text is waited for.
type seen struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func newSeen() *seen { return &seen{more: make(chan struct{}, 1)} }

func (s *seen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
	return s.text.Write(p)
}

func (s *seen) await(t *testing.T, want string) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		s.mu.Lock()
		found := strings.Contains(s.text.String(), want)
		s.mu.Unlock()
		if found {
			return
		}
		select {
		case <-s.more:
		case <-timeout:
			t.Fatalf("%q was not written, but %q", want, s.text.String())
		}
	}
}

func TestWriters(t *testing.T) {
	stdout, stderr, raw := newSeen(), newSeen(), newSeen()
	c := config("serve")
	c.SyncStdout, c.SyncStderr, c.Stderr = stdout, stderr, raw
	p := dispense(t, newClient(t, c))
	raw.await(t, "here I come")
	if _, err := p.ask("print this"); err != nil {
		t.Fatal(err)
	}
	stdout.await(t, "this")
	stderr.await(t, "this")
}

func TestManaged(t *testing.T) {
	c := config("serve")
	c.Managed = true
	client := newClient(t, c)
	dispense(t, client)
	pluginclient.CleanupClients()
	if !client.Exited() {
		t.Error("it lives on")
	}
	killed := newClient(t, config("serve"))
	killed.Kill()
	if _, err := killed.Client(); err == nil {
		t.Error("it starts after Kill")
	}
}

// TestLongTempDir: a plugin is reached however long the path of the directory for temporary files is.
func TestLongTempDir(t *testing.T) {
	const length = 150
	dir := t.TempDir()
	dir = filepath.Join(dir, strings.Repeat("d", length-len(dir)-1))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	dispense(t, newClient(t, config("serve")))
}
