package cli_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// badEtcd etcd KIND makes an etcd that cannot be used, and $DIR/fleet.yaml, a configuration with it. The kinds are refusing: nobody
// listens; silent: it accepts and says nothing; plain: it has no TLS where TLS is expected; untrusted: nobody knows who signed its
// certificate.
func badEtcd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: etcd KIND")
	}
	var endpoint string
	switch args[0] {
	case "refusing", "silent":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ts.Check(err)
		if args[0] == "refusing" {
			ts.Check(l.Close())
		} else {
			ts.Defer(func() { l.Close() })
		}
		endpoint = "http://" + l.Addr().String()
	case "plain":
		server := httptest.NewServer(http.NotFoundHandler())
		ts.Defer(server.Close)
		endpoint = strings.Replace(server.URL, "http://", "https://", 1)
	case "untrusted":
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.EnableHTTP2 = true
		server.StartTLS()
		ts.Defer(server.Close)
		endpoint = server.URL
	default:
		ts.Fatalf("unknown kind %q", args[0])
	}
	text := fmt.Sprintf("apiVersion: patchbay.dev/v1alpha1\nkind: Config\nfleet:\n  etcd:\n    endpoints: [%q]\n", endpoint)
	ts.Check(os.WriteFile(ts.Getenv("DIR")+"/fleet.yaml", []byte(text), 0o600))
}
