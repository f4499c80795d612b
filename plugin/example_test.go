package plugin_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
)

// signatures is a repository in memory.
type signatures map[plugin.Pin][]plugin.Metadata

func (s signatures) ListMetadata(
	_ context.Context, pin plugin.Pin, keys []string, _ plugin.Page,
) (entries []plugin.Metadata, nextToken string, err error) {
	for _, entry := range s[pin] {
		if len(keys) == 0 || slices.Contains(keys, entry.Key) {
			entries = append(entries, entry)
		}
	}
	return entries, "", nil // there is only one page
}

// The plugins of a host can list the metadata in the Repository of its Config.
func ExampleRepository() {
	pin := plugin.Pin{PackageName: "tools/hello", InstanceID: "n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCggC"}
	config := plugin.Config{
		ServiceURL: "https://packages.example.com",
		Repository: signatures{pin: {{Key: "owner", Value: []byte("us")}, {Key: "signature", Value: []byte("good")}}},
	}
	entries, _, err := config.Repository.ListMetadata(context.Background(), pin, []string{"signature"}, plugin.Page{})
	fmt.Println(pin, string(entries[0].Value), err)
	// Output: tools/hello:n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCggC good <nil>
}

func TestParseName(t *testing.T) {
	for text, want := range map[string]plugin.Name{
		"T/n": {Type: "T", Name: "n"}, "T/example.com/gpu": {Type: "T", Name: "example.com/gpu"}, "T//": {Type: "T", Name: "/"},
	} {
		if got, ok := plugin.ParseName(text); got != want || !ok || got.String() != text {
			t.Errorf("ParseName(%q) = %+v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "T", "/", "T/", "/n"} {
		if got, ok := plugin.ParseName(text); ok {
			t.Errorf("ParseName(%q) = %+v, true", text, got)
		}
	}
}
