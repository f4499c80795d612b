package controlapi

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/handlers/csi"
	"github.com/patchbay-dev/patchbay/plugin"
)

// lookUps counts the lookups of the registered names of launched plugins.
type lookUps struct {
	*drivers

	count int
}

func (l *lookUps) LaunchedAs(string) (plugin.Name, bool) {
	l.count++
	return plugin.Name{}, false
}

// TestFiltersLookUpLittle checks that the work for a past event does not grow with the number of types and names in a request.
func TestFiltersLookUpLittle(t *testing.T) {
	d := newDrivers()
	for i := range 1000 {
		d.past = append(d.past, event(uint64(10+i), "CSIPlugin"))
	}
	source, asked := &lookUps{drivers: d}, 0
	c := testControl(source, noneLaunched{}, handlersOf{"CSIPlugin": csi.NewHandler(csi.Options{})}, func(ptype, name string) bool {
		asked++
		return d.isRegistered(ptype, name)
	})
	mux := http.NewServeMux()
	mux.Handle(patchbayv1connect.NewControlServiceHandler(c))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	rpc := patchbayv1connect.NewControlServiceClient(server.Client(), server.URL)
	var others []string
	for i := range maxFilter {
		others = append(others, fmt.Sprint("other", i))
	}
	for _, wanted := range []*patchbayv1.WatchEventsRequest{
		{Types: others}, {Types: append(others[1:], "csi-node")}, {Names: others}, {Types: others, Names: others},
	} {
		source.count, asked = 0, 0
		events, err := rpc.WatchEvents(t.Context(), wanted)
		if err != nil {
			t.Fatal(err)
		}
		for events.Receive() {
		}
		if err := events.Err(); err != nil {
			t.Error(err)
		}
		if most := 2*len(d.past) + maxFilter; asked > most || source.count > most {
			t.Errorf("%d types and %d names: the registry is asked %d times, and %d times what was launched", len(wanted.GetTypes()),
				len(wanted.GetNames()), asked, source.count)
		}
	}
}

// TestNewestEnds checks that the search of past events ends when the caller has canceled the request.
func TestNewestEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	looked := 0
	err := sendPast(ctx, make([]plugin.Event, 100), func(plugin.Event) bool {
		looked++
		cancel()
		return true
	}, nil, nil)
	if connect.CodeOf(err) != connect.CodeCanceled || looked != 1 {
		t.Errorf("after %d events it ends with %v", looked, err)
	}
}
