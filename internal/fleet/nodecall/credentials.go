package nodecall

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/fleet/certfile"
)

// TLS names the files of the certificates between nodes, in PEM. The files are read again when they have changed.
type TLS struct {
	CA         string // the certificates that sign those of all nodes
	Cert, Key  string // the certificate of this node, for servers and clients, and its key
	ServerName string // the DNS name in the certificate of a node, in which {node} stands for the name of the node (default {node})
}

const nodePlaceholder = "{node}" // in TLS.ServerName

// Credentials are the certificate of a node and the CAs that it trusts. They are safe for concurrent use.
type Credentials struct {
	pair       *certfile.Files[*tls.Certificate]
	ca         *certfile.Files[*x509.CertPool]
	serverName string

	mu   sync.Mutex
	live map[*outgoing]bool // connections to other nodes
}

// outgoing is a connection to another node.
type outgoing struct {
	net.Conn
	raw       net.Conn // the connection without TLS
	chain     []*x509.Certificate
	of        *Credentials
	withdrawn atomic.Bool // the connection was closed because the CA of the node was removed
}

func (o *outgoing) Read(b []byte) (int, error) {
	n, err := o.Conn.Read(b)
	if err != nil && o.withdrawn.Load() {
		err = errors.New("this node no longer trusts the certificate of the other: the CA file does not have its CA any more")
	}
	return n, err
}

// check aborts the connection if no CA of the pool has signed the certificate of the node. The user of the connection closes it.
func (o *outgoing) check(pool *x509.CertPool) {
	if verify(o.chain, pool, x509.ExtKeyUsageServerAuth) != nil {
		o.withdrawn.Store(true)
		_ = o.raw.Close()
	}
}

func (o *outgoing) Close() error {
	o.of.mu.Lock()
	delete(o.of.live, o)
	o.of.mu.Unlock()
	return o.Conn.Close()
}

// check aborts the connections to nodes whose certificates no CA of the pool has signed, and their calls.
func (c *Credentials) check(pool *x509.CertPool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for o := range c.live {
		o.check(pool)
	}
}

// verify returns an error if no CA of a pool has signed a chain of certificates for a use. It ignores expiration.
func verify(chain []*x509.Certificate, pool *x509.CertPool, use x509.ExtKeyUsage) error {
	options := x509.VerifyOptions{
		Roots: pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{use}, CurrentTime: time.Now(),
	}
	if end := chain[0].NotAfter; options.CurrentTime.After(end) {
		options.CurrentTime = end
	}
	for _, cert := range chain[1:] {
		options.Intermediates.AddCert(cert)
	}
	_, err := chain[0].Verify(options)
	return err
}

// NewCredentials reads the files. It returns an error if one of them cannot be used, or if certificate and key do not match.
func NewCredentials(t TLS) (*Credentials, error) {
	c := &Credentials{pair: certfile.Pair(t.Cert, t.Key), serverName: cmp.Or(t.ServerName, nodePlaceholder), live: map[*outgoing]bool{}}
	c.ca = &certfile.Files[*x509.CertPool]{
		Names: []string{t.CA}, Load: func() (*x509.CertPool, error) { return certfile.ReadCA(t.CA) }, Changed: c.check,
	}
	_, err := c.pair.Get()
	if err == nil {
		_, err = c.ca.Get()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use TLS between nodes: %w", err)
	}
	return c, nil
}

// Certificate returns the certificate that this node presents to others. node is the name by which other nodes call this one; empty if they
// do not call it. The certificate has an error if nodes with the same CA file refuse it.
func (c *Credentials) Certificate(node string) certfile.Certificate {
	return certfile.Of(c.pair, c.ca.Problem, func() (time.Time, error) { return c.refused(node) })
}

// refused returns the reason why nodes with the same CA file refuse the certificate, and since when; nil if they accept it.
func (c *Credentials) refused(node string) (since time.Time, err error) {
	with := c.material()
	chain := certfile.Chain(with.pair)
	calls := "from this node fail until one of those CAs has signed it for clients"
	if err = verify(chain, with.ca, x509.ExtKeyUsageClientAuth); err == nil && node != "" {
		name := strings.ReplaceAll(c.serverName, nodePlaceholder, node)
		calls = "to this node fail until one of those CAs has signed it for servers with the name " + name
		err = cmp.Or(verify(chain, with.ca, x509.ExtKeyUsageServerAuth), chain[0].VerifyHostname(name))
	}
	if err == nil {
		return since, nil
	}
	since, _ = c.pair.Problem()
	if changed, _ := c.ca.Problem(); changed.After(since) {
		since = changed
	}
	return since, fmt.Errorf("nodes that trust CA file %s refuse certificate %s: %w; calls %s", c.ca.Names[0], c.pair.Names[0], err, calls)
}

