package rig

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
)

// Page is a page of documentation that a test makes of what it checks. With the flag -update the test writes it.
type Page struct {
	path   string
	update *bool
}

// NewPage returns the page at a path relative to the package of the test, for a variable of that package: it defines the flag.
func NewPage(path string) Page { return Page{path, flag.Bool("update", false, "write "+path)} }

// Check reports an error unless the page is what it should be.
func (p Page) Check(t testing.TB, want []byte) {
	t.Helper()
	if *p.update {
		if err := os.WriteFile(p.path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(p.path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not current (%v): run this test with -update", p.path, err)
	}
}

// Messages reads the messages of the control API that a command lists with -o json.
func Messages[M any, P interface {
	*M
	proto.Message
}](text []byte) ([]*M, error) {
	var parts []json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return nil, err
	}
	all := make([]*M, len(parts))
	for i, part := range parts {
		all[i] = new(M)
		if err := protojson.Unmarshal(part, P(all[i])); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// List returns what a daemon lists.
func List(t testing.TB, c *client.Client) *patchbayv1.ListPluginsResponse {
	t.Helper()
	l, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}
