package page_test

import (
	"bufio"
	"context"
	"fmt"
	"iter"
	"net/http/httptest"
	"strings"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/daemon/page"
)

// still is a host of one plugin, in which nothing happens.
type still struct{}

func (still) Plugins() []*patchbayv1.Plugin {
	return []*patchbayv1.Plugin{{Type: "Storage", Name: "disk", State: "registered"}}
}
func (still) Launched() []*patchbayv1.LaunchedPlugin          { return nil }
func (still) Conditions() []*patchbayv1.Condition             { return nil }
func (still) EventsOf(_, _ string) []*patchbayv1.Event        { return nil }
func (still) LastEvents(int) []*patchbayv1.Event              { return nil }
func (still) Events(context.Context) <-chan *patchbayv1.Event { return make(chan *patchbayv1.Event) }
func (still) About() (*patchbayv1.GetVersionResponse, *patchbayv1.GetConfigurationResponse) {
	return nil, nil
}
func (still) Fleet() page.Fleet { return nil }
func (still) Log(_ context.Context, name string, _ int) (iter.Seq[*patchbayv1.LogRecord], error) {
	return nil, fmt.Errorf("plugin %s is not launched", name)
}

// A host shows its plugins on a page. What the page itself reads is a stream, whose first message has everything.
func Example() {
	server := httptest.NewServer(page.New(still{}))
	defer server.Close()

	for _, path := range []string{"/", "/api/log?name=disk"} {
		answer, err := server.Client().Get(server.URL + path)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(path, answer.StatusCode)
		answer.Body.Close()
	}
	stream, err := server.Client().Get(server.URL + "/api/stream")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stream.Body.Close()
	lines := bufio.NewScanner(stream.Body)
	lines.Scan()
	fmt.Println(lines.Text())
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			fmt.Println(strings.Contains(data, `"name":"disk"`))
			break
		}
	}
	// Output:
	// / 200
	// /api/log?name=disk 404
	// event: state
	// true
}