// material is the content of the files. A connection that was made with other content takes no new calls.
type material struct {
	pair *tls.Certificate
	ca   *x509.CertPool
}

func (c *Credentials) material() material {
	pair, _ := c.pair.Get() // NewCredentials has read both
	ca, _ := c.ca.Get()
	return material{pair, ca}
}

// Server returns the configuration of the listener for other nodes: TLS 1.3, and a client certificate from the CA. Sessions are not
// resumed, because a resumed session would ignore a change of the CA.
func (c *Credentials) Server() *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, SessionTicketsDisabled: true, ClientAuth: tls.RequireAndVerifyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Get() },
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := c.ca.Get()
		current := config.Clone()
		current.ClientCAs = pool
		return current, err
	}
	return config
}

// verifiedWith is the context key of the CAs with which the certificate of a connection was last verified; nil before the first call.
type verifiedWith struct{}

// ConnContext returns the context for the calls over a connection of another node. With it, the certificate is verified again only after a
// change of the CA file.
func ConnContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, verifiedWith{}, new(atomic.Pointer[x509.CertPool]))
}

// Caller returns the [Identities] of the caller over a connection that [Credentials.Server] accepted. It verifies the certificate for each
// call, because the certificate may have expired, or its CA may have been removed. The error is a gRPC status with codes.Unauthenticated.
func (c *Credentials) Caller(ctx context.Context) (identities []string, err error) {
	chain, err := chainOfCaller(ctx)
	if err != nil {
		return nil, err
	}
	if time.Now().After(chain[0].NotAfter) {
		return nil, status.Error(codes.Unauthenticated, "the certificate of the caller has expired: renew it there")
	}
	return Identities(chain[0]), c.Trusts(ctx)
}

// Trusts returns an error, as [Credentials.Caller] does, if no CA of the present file has signed the certificate of the caller. It ignores
// that the certificate has expired, which does not end calls in progress.
func (c *Credentials) Trusts(ctx context.Context) error {
	chain, err := chainOfCaller(ctx)
	if err != nil {
		return err
	}
	pool, _ := c.ca.Get() // NewCredentials has read it
	with, ok := ctx.Value(verifiedWith{}).(*atomic.Pointer[x509.CertPool])
	if !ok {
		with = new(atomic.Pointer[x509.CertPool])
	}
	if with.Load() == pool {
		return nil
	}
	if err := verify(chain, pool, x509.ExtKeyUsageClientAuth); err != nil {
		return status.Errorf(codes.Unauthenticated, "the node no longer trusts the certificate of the caller: %v", err)
	}
	with.Store(pool)
	return nil
}

func chainOfCaller(ctx context.Context) ([]*x509.Certificate, error) {
	if from, ok := peer.FromContext(ctx); ok {
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			return info.State.PeerCertificates, nil
		}
	}
	return nil, status.Error(codes.Unauthenticated, "the caller presented no certificate")
}

// client returns an encrypted connection to a node, which is aborted when the CA of the node is removed.
func (c *Credentials) client(ctx context.Context, raw net.Conn, node string) (net.Conn, error) {
	pool, err := c.ca.Get()
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, RootCAs: pool,
		ServerName:           strings.ReplaceAll(c.serverName, nodePlaceholder, node),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.pair.Get() },
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	o := &outgoing{Conn: conn, raw: raw, chain: conn.ConnectionState().PeerCertificates, of: c}
	c.mu.Lock()
	c.live[o] = true
	c.mu.Unlock()
	pool, _ = c.ca.Get() // the CA may have changed before the connection was in live
	o.check(pool)
	return o, nil
}

// Identities returns the names of a certificate's owner: the URIs if it has any, else the DNS names in lower case, else the common name. A
// DNS name that looks like a URI is left out.
func Identities(cert *x509.Certificate) []string {
	var names []string
	for _, u := range cert.URIs {
		names = append(names, u.String())
	}
	if len(names) > 0 {
		return names
	}
	others := slices.Clip(cert.DNSNames)
	if len(others) == 0 {
		others = append(others, cert.Subject.CommonName)
	}
	for _, name := range others {
		if name != "" && !strings.Contains(name, "://") {
			names = append(names, strings.ToLower(name))
		}
	}
	return names
}
