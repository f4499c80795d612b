package h2proxy

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// described answers a call with what a handler learns of its headers.
func described(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	deadline, has := ctx.Deadline()
	left := time.Until(deadline)
	unit := "none"
	switch {
	case has && left > 365*24*time.Hour:
		unit = "years"
	case has && left > 24*time.Hour:
		unit = "days"
	case has && left > time.Minute:
		unit = "minutes"
	case has:
		unit = "less"
	}
	return status.Errorf(codes.Aborted, "%s %q %q", unit, md["x-text"], md["x-data-bin"])
}

// requests returns headers of calls with everything that a proxy reads. Upper case in a content type, which HTTP allows and grpc-go refuses,
// is not among them.
func requests() (all [][]string) {
	usual := []string{
		":method", "POST", ":scheme", "http", ":path", "/a.B/C", ":authority", "x", "content-type", "application/grpc", "te", "trailers",
	}
	change := func(name, value string) {
		var headers []string
		for i := 0; i < len(usual); i += 2 {
			switch {
			case usual[i] != name:
				headers = append(headers, usual[i], usual[i+1])
			case value != "-":
				headers = append(headers, name, value)
			}
		}
		all = append(all, headers)
	}
	for name, values := range map[string][]string{
		":method":    {"GET", "post", "", "-"},
		":path":      {"a.B/C", "/", "/a", "/a/", "//", "", "/a/b/c", "-"},
		":authority": {"", "-"},
		"te":         {"", "-", "gzip"},
		"content-type": {
			"", "-", "application/grpc+proto", "application/grpc;x", "application/grpcx", "text/plain", "application/grpc+",
		},
	} {
		for _, value := range values {
			change(name, value)
		}
	}
	for name, values := range map[string][]string{
		timeoutKey: {
			"", "1", "S", "1S", "1M", "1H", "99999999H", "100000000H", "0n", "0S", "-1S", "+1S", " 1S", "1S ", "1x", "1s", "1.5S", "1e3S", "0x1S",
			"99999999S", "99999999m", "0000001H", "00000000001H",
		},
		"x-data-bin":   {"", "AA", "AA==", "AAA=", "AAAA", "A", "A=", "AA=", "!", "AA,AA", "A A", "_-8"},
		"x-text":       {"", "a", "a, b"},
		"content-type": {"application/grpc", "text/plain"},
		"connection":   {"close", ""},
		"host":         {"x", ""},
		"user-agent":   {"u"}, "te": {"x"}, "grpc-encoding": {"identity"}, "grpc-accept-encoding": {"gzip"},
		"grpc-status": {"5"}, "grpc-message": {"%"}, "grpc-message-type": {"x"},
	} {
		for _, value := range values {
			all = append(all, append(slices.Clone(usual), name, value))
		}
	}
	for _, more := range [][]string{
		{"host", "a", "host", "b"}, {timeoutKey, "1x", timeoutKey, "1S"}, {timeoutKey, "1H", timeoutKey, "1S"}, {"x-text", "a", "x-text", "b"},
		{"X-Upper", "a"},
	} {
		all = append(all, append(slices.Clone(usual), more...))
	}
	return all
}

// callAt makes a call with some headers and data, and returns how it ends.
func callAt(t *testing.T, path string, headers []string, data ...string) string {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p := newPeer(t, conn)
	if _, err := p.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	_ = p.WriteSettings()
	p.headers(1, p.fields(headers...), len(data) == 0)
	for i, d := range data {
		_ = p.WriteData(1, i == len(data)-1, []byte(d))
	}
	got := p.status(1)
	if answer := strings.SplitN(got, " ", 3); len(answer) == 3 && answer[1] != "10" {
		got = answer[0] + " " + answer[1] // the texts differ
	}
	return got
}

// serveUntilEnd serves on a new socket, and returns its path.
func serveUntilEnd(t *testing.T, serve func(l net.Listener) error, stop func()) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = serve(l)
	}()
	t.Cleanup(func() {
		stop()
		<-served
	})
	return path
}

// TestRequestsLikeGRPC compares what a Server makes of the headers of a call with what grpc-go makes of them.
func TestRequestsLikeGRPC(t *testing.T) {
	theirs := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error { return described(s.Context()) }))
	peer := serveUntilEnd(t, theirs.Serve, theirs.Stop)
	ours := newBed(t, DefaultLimits, func(caller grpc.ServerStream) error { return described(caller.Context()) })
	for _, headers := range requests() {
		if got, want := callAt(t, ours.path, headers), callAt(t, peer, headers); got != want {
			t.Errorf("%q: got %s, grpc-go %s", headers, got, want)
		}
	}
}

