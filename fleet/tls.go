package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
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
	pair       *loaded[*tls.Certificate]
	ca         *loaded[*x509.CertPool]
	serverName string
}

// NewCredentials reads the files.
func NewCredentials(t TLS) (*Credentials, error) {
	c := &Credentials{pair: keyPair(t.Cert, t.Key), serverName: cmp.Or(t.ServerName, nodePlaceholder)}
	c.ca = &loaded[*x509.CertPool]{files: []string{t.CA}, load: func() (*x509.CertPool, error) { return readCA(t.CA) }}
	err := t.Validate()
	if err == nil {
		_, err = c.pair.get()
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
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, SessionTicketsDisabled: true, ClientAuth: tls.RequireAndVerifyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.get() },
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := c.ca.get()
		current := config.Clone()
		current.ClientCAs = pool
		return current, err
	}
	return credentials.NewTLS(config)
}

// client returns what a connection to a node needs.
func (c *Credentials) client(node string) credentials.TransportCredentials {
	return &clientCredentials{
		TransportCredentials: credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}), // for all but the handshake
		of:                   c, name: strings.ReplaceAll(c.serverName, nodePlaceholder, node),
	}
}

// clientCredentials make each connection with the files as they are then.
type clientCredentials struct {
	credentials.TransportCredentials
	of   *Credentials
	name string
}

// ClientHandshake implements credentials.TransportCredentials. Whoever is at the address has to be the node.
func (c *clientCredentials) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	pool, err := c.of.ca.get()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: c.name, RootCAs: pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.of.pair.get() },
	}).ClientHandshake(ctx, c.name, conn)
}

// Clone implements credentials.TransportCredentials.
func (c *clientCredentials) Clone() credentials.TransportCredentials {
	clone := *c
	return &clone
}

// readCA reads certificates in PEM.
func readCA(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificates of the CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("file %s has no certificate in PEM", file)
	}
	return pool, nil
}

// keyPair is a certificate and its key.
func keyPair(cert, key string) *loaded[*tls.Certificate] {
	return &loaded[*tls.Certificate]{files: []string{cert, key}, load: func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("cannot read certificate %s and its key: %w", cert, err)
		}
		return &pair, nil
	}}
}

// loaded is what files have, which may change.
type loaded[T any] struct {
	files []string
	load  func() (T, error)

	mu    sync.Mutex
	value T
	from  []time.Time // when the files had been modified that value was loaded from; nil before
}

// get returns what the files have. If they have changed and cannot be used, which happens while they are being replaced, it is what they
// had before.
func (l *loaded[T]) get() (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := make([]time.Time, len(l.files))
	for i, file := range l.files {
		if info, err := os.Stat(file); err == nil {
			from[i] = info.ModTime()
		}
	}
	if slices.EqualFunc(from, l.from, time.Time.Equal) {
		return l.value, nil
	}
	value, err := l.load()
	if err == nil {
		l.value, l.from = value, from
	}
	if l.from == nil {
		return value, err
	}
	return l.value, nil
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
