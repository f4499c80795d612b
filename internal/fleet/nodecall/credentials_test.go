package nodecall

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/patchbay-dev/patchbay/internal/fleet/certfile"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign writes the files NAME.crt and NAME.key.
func (a *authority) sign(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	template.NotBefore = time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(a.dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

var bothUses = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}

// node signs the certificate of a node, and returns it.
func (a *authority) node(name string) TLS {
	a.sign(name, &x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: bothUses})
	return a.files(name)
}

func (a *authority) files(name string) TLS {
	return TLS{CA: filepath.Join(a.dir, "ca.crt"), Cert: filepath.Join(a.dir, name+".crt"), Key: filepath.Join(a.dir, name+".key")}
}

func (a *authority) pair(name string) []tls.Certificate {
	a.t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key"))
	if err != nil {
		a.t.Fatal(err)
	}
	return []tls.Certificate{pair}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func mustCredentials(t *testing.T, c TLS) *Credentials {
	t.Helper()
	found, err := NewCredentials(c)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// shake performs the TLS handshake over a connection, and returns the errors of both ends.
func shake(t *testing.T, server, client func(net.Conn) error) (serverErr, clientErr error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ended := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			err = server(conn)
			_ = conn.Close()
		}
		ended <- err
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	clientErr = client(conn)
	serverErr = <-ended
	_ = conn.Close()
	return serverErr, clientErr
}

// TestListenerWantsModernMutualTLS checks that the listener for other nodes refuses weak or unauthenticated connections.
func TestListenerWantsModernMutualTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	server := mustCredentials(t, ca.node("the.node")).Server()
	ca.node("friend")
	other.node("friend")
	ca.sign("old", &x509.Certificate{DNSNames: []string{"friend"}, ExtKeyUsage: bothUses, NotAfter: time.Now().Add(-time.Minute)})
	ca.sign("server", &x509.Certificate{DNSNames: []string{"friend"}, ExtKeyUsage: bothUses[:1]})
	for name, test := range map[string]struct {
		client  *tls.Config
		refused string
	}{
		"TLS 1.3 with a certificate":  {&tls.Config{Certificates: ca.pair("friend")}, ""},
		"TLS 1.2":                     {&tls.Config{Certificates: ca.pair("friend"), MaxVersion: tls.VersionTLS12}, "unsupported versions"},
		"TLS 1.0":                     {&tls.Config{Certificates: ca.pair("friend"), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10}, "unsupported versions"},
		"no certificate":              {&tls.Config{}, "didn't provide a certificate"},
		"a certificate of another CA": {&tls.Config{Certificates: other.pair("friend")}, "failed to verify certificate"},
		"a certificate that ran out":  {&tls.Config{Certificates: ca.pair("old")}, "expired"},
		"a certificate of a server":   {&tls.Config{Certificates: ca.pair("server")}, "incompatible key usage"},
	} {
		t.Run(name, func(t *testing.T) {
			config := test.client.Clone()
			config.RootCAs, config.ServerName, config.NextProtos = ca.pool(), "the.node", []string{"h2"}
			if len(config.Certificates) > 0 { // even a certificate that the server does not request
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &config.Certificates[0], nil }
			}
			err, _ := shake(t,
				func(conn net.Conn) error { return tls.Server(conn, server).Handshake() },
				func(conn net.Conn) error { return tls.Client(conn, config).Handshake() })
			if (err == nil) != (test.refused == "") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("got %v, want %q", err, test.refused)
			}
		})
	}
}

// TestDialersWantModernTLS checks that clients refuse servers with weak or wrong credentials.
func TestDialersWantModernTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	files := ca.node("caller")
	own := mustCredentials(t, files)
	etcd, _, err := certfile.Client(files.CA, files.Cert, files.Key, "the.node")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []*authority{ca, other} {
		a.node("the.node")
		a.node("another.node")
	}
	for who, dial := range map[string]func(net.Conn) error{
		"a node": func(conn net.Conn) error {
			_, err := own.client(t.Context(), conn, "the.node")
			return err
		},
		"etcd client": func(conn net.Conn) error {
			_, _, err := credentials.NewTLS(etcd).ClientHandshake(t.Context(), "the.node", conn)
			return err
		},
	} {
		for name, test := range map[string]struct {
			server  *tls.Config
			refused string // by either end
		}{
			"TLS 1.3":      {&tls.Config{Certificates: ca.pair("the.node")}, ""},
			"TLS 1.2":      {&tls.Config{Certificates: ca.pair("the.node"), MaxVersion: tls.VersionTLS12}, "unsupported versions"},
			"another node": {&tls.Config{Certificates: ca.pair("another.node")}, "certificate is valid for another.node, not the.node"},
			"another CA":   {&tls.Config{Certificates: other.pair("the.node")}, "unknown authority"},
		} {
			t.Run(who+"/"+name, func(t *testing.T) {
				config := test.server.Clone()
				config.ClientAuth, config.ClientCAs, config.NextProtos = tls.RequireAndVerifyClientCert, ca.pool(), []string{"h2"}
				var version uint16
				serverErr, clientErr := shake(t, func(conn net.Conn) error {
					server := tls.Server(conn, config)
					err := server.Handshake()
					version = server.ConnectionState().Version
					return err
				}, dial)
				switch said := errText(serverErr) + errText(clientErr); {
				case test.refused == "" && (said != "" || version != tls.VersionTLS13):
					t.Errorf("%s, version %x", said, version)
				case test.refused != "" && (clientErr == nil || !strings.Contains(said, test.refused)):
					t.Errorf("server: %v, client: %v; want %q", serverErr, clientErr, test.refused)
				}
			})
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