// TestHTTPRequestsLikeGRPC compares what an HTTPHandler accepts with what grpc-go behind net/http accepts.
func TestHTTPRequestsLikeGRPC(t *testing.T) {
	theirs := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error { return described(s.Context()) }))
	defer theirs.Stop()
	ours := HTTPHandler{
		Budget: NewBudget(DefaultLimits, 1, func(uint32, Reason, bool) {}), UID: func(*http.Request) uint32 { return 7 },
		Handle: func(caller grpc.ServerStream) error { return described(caller.Context()) },
	}
	own, peer := serveHTTP(t, ours), serveHTTP(t, theirs)
	for _, headers := range requests() {
		if last := headers[len(headers)-1]; last == "" || last == "0n" || last == "0S" || len(headers) > 14 {
			continue // only the other transport of grpc-go refuses such a timeout, and some headers that come twice
		}
		got, want := callAt(t, own, headers), callAt(t, peer, headers)
		if ran := strings.Contains(want, " 10 "); ran != strings.Contains(got, " 10 ") || ran && got != want {
			t.Errorf("%q: got %s, grpc-go %s", headers, got, want)
		}
	}
}

// serveHTTP serves HTTP/2 without encryption, and returns the path of the socket.
func serveHTTP(t *testing.T, handler http.Handler) string {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: handler, Protocols: protocols, ReadHeaderTimeout: patience}
	return serveUntilEnd(t, s.Serve, func() { _ = s.Close() })
}

// TestContentLengthLikeHTTP compares what a Server makes of a content-length with what grpc-go behind net/http makes of it. The other
// transport of grpc-go does not read it.
func TestContentLengthLikeHTTP(t *testing.T) {
	readAll := func(receive func() error) error {
		for {
			if err := receive(); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
	}
	theirs := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		return readAll(func() error { return s.RecvMsg(new(emptypb.Empty)) })
	}))
	defer theirs.Stop()
	peer := serveHTTP(t, theirs)
	ours := newBed(t, DefaultLimits, func(caller grpc.ServerStream) error {
		return readAll(func() error { return caller.RecvMsg(new(Fragment)) })
	})
	message := "\x00\x00\x00\x00\x00"
	for _, c := range []struct {
		length string
		data   []string
	}{
		{"5", []string{message}}, {"5", []string{message[:2], message[2:]}}, {"10", []string{message, message}}, {"5", []string{message, ""}},
		{"4", []string{message}}, {"6", []string{message}}, {"0", []string{message}}, {"9", []string{message, message}}, {"0", []string{""}},
		{"x", []string{message}}, {"-1", []string{message}}, {"99999999999999999999", []string{message}}, {"", []string{message}},
	} {
		headers := []string{
			":method", "POST", ":scheme", "http", ":path", "/a.B/C", ":authority", "x", "content-type", "application/grpc", "te", "trailers",
			"content-length", c.length,
		}
		accepted := func(outcome string) bool { return strings.HasSuffix(outcome, " 0") }
		got, want := callAt(t, ours.path, headers, c.data...), callAt(t, peer, headers, c.data...)
		if accepted(got) != accepted(want) || !accepted(got) && got != "PROTOCOL_ERROR" {
			t.Errorf("length %q, data %q: got %s, grpc-go %s", c.length, c.data, got, want)
		}
	}
	for _, lengths := range [][]string{{"content-length", "5", "content-length", "6"}, {"content-length", "5"}} {
		headers := append([]string{
			":method", "POST", ":scheme", "http", ":path", "/a.B/C", ":authority", "x", "content-type", "application/grpc", "te", "trailers",
		}, lengths...)
		var data []string
		if len(lengths) > 2 {
			data = []string{message}
		}
		if got := callAt(t, ours.path, headers, data...); got != "PROTOCOL_ERROR" { // net/http is more tolerant
			t.Errorf("lengths %q, data %q: got %s", lengths, data, got)
		}
	}
}

