package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

var http2Transport = sync.OnceValue(func() *http2.Transport { return &http2.Transport{AllowHTTP: true, DisableCompression: true} })

// registerHTTP2 is a registrar over a client connection of golang.org/x/net/http2, with what gRPC adds to HTTP/2 done by hand and next to
// nothing of the answer checked.
func registerHTTP2(ctx context.Context, path string, registered func(string) error) error {
	socket, err := dialListening(ctx, path)
	if err != nil {
		return err
	}
	conn, err := http2Transport().NewClientConn(socket)
	if err != nil {
		return errors.Join(err, socket.Close())
	}
	defer conn.Close()
	var info registerapi.PluginInfo
	if err := callHTTP2(ctx, conn, registerapi.Registration_GetInfo_FullMethodName, &registerapi.InfoRequest{}, &info); err != nil {
		return err
	}
	if err := registered(info.GetName()); err != nil {
		return err
	}
	return callHTTP2(ctx, conn, registerapi.Registration_NotifyRegistrationStatus_FullMethodName,
		&registerapi.RegistrationStatus{PluginRegistered: true}, &registerapi.RegistrationStatusResponse{})
}

// callHTTP2 makes a unary call. A message is preceded by a flag and its length.
func callHTTP2(ctx context.Context, conn *http2.ClientConn, method string, request, answer proto.Message) error {
	const prefix = 5
	body, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefix), request)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(body[1:], uint32(len(body)-prefix))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	response, err := conn.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if status := response.Trailer.Get("Grpc-Status"); status != "0" || len(data) < prefix {
		return fmt.Errorf("%s ended with status %q and %d bytes", method, status, len(data))
	}
	return proto.Unmarshal(data[prefix:], answer)
}
