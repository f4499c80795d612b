package h2proxy

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// request has the parsed headers of a call.
type request struct {
	method, kind string
	metadata     metadata.MD
	timeout      time.Duration
	hasTimeout   bool
}

// malformed is the error of a request that is not a gRPC call. Without a status, the stream is reset instead of answered.
type malformed struct {
	httpStatus int
	status     *status.Status
}

func (m *malformed) Error() string { return m.status.Message() }

func malformedf(httpStatus int, code codes.Code, format string, args ...any) error {
	return &malformed{httpStatus, status.Newf(code, format, args...)}
}

// parseRequest parses the headers of a call. It refuses the same requests as grpc-go, with the same codes.
func parseRequest(fields []hpack.HeaderField) (r request, err error) {
	var httpMethod string
	var authorities, hosts int
	for _, f := range fields {
		var wrong error
		switch f.Name {
		case ":method":
			httpMethod = f.Value
		case ":path":
			r.method = f.Value
		case ":authority":
			authorities++
		case "host":
			hosts++
		case "connection":
			return r, &malformed{}
		case contentTypeKey:
			if isGRPC(f.Value) {
				r.kind = f.Value
			}
		case timeoutKey:
			r.hasTimeout = true
			r.timeout, wrong = decodeTimeout(f.Value)
		}
		err = cmp.Or(wrong, err)
	}
	if err == nil {
		err = checkBinary(fields)
	}
	r.metadata = toMetadata(fields)
	switch {
	case authorities > 1 || hosts > 1:
		return r, malformedf(http.StatusBadRequest, codes.Internal, "the call has several :authority or host headers")
	case r.kind == "":
		return r, malformedf(http.StatusUnsupportedMediaType, codes.InvalidArgument, "the call has no content type of gRPC")
	case err != nil:
		return r, malformedf(http.StatusBadRequest, codes.Internal, "%s", status.Convert(err).Message())
	case authorities+hosts == 0:
		return r, malformedf(http.StatusBadRequest, codes.Internal, "the call has no :authority or host header")
	case httpMethod != http.MethodPost:
		return r, malformedf(http.StatusMethodNotAllowed, codes.Internal, "the HTTP method of the call is %.20q, not POST", httpMethod)
	case !strings.HasPrefix(r.method, "/") || strings.Count(r.method, "/") < 2:
		return r, malformedf(http.StatusOK, codes.Unimplemented, "the method name %.100q is not /SERVICE/METHOD", r.method)
	case r.hasTimeout && r.timeout <= 0:
		return r, malformedf(http.StatusOK, codes.DeadlineExceeded, "%v", context.DeadlineExceeded)
	}
	return r, nil
}

// context returns a context for the call, with its metadata and deadline.
func (r request) context(from context.Context) (context.Context, context.CancelFunc) {
	from = metadata.NewIncomingContext(from, r.metadata)
	if r.hasTimeout {
		return context.WithTimeout(from, r.timeout)
	}
	return context.WithCancel(from)
}

// declaredLength returns the content-length, -1 without one. It is not ok if the header is malformed or contradicts itself.
func declaredLength(fields []hpack.HeaderField) (n int64, ok bool) {
	n = -1
	for _, f := range fields {
		if f.Name != "content-length" {
			continue
		}
		length, err := strconv.ParseUint(f.Value, 10, 63)
		if err != nil || n >= 0 && n != int64(length) {
			return 0, false
		}
		n = int64(length)
	}
	return n, true
}

// isContradictory reports whether a caller has sent more data than its content-length or, if it has ended, less. c.mu is held.
func (s *stream) isContradictory(ended bool) bool {
	return s.declared >= 0 && (s.received > s.declared || ended && s.received < s.declared)
}
