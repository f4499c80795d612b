package fleet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// TLS is what a node shows to other nodes, and whom it believes. The files are read again when they have changed, for every connection that
// is made from then on.
type TLS struct {
	// CA is a file with the certificates, in PEM, that sign those of all nodes. Those that the system trusts do not count.
	CA string
	// Cert and Key are files with the certificate of this node, for servers and clients, and its key, in PEM.
	Cert, Key string
	// ServerName is the DNS name in the certificate of a node that is called; {node} in it stands for the name of the node (default
	// {node}).
	ServerName string
}

// nodePlaceholder stands for the name of a node in TLS.ServerName.
const nodePlaceholder = "{node}"

// Validate says whether the configuration makes sense, without looking at files.
func (t TLS) Validate() error {
	if t.CA == "" || t.Cert == "" || t.Key == "" {
		return errors.New("calls between nodes need a certificate: name the files ca, cert and key")
	}
	return nil
}

// Credentials are the certificate of a node and those that it believes. They may be used from several goroutines.
type Credentials struct {
	pair       *keyPair
	ca         *caFile
	serverName string
}

// NewCredentials reads the files.
func NewCredentials(t TLS) (*Credentials, error) {
	err := t.Validate()
	c := &Credentials{pair: &keyPair{cert: t.Cert, key: t.Key}, ca: &caFile{path: t.CA}, serverName: t.ServerName}
	if c.serverName == "" {
		c.serverName = nodePlaceholder
	}
	if err == nil {
		_, err = c.pair.get(nil)
	}
	if err == nil {
		_, err = c.ca.get()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use TLS between nodes: %w", err)
	}
	return c, nil
}

// Server returns what the listener for other nodes needs: TLS 1.3, and a client certificate from the CA. Nothing of a connection is
// remembered for the next one, which would pass over a change of the CA.
func (c *Credentials) Server() credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, ClientAuth: tls.RequireAndVerifyClientCert,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			pool, err := c.ca.get()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, SessionTicketsDisabled: true,
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
				GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.get(nil) },
			}, nil
		},
	})
}

// client returns what a connection to a node needs.
func (c *Credentials) client(node string) credentials.TransportCredentials {
	return &clientCredentials{c, strings.ReplaceAll(c.serverName, nodePlaceholder, node)}
}

// clientCredentials make each connection with the files as they are then.
type clientCredentials struct {
	*Credentials
	name string
}

// ClientHandshake implements credentials.TransportCredentials. Whoever is at the address has to be the node.
func (c *clientCredentials) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	pool, err := c.ca.get()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: c.name, RootCAs: pool, GetClientCertificate: c.pair.get,
	}).ClientHandshake(ctx, c.name, conn)
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *clientCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are those of a client")
}

// Info implements credentials.TransportCredentials.
func (c *clientCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (c *clientCredentials) Clone() credentials.TransportCredentials {
	return &clientCredentials{c.Credentials, c.name}
}

// OverrideServerName implements credentials.TransportCredentials.
//
// Deprecated: it is there for the interface and does nothing.
func (c *clientCredentials) OverrideServerName(string) error { return nil }

// caFile is a file of certificates that may change.
type caFile struct {
	path string

	mu     sync.Mutex
	loaded *x509.CertPool
	from   time.Time // when the file had been modified that it was loaded from
}

// get returns the certificates. If the file has changed and cannot be used, which happens while it is being replaced, they are those
// before.
func (f *caFile) get() (*x509.CertPool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err == nil && f.loaded != nil && info.ModTime().Equal(f.from) {
		return f.loaded, nil
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(f.path)
	}
	pool := x509.NewCertPool()
	switch {
	case err == nil && pool.AppendCertsFromPEM(text):
		f.loaded, f.from = pool, info.ModTime()
	case f.loaded != nil:
	case err != nil:
		return nil, fmt.Errorf("cannot read the certificates of the CA: %w", err)
	default:
		return nil, fmt.Errorf("file %s has no certificate in PEM", f.path)
	}
	return f.loaded, nil
}

// Identities returns who a certificate says that its owner is: the URIs if it has any, else the DNS names in lower case, else the common
// name. A name that looks like a URI and is none is left out.
func Identities(cert *x509.Certificate) []string {
	var names []string
	for _, u := range cert.URIs {
		names = append(names, u.String())
	}
	if len(names) > 0 {
		return names
	}
	others := cert.DNSNames
	if len(others) == 0 {
		others = []string{cert.Subject.CommonName}
	}
	for _, name := range others {
		if name != "" && !strings.Contains(name, "://") {
			names = append(names, strings.ToLower(name))
		}
	}
	return names
}
