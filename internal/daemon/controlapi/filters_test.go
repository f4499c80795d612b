package controlapi

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// askControl makes a request as user 1000, who has the role read; encoding is that of the body.
func askControl(procedure, contentType, encoding string, body []byte) *httptest.ResponseRecorder {
	g := testGuard("")
	g.Replace(policyFor(config.Roles{Read: config.Members{Users: []string{"1000"}}}))
	c := testControl(&recorded{}, noneLaunched{}, nil, nothingRegistered)
	c.Authorizer = g
	handler := c.handler()
	r := httptest.NewRequest(http.MethodPost, procedure, bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	if encoding != "" {
		r.Header.Set("Content-Encoding", encoding)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r.WithContext(access.WithCaller(r.Context(), access.NewCaller(sock.Credentials{UID: 1000}))))
	return w
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFiltersAreBounded checks that a request cannot have so many values that comparing or keeping them is expensive.
func TestFiltersAreBounded(t *testing.T) {
	t.Parallel()
	many, labels := make([]string, maxFilter+1), map[string]string{}
	for i := range many {
		labels[strings.Repeat("l", i)] = ""
	}
	envelope := func(b []byte) []byte { return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...) }
	const one, stream = "application/proto", "application/connect+proto"
	for _, test := range []struct {
		procedure, kind string
		body            []byte
		refused         string
	}{
		{patchbayv1connect.ControlServiceListPluginsProcedure, one, marshal(t, &patchbayv1.ListPluginsRequest{Names: many}), "names"},
		{patchbayv1connect.ControlServiceListPluginsProcedure, one, marshal(t, &patchbayv1.ListPluginsRequest{Names: many[1:]}), ""},
		{patchbayv1connect.ControlServiceWatchEventsProcedure, stream, envelope(marshal(t, &patchbayv1.WatchEventsRequest{Kinds: many})), "kinds"},
		{patchbayv1connect.ControlServiceWatchEventsProcedure, stream, envelope(marshal(t, &patchbayv1.WatchEventsRequest{Kinds: many[1:]})), ""},
		{
			patchbayv1connect.FleetServiceListFleetPluginsProcedure, one,
			marshal(t, &patchbayv1.ListFleetPluginsRequest{Filter: &patchbayv1.FleetFilter{Labels: labels}}), "filter.labels",
		},
		{patchbayv1connect.DeviceServiceListDevicesProcedure, one, marshal(t, &patchbayv1.ListDevicesRequest{Resources: many}), "resources"},
	} {
		answer := askControl(test.procedure, test.kind, "", test.body).Body.String()
		refused := strings.Contains(answer, "invalid_argument") && strings.Contains(answer, "the field "+test.refused+" has 257 values")
		if refused != (test.refused != "") {
			t.Errorf("%s is answered with %q, want refused: %q", test.procedure, answer, test.refused)
		}
	}
	devices := make([]string, maxFilter+1)
	if err := checkLists(&patchbayv1.AllocateDevicesRequest{Devices: devices}); err != nil {
		t.Error(err)
	}
	if err := checkLists(&patchbayv1.AllocateDevicesRequest{Devices: make([]string, maxDevices+1)}); err == nil {
		t.Error("more devices than there may be pass")
	}
}

// TestCompressedRequests checks that a compressed request is refused, because it may be far larger than the bytes that count, and that a
// request for a compressed answer succeeds.
func TestCompressedRequests(t *testing.T) {
	t.Parallel()
	var body bytes.Buffer
	w := gzip.NewWriter(&body)
	_, _ = w.Write(marshal(t, &patchbayv1.ListPluginsRequest{Names: []string{strings.Repeat("n", 60<<10)}}))
	_ = w.Close()
	answer := askControl(patchbayv1connect.ControlServiceListPluginsProcedure, "application/proto", "gzip", body.Bytes())
	if answer.Code != http.StatusNotImplemented || !strings.Contains(answer.Body.String(), "unknown compression") {
		t.Errorf("it is answered with %d: %s", answer.Code, answer.Body)
	}
}
