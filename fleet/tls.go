package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/regular"
)

// TLS says which certificate a node presents to other nodes, and which it trusts. Changed files are read again, for every connection made
// from then on.
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

// Validate returns an error unless CA, certificate and key are all named. It reads no files.
func (t TLS) Validate() error {
	if t.CA == "" || t.Cert == "" || t.Key == "" {
		return errors.New("calls between nodes need a certificate: name the files ca, cert and key")
	}
	return nil
}

// Credentials are the certificate of a node and those that it trusts. They are safe for concurrent use.
type Credentials struct {
	pair       *loaded[*tls.Certificate]
	ca         *loaded[*x509.CertPool]
	serverName string

	mu   sync.Mutex
	live map[*outgoing]bool // connections to other nodes
}

// outgoing is a connection to another node.
type outgoing struct {
	net.Conn
	raw   net.Conn // behind TLS
	chain []*x509.Certificate
	of    *Credentials
	// withdrawn: it was ended because its CA has gone.
	withdrawn atomic.Bool
}

// Read reads, or says why the connection was ended.
func (o *outgoing) Read(b []byte) (int, error) {
	n, err := o.Conn.Read(b)
	if err != nil && o.withdrawn.Load() {
		err = errors.New("this node no longer trusts the certificate of the other: the CA file does not have its CA any more")
	}
	return n, err
}

// judge ends the connection if no CA of a pool has signed the certificate of the node, without a goodbye, for which it would wait: who uses
// the connection notices, and closes it.
func (o *outgoing) judge(pool *x509.CertPool) {
	if verify(o.chain, pool, x509.ExtKeyUsageServerAuth) != nil {
		o.withdrawn.Store(true)
		_ = o.raw.Close()
	}
}

// Close closes the connection.
func (o *outgoing) Close() error {
	o.of.mu.Lock()
	delete(o.of.live, o)
	o.of.mu.Unlock()
	return o.Conn.Close()
}

// judge ends the connections to nodes whose certificates a CA has not signed, and with them their calls.
func (c *Credentials) judge(pool *x509.CertPool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for o := range c.live {
		o.judge(pool)
	}
}

// verify returns an error if a CA has not signed a chain of certificates for a use. Whether they have expired since does not matter.
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

// NewCredentials reads the files. It returns an error if one of them is missing, unreadable or malformed, or if certificate and key do not
// match.
func NewCredentials(t TLS) (*Credentials, error) {
	c := &Credentials{pair: keyPair(t.Cert, t.Key), serverName: cmp.Or(t.ServerName, nodePlaceholder), live: map[*outgoing]bool{}}
	c.ca = &loaded[*x509.CertPool]{
		files: []string{t.CA}, load: func() (*x509.CertPool, error) { return readCA(t.CA) }, changed: c.judge,
	}
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

// Certificate returns the certificate that the node presents to other nodes.
func (c *Credentials) Certificate() Certificate { return certificateIn(c.pair, c.ca.trouble) }

// material is what the files have. A connection that was made with other files takes no new calls.
type material struct {
	pair *tls.Certificate
	ca   *x509.CertPool
}

func (c *Credentials) material() material {
	pair, _ := c.pair.get() // NewCredentials has read both
	ca, _ := c.ca.get()
	return material{pair, ca}
}

// Server returns the configuration of the listener for other nodes: TLS 1.3, and a client certificate from the CA. Sessions are not
// resumed, since a resumed one would ignore a change of the CA. [Credentials.Caller] says who calls over a connection.
func (c *Credentials) Server() *tls.Config {
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
	return config
}

// verifiedWith leads to the CA with which the certificate of a connection was last verified; nil before the first call.
type verifiedWith struct{}

// ConnContext returns the context of a connection that another node has made, from which those of its calls come. With it, the certificate
// is only verified again after the file of the CA has changed.
func ConnContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, verifiedWith{}, new(atomic.Pointer[x509.CertPool]))
}

// Caller returns who makes a call over a connection that [Credentials.Server] accepted: the URIs in the certificate if it has any, else the
// DNS names in lower case, else the common name. The certificate is judged again for each call, since it may have expired after the
// connection was made, or its CA been withdrawn. The error is a gRPC status with codes.Unauthenticated.
func (c *Credentials) Caller(ctx context.Context) (identities []string, err error) {
	info, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	cert := info.State.PeerCertificates[0]
	if time.Now().After(cert.NotAfter) {
		return nil, status.Error(codes.Unauthenticated, "the certificate of the caller has expired: renew it there")
	}
	return Identities(cert), c.Trusts(ctx)
}

// Trusts returns an error, as [Credentials.Caller] does, if the certificate of who makes a call is not signed by the CA as its file is now.
// Whether it has expired does not matter, so that a call in progress can be judged by it.
func (c *Credentials) Trusts(ctx context.Context) error {
	info, err := callerOf(ctx)
	if err != nil {
		return err
	}
	pool, _ := c.ca.get() // NewCredentials has read it
	with, ok := ctx.Value(verifiedWith{}).(*atomic.Pointer[x509.CertPool])
	if !ok {
		with = new(atomic.Pointer[x509.CertPool])
	}
	if with.Load() == pool {
		return nil
	}
	if err := verify(info.State.PeerCertificates, pool, x509.ExtKeyUsageClientAuth); err != nil {
		return status.Errorf(codes.Unauthenticated, "the node no longer trusts the certificate of the caller: %v", err)
	}
	with.Store(pool)
	return nil
}

// callerOf returns what is known of the connection of a call.
func callerOf(ctx context.Context) (credentials.TLSInfo, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return credentials.TLSInfo{}, status.Error(codes.Unauthenticated, "it is not known who calls")
	}
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return credentials.TLSInfo{}, status.Error(codes.Unauthenticated, "the caller presented no certificate")
	}
	return info, nil
}

