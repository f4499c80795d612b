// Package certfile reads certificates, their keys and CAs from PEM files, so that a renewed certificate is used without a restart: [Files]
// reads the files again when they have changed, and keeps the previous content while they cannot be used.
package certfile

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/regular"
)

// Client returns the configuration of a TLS client that trusts the CA in the file ca, or the CAs of the system if ca is empty, and presents
// a certificate. If cert is empty, it presents none, and pair is nil.
func Client(ca, cert, key, serverName string) (config *tls.Config, pair *Files[*tls.Certificate], err error) {
	config = &tls.Config{MinVersion: tls.VersionTLS13, ServerName: serverName}
	if ca != "" {
		if config.RootCAs, err = ReadCA(ca); err != nil {
			return nil, nil, err
		}
	}
	if cert != "" {
		pair = Pair(cert, key)
		if _, err := pair.Get(); err != nil {
			return nil, nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.Get() }
	}
	return config, pair, nil
}

// Pair returns a [Files] that reads a certificate and its key.
func Pair(cert, key string) *Files[*tls.Certificate] {
	return &Files[*tls.Certificate]{Names: []string{cert, key}, Load: func() (*tls.Certificate, error) {
		certText, certErr := regular.Read(cert)
		keyText, keyErr := regular.Read(key)
		pair, err := tls.X509KeyPair(certText, keyText)
		if err = cmp.Or(certErr, keyErr, err); err != nil {
			return nil, fmt.Errorf("cannot read certificate %s and its key: %w", cert, err)
		}
		return &pair, nil
	}}
}

// ReadCA returns the certificates in the file of a CA.
func ReadCA(file string) (*x509.CertPool, error) {
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

// Files reads a value from files whose content may change. The exported fields are set before the first call of a method; then it is safe
// for concurrent use.
type Files[T any] struct {
	Names   []string
	Load    func() (T, error)
	Changed func(T) // called by Get after a change; nil for none

	mu     sync.Mutex
	value  T
	from   []fs.FileInfo // describes the files from which value was loaded; nil before
	unused error         // the error of the present content; nil if it is used
	since  time.Time     // the time of the first such error, or when value was loaded
}

// Get returns the content of the files, or the previous content if they cannot be used, for example while they are replaced. The first call
// reads them, and returns an error if they cannot be used.
func (f *Files[T]) Get() (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from := make([]fs.FileInfo, len(f.Names))
	for i, file := range f.Names {
		from[i], _ = os.Stat(file) // nil if that fails
	}
	if slices.EqualFunc(from, f.from, isSame) {
		f.unused = nil
		return f.value, nil
	}
	first := f.from == nil
	value, err := f.Load()
	if first && err != nil {
		return value, err
	}
	if err == nil || f.unused == nil {
		f.since = time.Now()
	}
	if f.unused = err; err == nil {
		f.value, f.from = value, from
		if !first && f.Changed != nil {
			f.Changed(value)
		}
	}
	return f.value, nil
}

// isSame reports whether a file is unchanged. Files that replace each other within a tick of the clock have the same time.
func isSame(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// Problem returns the reason why the present content of the files is not used, and since when. Without an error, since is when the content
// was first used. It may only be called after Get has succeeded.
func (f *Files[T]) Problem() (since time.Time, err error) {
	_, _ = f.Get()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.since, f.unused
}

// Certificate is a certificate that is in use.
type Certificate struct {
	Expires time.Time // when the first certificate of its chain expires
	Err     error     // the reason why the certificate or the present content of its files cannot be used
	Since   time.Time // when that began
}

// Of returns the state of the certificate in pair. Its error is that the certificate has expired, that of pair, or that of the last of
// others with an error, in this order.
func Of(pair *Files[*tls.Certificate], others ...func() (time.Time, error)) Certificate {
	cert, _ := pair.Get()
	first := slices.MinFunc(Chain(cert), func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	c := Certificate{Expires: first.NotAfter}
	for _, problem := range append(others, pair.Problem) {
		if since, err := problem(); err != nil {
			c.Since, c.Err = since, err
		}
	}
	if time.Now().After(c.Expires) {
		c.Since, c.Err = c.Expires, fmt.Errorf("certificate %s expired at %s; renew it: the file is read again without a restart",
			pair.Names[0], c.Expires.UTC().Format(time.RFC3339))
	}
	return c
}

// Chain returns the chain of certificates of a pair.
func Chain(pair *tls.Certificate) []*x509.Certificate {
	chain, err := x509.ParseCertificates(slices.Concat(pair.Certificate...))
	if err != nil {
		return []*x509.Certificate{pair.Leaf}
	}
	return chain
}
