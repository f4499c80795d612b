package fleet

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestCheckSaysWhy checks the errors of members that cannot be used, each for another reason. Members that can be used are tested with
// etcd.
func TestCheckSaysWhy(t *testing.T) {
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := refusing.Close(); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	untrusted := httptest.NewUnstartedServer(http.NotFoundHandler())
	untrusted.EnableHTTP2 = true
	untrusted.StartTLS()
	defer untrusted.Close()
	for _, tc := range []struct{ endpoint, says string }{
		{"http://" + refusing.Addr().String(), "connection refused"},
		{"http://" + silent.Addr().String(), "etcd does not answer in time"},
		{other.URL, "etcd"},
		{strings.Replace(other.URL, "http:", "https:", 1), "does not look like a TLS handshake"},
		{untrusted.URL, "certificate signed by unknown authority"},
	} {
		cluster, err := Connect(Etcd{Endpoints: []string{tc.endpoint}, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		members := cluster.Check(t.Context())
		if len(members) != 1 || members[0].Endpoint != tc.endpoint || members[0].Err == nil ||
			!strings.Contains(members[0].Err.Error(), tc.says) {
			t.Errorf("%s: got %+v, want an error that says %q", tc.endpoint, members, tc.says)
		}
	}
}