// client returns what a connection to a node needs. Reached, if it is not nil, is called whenever somebody answers at its address.
func (c *Credentials) client(node string, reached func()) credentials.TransportCredentials {
	return &clientCredentials{
		TransportCredentials: credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}), // for all but the handshake
		of:                   c, name: strings.ReplaceAll(c.serverName, nodePlaceholder, node), reached: reached,
	}
}

// clientCredentials make each connection with the files as they are then.
type clientCredentials struct {
	credentials.TransportCredentials
	of      *Credentials
	name    string
	reached func()
}

// ClientHandshake implements credentials.TransportCredentials. The server at the address must be the node.
func (c *clientCredentials) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	pool, err := c.of.ca.get()
	if err != nil {
		return nil, nil, err
	}
	if c.reached != nil {
		defer func() {
			if ctx.Err() == nil { // else it has not answered in time
				c.reached()
			}
		}()
	}
	secure, auth, err := credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: c.name, RootCAs: pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.of.pair.get() },
	}).ClientHandshake(ctx, c.name, conn)
	if err != nil {
		return nil, nil, err
	}
	return c.of.watch(secure, conn, auth), auth, nil
}

// watch has a connection to a node end when its CA is withdrawn.
func (c *Credentials) watch(secure, raw net.Conn, auth credentials.AuthInfo) net.Conn {
	info, _ := auth.(credentials.TLSInfo) // else there is nothing to judge
	if len(info.State.PeerCertificates) == 0 {
		return secure
	}
	o := &outgoing{Conn: secure, raw: raw, chain: info.State.PeerCertificates, of: c}
	c.mu.Lock()
	c.live[o] = true
	c.mu.Unlock()
	pool, _ := c.ca.get() // it may have changed meanwhile, and been judged without this one
	o.judge(pool)
	return o
}

// Clone implements credentials.TransportCredentials.
func (c *clientCredentials) Clone() credentials.TransportCredentials {
	clone := *c
	return &clone
}

// readCA reads certificates in PEM.
func readCA(file string) (*x509.CertPool, error) {
	text, err := regular.Read(file)
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
		certText, certErr := regular.Read(cert)
		keyText, keyErr := regular.Read(key)
		pair, err := tls.X509KeyPair(certText, keyText)
		if err = cmp.Or(certErr, keyErr, err); err != nil {
			return nil, fmt.Errorf("cannot read certificate %s and its key: %w", cert, err)
		}
		return &pair, nil
	}}
}

// loaded is what files have, which may change.
type loaded[T any] struct {
	files []string
	load  func() (T, error)
	// changed is called with what the files have after they had something else; nil for nobody.
	changed func(T)

	mu    sync.Mutex
	value T
	from  []fs.FileInfo // of the files that value was loaded from; nil before
	// unused says why what the files have now is not used, and since when that is known.
	unused error
	since  time.Time
}

// get returns what the files have. If they have changed and cannot be used, which happens while they are being replaced, it is what they
// had before.
func (l *loaded[T]) get() (T, error) {
	value, changed, err := l.look()
	if changed && l.changed != nil {
		l.changed(value)
	}
	return value, err
}

// unchanged says whether two looks at a file show the same. Files that replace each other within a tick of the clock have the same time.
func unchanged(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// look does what get does, and says whether the files have something else than before.
func (l *loaded[T]) look() (value T, changed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := make([]fs.FileInfo, len(l.files))
	for i, file := range l.files {
		from[i], _ = os.Stat(file) // nil if that fails
	}
	if slices.EqualFunc(from, l.from, unchanged) {
		l.unused = nil
		return l.value, false, nil
	}
	first := l.from == nil
	value, err = l.load()
	if err == nil {
		l.value, l.from, changed = value, from, !first
	}
	if l.from == nil {
		return value, false, err
	}
	if err != nil && l.unused == nil {
		l.since = time.Now()
	}
	l.unused = err
	return l.value, changed, nil
}

// trouble says why what the files have now is not used, and since when that is known; nil if it is.
func (l *loaded[T]) trouble() (since time.Time, err error) {
	if _, err := l.get(); err != nil {
		return time.Now(), err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since, l.unused
}

// Certificate is a certificate of this node as it is in use.
type Certificate struct {
	// Expires is when the first certificate of its chain expires.
	Expires time.Time
	// Err says why it cannot be used, or why changed files are not; nil if all is well. Since is when that began.
	Err   error
	Since time.Time
}

// certificateIn returns the certificate of a pair. Others are files that it needs, which have their own trouble.
func certificateIn(pair *loaded[*tls.Certificate], others ...func() (time.Time, error)) Certificate {
	cert, _ := pair.get()
	c := Certificate{Expires: expiry(cert)}
	for _, trouble := range append(others, pair.trouble) {
		if since, err := trouble(); err != nil {
			c.Since, c.Err = since, err
		}
	}
	if time.Now().After(c.Expires) {
		c.Since, c.Err = c.Expires, fmt.Errorf("certificate %s expired at %s; renew it: the file is read again without a restart",
			pair.files[0], c.Expires.UTC().Format(time.RFC3339))
	}
	return c
}

// expiry returns when the first certificate of a chain expires.
func expiry(pair *tls.Certificate) (first time.Time) {
	for _, der := range pair.Certificate {
		if cert, err := x509.ParseCertificate(der); err == nil && (first.IsZero() || cert.NotAfter.Before(first)) {
			first = cert.NotAfter
		}
	}
	return first
}

// Identities returns the names of a certificate's owner: the URIs if it has any, else the DNS names in lower case, else the common
// name. A name that looks like a URI but is not one is left out.
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
