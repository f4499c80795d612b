package plugin_test

import (
	"context"
	"fmt"
	"slices"

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
	return entries, "", nil // all of them are one page
}

// A host gives its plugins the metadata that the Repository of its Config has.
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
