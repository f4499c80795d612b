package controlapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// noneLaunched launches nothing.
type noneLaunched struct{}

func (noneLaunched) Plugins() []plugin.LaunchStatus                 { return nil }
func (noneLaunched) Start(string) error                             { return launcher.ErrUnknown }
func (noneLaunched) Stop(string) error                              { return launcher.ErrUnknown }
func (noneLaunched) Restart(context.Context, string) error          { return launcher.ErrUnknown }
func (noneLaunched) AwaitReplacement(context.Context, string) error { return launcher.ErrUnknown }
func (noneLaunched) Log(string) (plugin.Log, error)                 { return nil, launcher.ErrUnknown }

// FuzzControl sends arbitrary requests to the control API, in each of its protocols. The API answers, does not panic, and has a reason for
// each refusal.
func FuzzControl(f *testing.F) {
	encode := func(m proto.Message) []byte {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		return data
	}
	envelope := func(data []byte) []byte { return append([]byte{0, 0, 0, 0, byte(len(data))}, data...) }
	wait := encode(&patchbayv1.WaitForPluginRequest{Type: "A", Name: "one", For: patchbayv1.WaitFor_WAIT_FOR_REGISTERED})
	f.Add(patchbayv1connect.ControlServiceGetVersionProcedure, "application/json", []byte("{}"))
	f.Add(patchbayv1connect.ControlServiceListPluginsProcedure, "application/json", []byte(`{"types":["A"],"states":["\u0000"]}`))
	f.Add(patchbayv1connect.ControlServiceGetPluginProcedure, "application/proto", encode(&patchbayv1.GetPluginRequest{Type: "A", Name: "one"}))
	f.Add(patchbayv1connect.ControlServiceWatchEventsProcedure, "application/connect+json", envelope([]byte(`{"follow":true,"tail":3}`)))
	f.Add(patchbayv1connect.ControlServiceWaitForPluginProcedure, "application/grpc", envelope(wait))
	f.Add(patchbayv1connect.ControlServiceWaitForPluginProcedure, "application/grpc-web+proto", envelope(wait))
	f.Add(patchbayv1connect.ControlServiceListConditionsProcedure, "application/grpc+json", envelope([]byte("{}")))
	f.Add(patchbayv1connect.ControlServiceListLaunchedProcedure, "application/proto", []byte{})
	f.Add(patchbayv1connect.ControlServiceLaunchPluginProcedure, "application/json", []byte(`{"name":"x"}`))
	f.Add(patchbayv1connect.ControlServiceStopPluginProcedure, "application/json", []byte(`{"name":"../x"}`))
	f.Add(patchbayv1connect.ControlServiceRestartPluginProcedure, "application/json", []byte(`{"name":""}`))
	f.Add(patchbayv1connect.ControlServiceReadLogsProcedure, "application/connect+proto",
		envelope(encode(&patchbayv1.ReadLogsRequest{Name: "x", Follow: true})))
	f.Add(patchbayv1connect.ControlServiceReloadProcedure, "application/json", []byte(`{}`))
	f.Add(patchbayv1connect.FleetServiceListNodesProcedure, "application/json", []byte(`{}`))
	f.Add(patchbayv1connect.FleetServiceWaitForFleetPluginProcedure, "application/json", []byte(`{"type":"A","name":"x"}`))
	f.Add(patchbayv1connect.DeviceServiceAllocateDevicesProcedure, "application/json", []byte(`{"resource":"a/b","count":4294967295}`))

	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, procedure, contentType string, body []byte) {
		live := make(chan plugin.Event, 1)
		live <- event(2, "A")
		close(live)
		c := testControl(&recorded{
			plugins: []plugin.Status{{Type: "A", Name: "one", State: plugin.StateRegistered, Current: true}},
			past:    []plugin.Event{event(1, "A")},
			live:    live,
		}, noneLaunched{}, nil, nothingRegistered)
		mux := http.NewServeMux()
		limit := connect.WithReadMaxBytes(maxRequest)
		mux.Handle(patchbayv1connect.NewControlServiceHandler(c, limit))
		mux.Handle(patchbayv1connect.NewFleetServiceHandler(c, limit))
		mux.Handle(patchbayv1connect.NewDeviceServiceHandler(c, limit))

		// A wait ends with its caller, whose context is already done.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(body))
		request.URL.Path = procedure
		request.Header.Set("Content-Type", contentType)
		request.ProtoMajor, request.ProtoMinor, request.Proto = 2, 0, "HTTP/2.0"
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, request)
		result := answer.Result()
		defer result.Body.Close()
		if result.StatusCode == http.StatusOK || contentType != "application/json" || !strings.HasPrefix(procedure, "/patchbay.v1.") {
			return
		}
		var reason struct{ Code, Message string }
		if result.Header.Get("Content-Type") == "application/json" &&
			(json.Unmarshal(answer.Body.Bytes(), &reason) != nil || reason.Code == "" || reason.Code == "unknown") {
			t.Errorf("%s refuses %q with %q", procedure, body, answer.Body)
		}
	})
}
