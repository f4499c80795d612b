package fleet_test

import (
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
)

// TestRemembersCalls checks that a lookup keeps the nodes of instances that were called, but not those of calls that failed.
func TestRemembersCalls(t *testing.T) {
	l, remembered := fleet.LookupWithNode(t)
	d := &nodecall.Dialer{Find: l.Find, Credentials: selfSigned(t)}
	defer d.Close()
	stream := func() error {
		_, err := d.Dial("T", "n", nodecall.Policy{}).NewStream(t.Context(), &grpc.StreamDesc{}, "/a.B/C")
		return err
	}
	if err := stream(); err == nil || remembered() > 0 {
		t.Errorf("%d nodes after a call that failed: %v", remembered(), err)
	}
	found, err := l.Find(t.Context(), fleet.Filter{Types: []string{"T"}, Names: []string{"n"}, Few: 1})
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v", found, err)
	}
	if found[0].Called(); remembered() != 1 {
		t.Errorf("%d nodes after a call", remembered())
	}
}

func selfSigned(t *testing.T) *nodecall.Credentials {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	file := func(kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), "pem")
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	files := nodecall.TLS{Cert: file("CERTIFICATE", pair.Certificate[0]), Key: file("PRIVATE KEY", key)}
	files.CA = files.Cert
	credentials, err := nodecall.NewCredentials(files)
	if err != nil {
		t.Fatal(err)
	}
	return credentials
}