// responses are headers and trailers of a plugin, with what is in them that a proxy reads; headers are nil for trailers only.
func responses() (all [][2][]string) {
	details := func(code codes.Code) string {
		b, _ := proto.Marshal(&spb.Status{Code: int32(code), Message: "details"})
		return base64.RawStdEncoding.EncodeToString(b)
	}
	ok, end := []string{":status", "200", "content-type", "application/grpc"}, []string{"grpc-status", "0"}
	for _, kind := range []string{"", "text/plain", "application/grpc+proto", "application/grpcx", "application/grpc;x"} {
		for _, code := range []string{"200", "400", "401", "403", "404", "429", "500", "502", "503", "504", "302", "x"} {
			headers := []string{":status", code, "content-type", kind}
			all = append(all, [2][]string{headers, end}, [2][]string{nil, append(slices.Clone(headers), "grpc-status", "5", "grpc-message", "m")})
		}
	}
	for _, trailers := range [][]string{
		end, {}, {"grpc-status", ""}, {"grpc-status", "x"}, {"grpc-status", "-1"}, {"grpc-status", "16"}, {"grpc-status", "17"},
		{"grpc-status", "007"},
		{"grpc-status", "4294967296"}, {"grpc-status", "5", "grpc-message", "a%20b%"}, {"grpc-status", "5", "grpc-message", "%zz%41%4"},
		{"grpc-status", "5", "grpc-message", "%C3%BC"}, {"grpc-status", "5", "grpc-message", ""},
		{"grpc-status", "5", "grpc-status-details-bin", details(codes.NotFound)},
		{"grpc-status", "5", "grpc-status-details-bin", details(codes.Aborted)},
		{"grpc-status", "5", "grpc-status-details-bin", "!"}, {"grpc-status", "5", "grpc-status-details-bin", "AAAA"},
		{"grpc-status", "0", "grpc-status-details-bin", details(codes.NotFound)}, {"grpc-status", "0", "x-data-bin", "!"},
		{"grpc-status", "5", "x-data-bin", "A="}, {"grpc-status", "0", "x-text", "a"},
	} {
		all = append(all, [2][]string{ok, trailers}, [2][]string{nil, append(slices.Clone(ok), trailers...)})
	}
	return append(all, [2][]string{append(slices.Clone(ok), "x-data-bin", "!"), end},
		[2][]string{append(slices.Clone(ok), "x-data-bin", "AA"), end},
		[2][]string{{"content-type", "application/grpc"}, end}, [2][]string{{"content-type", "text/plain"}, end})
}

// TestResponsesLikeGRPC compares what a Client makes of the headers of a plugin with what grpc-go makes of them.
func TestResponsesLikeGRPC(t *testing.T) {
	budget := NewBudget(DefaultLimits, 1, func(uint32, Reason, bool) {})
	for _, response := range responses() {
		dial := func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			go answerWith(t, there, response[0], response[1])
			return here, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		ours := NewClient(ClientConfig{Timeout: patience, Idle: patience, Pause: patience, Dial: dial})
		got := outcome(ours.NewStream(ctx, nil, "/a.B/C", CallOption{Budget: budget, UID: 7}))(new(Fragment))
		_ = ours.Close()
		theirs, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
		want := outcome(theirs.NewStream(ctx, desc, "/a.B/C"))(new(emptypb.Empty))
		_ = theirs.Close()
		cancel()
		if got != want {
			t.Errorf("%q: got %s, grpc-go %s", response, got, want)
		}
	}
}

// outcome returns how a call ends, as its code, its metadata, and its message if that is the plugin's.
func outcome(s grpc.ClientStream, err error) func(m any) string {
	return func(m any) string {
		if err != nil {
			return err.Error()
		}
		header, _ := s.Header()
		for err = s.RecvMsg(m); err == nil; {
			err = s.RecvMsg(m)
		}
		code, text := codes.OK, ""
		if !errors.Is(err, io.EOF) {
			code, text = status.Code(err), status.Convert(err).Message()
		}
		if code != codes.NotFound {
			text = "" // of its own
		}
		return fmt.Sprintf("%v %q %q %q %q", code, text, header["x-data-bin"], s.Trailer()["x-text"], s.Trailer()["x-data-bin"])
	}
}

// answerWith answers one call.
func answerWith(t *testing.T, conn net.Conn, headers, trailers []string) {
	defer conn.Close()
	p := newPeer(t, conn)
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := conn.Read(preface); err != nil {
		return
	}
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		_ = p.WriteSettings()
	}()
	for {
		f, err := p.ReadFrame()
		if err != nil {
			return
		}
		if f, ok := f.(*http2.MetaHeadersFrame); ok {
			go func() {
				<-settled
				if headers != nil {
					_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: f.StreamID, BlockFragment: p.fields(headers...), EndHeaders: true})
				}
				_ = p.WriteHeaders(http2.HeadersFrameParam{
					StreamID: f.StreamID, BlockFragment: p.fields(trailers...), EndHeaders: true, EndStream: true,
				})
			}()
		}
	}
}
