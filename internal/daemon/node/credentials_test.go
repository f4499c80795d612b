package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
)

// nodeCredentials returns the credentials of nodes that trust each other, ordered by name, and the configuration of the first one as a
// client.
func nodeCredentials(t *testing.T, names ...string) (all []*nodecall.Credentials, first *tls.Config) {
	t.Helper()
	dir := t.TempDir()
	var authority *x509.Certificate
	var signer *ecdsa.PrivateKey
	all = make([]*nodecall.Credentials, len(names))
	for i, name := range append([]string{"ca"}, names...) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		cert := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		if i == 0 {
			cert.IsCA, cert.BasicConstraintsValid, cert.KeyUsage, cert.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
			authority, signer = cert, key
		}
		der, err := x509.CreateCertificate(rand.Reader, cert, authority, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		file := func(kind, suffix string, der []byte) string {
			path := filepath.Join(dir, name+suffix)
			if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		files := nodecall.TLS{CA: filepath.Join(dir, "ca.crt"), Cert: file("CERTIFICATE", ".crt", der), Key: file("PRIVATE KEY", ".key", private)}
		if i == 0 {
			continue
		}
		if i == 1 {
			first = &tls.Config{
				NextProtos: []string{"h2"}, InsecureSkipVerify: true,
				Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
			}
		}
		if all[i-1], err = nodecall.NewCredentials(files); err != nil {
			t.Fatal(err)
		}
	}
	return all, first
}
