package h2proxy

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// contentType is the content type of gRPC calls, without a subtype.
const contentType = "application/grpc"

// isGRPC reports whether a content type is that of gRPC, with any subtype.
func isGRPC(kind string) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(kind), contentType)
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// sizeOf returns the size of headers as HTTP/2 counts it.
func sizeOf(fields []hpack.HeaderField) (size int) {
	for _, f := range fields {
		size += int(f.Size())
	}
	return size
}

// Headers of the gRPC protocol.
const (
	statusKey, messageKey, detailsKey = "grpc-status", "grpc-message", "grpc-status-details-bin"
	timeoutKey, contentTypeKey        = "grpc-timeout", "content-type"
)

// reserved are headers that do not belong to the metadata. Headers about compression do: a proxy forwards them with the compressed data.
var reserved = []string{
	"host", "user-agent", "te", "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "content-length", "trailer",
	"grpc-message-type", timeoutKey, statusKey, messageKey, detailsKey,
}

// toMetadata returns the metadata in headers that checkBinary has accepted.
func toMetadata(fields []hpack.HeaderField) metadata.MD {
	md := make(metadata.MD, len(fields))
	for _, f := range fields {
		if f.IsPseudo() || slices.Contains(reserved, f.Name) {
			continue
		}
		value := f.Value
		if strings.HasSuffix(f.Name, "-bin") {
			decoded, err := decodeBinary(value)
			if err != nil {
				continue
			}
			value = string(decoded)
		}
		md[f.Name] = append(md[f.Name], value)
	}
	return md
}

func checkBinary(fields []hpack.HeaderField) error {
	for _, f := range fields {
		if strings.HasSuffix(f.Name, "-bin") {
			if _, err := decodeBinary(f.Value); err != nil {
				return status.Errorf(codes.Internal, "the header %s is malformed: %v", f.Name, err)
			}
		}
	}
	return nil
}

// decodeBinary decodes a binary header, with or without padding.
func decodeBinary(value string) ([]byte, error) {
	if len(value)%4 == 0 {
		return base64.StdEncoding.DecodeString(value)
	}
	return base64.RawStdEncoding.DecodeString(value)
}

func addMetadata(fields []hpack.HeaderField, md metadata.MD) []hpack.HeaderField {
	for key, values := range md {
		if key = strings.ToLower(key); strings.HasPrefix(key, ":") || key == contentTypeKey || slices.Contains(reserved, key) {
			continue
		}
		for _, value := range values {
			if strings.HasSuffix(key, "-bin") {
				value = base64.RawStdEncoding.EncodeToString([]byte(value))
			}
			fields = append(fields, hpack.HeaderField{Name: key, Value: value})
		}
	}
	return fields
}

func valueOf(fields []hpack.HeaderField, name string) string {
	for _, f := range fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

func statusFields(fields []hpack.HeaderField, s *status.Status) []hpack.HeaderField {
	fields = append(fields, hpack.HeaderField{Name: statusKey, Value: strconv.Itoa(int(s.Code()))})
	if s.Message() != "" {
		fields = append(fields, hpack.HeaderField{Name: messageKey, Value: encodeMessage(s.Message())})
	}
	if p := s.Proto(); len(p.GetDetails()) > 0 {
		if b, err := proto.Marshal(p); err == nil {
			fields = append(fields, hpack.HeaderField{Name: detailsKey, Value: base64.RawStdEncoding.EncodeToString(b)})
		}
	}
	return fields
}

// StatusOf returns the status in trailers; nil for OK.
func StatusOf(fields []hpack.HeaderField) error {
	if err := checkBinary(fields); err != nil {
		return err
	}
	text := valueOf(fields, statusKey)
	code, err := strconv.ParseInt(text, 10, 32)
	switch {
	case text == "":
		return status.Error(codes.Unknown, "the other end ended the call without a status")
	case err != nil:
		return status.Errorf(codes.Unknown, "the other end ended the call with the status %.20q", text)
	}
	if details := valueOf(fields, detailsKey); details != "" {
		var p spb.Status
		b, _ := decodeBinary(details)
		switch {
		case proto.Unmarshal(b, &p) != nil:
		case int64(p.GetCode()) != code:
			return status.Errorf(codes.Internal, "the headers %s and %s contradict each other: %d and %d", statusKey, detailsKey, code, p.GetCode())
		default:
			return status.FromProto(&p).Err()
		}
	}
	return status.Error(codes.Code(code), decodeMessage(valueOf(fields, messageKey)))
}

// encodeMessage percent-encodes bytes that a header cannot contain.
func encodeMessage(text string) string {
	var b strings.Builder
	for _, c := range []byte(strings.ToValidUTF8(text, string(utf8.RuneError))) {
		if c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// decodeMessage is the reverse of encodeMessage. Malformed escapes stay as they are.
func decodeMessage(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			if c, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// NotGRPC returns a status error if the headers of a response are not those of gRPC.
func NotGRPC(fields []hpack.HeaderField) error {
	kind := valueOf(fields, contentTypeKey)
	if isGRPC(kind) {
		return checkBinary(fields)
	}
	answer := valueOf(fields, ":status")
	switch code, err := strconv.Atoi(answer); {
	case err != nil:
		return status.Errorf(codes.Internal, "the answer is not gRPC: its HTTP status is %.20q", answer)
	case code == http.StatusOK:
		return status.Errorf(codes.Unknown, "the answer is not gRPC: its content type is %.100q", kind)
	default:
		return status.Errorf(cmp.Or(codeOfHTTP[code], codes.Unknown), "the answer is not gRPC: its HTTP status is %d", code)
	}
}

// codeOfHTTP is the mapping of https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md, without those to Unknown.
var codeOfHTTP = map[int]codes.Code{
	http.StatusBadRequest: codes.Internal, http.StatusUnauthorized: codes.Unauthenticated, http.StatusForbidden: codes.PermissionDenied,
	http.StatusNotFound: codes.Unimplemented, http.StatusTooManyRequests: codes.Unavailable, http.StatusBadGateway: codes.Unavailable,
	http.StatusServiceUnavailable: codes.Unavailable, http.StatusGatewayTimeout: codes.Unavailable,
}

// ErrNotBegun is the error of a call that the peer has certainly not begun to handle, so it is safe to retry. If a handler of a [Server]
// returns it, the caller receives RST_STREAM with REFUSED_STREAM.
var ErrNotBegun = status.Error(codes.Unavailable, "the other end is shutting down and has not begun to handle the call")

// errNoRoom is the error of a call for which the budget has no room, for example for its metadata; errTooLarge, of a call with too large
// metadata.
var (
	errNoRoom   = errors.New("too much is waiting in memory for callers and plugins that do not read; end their calls, or call again later")
	errTooLarge = status.Errorf(codes.ResourceExhausted, "the metadata have more than the %d bytes that are forwarded", MaxMetadata)
)

// errNoReturn is the error of a call whose handler has panicked or called [runtime.Goexit].
var errNoReturn = status.Error(codes.Internal, "the handler of the call has ended without a status")

// convert returns the status of an error, as grpc-go's server does: also the errors of contexts have their codes.
func convert(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		return s
	}
	return status.FromContextError(err)
}

// StatusOfReset returns the status of a call whose stream the peer reset.
func StatusOfReset(code http2.ErrCode) error { return statusOfEnd(&resetError{code}) }

// statusOfEnd returns the status of a call whose stream ended with err; nil for nil.
func statusOfEnd(err error) error {
	if reset, ok := errors.AsType[*resetError](err); ok {
		switch reset.code { //nolint:exhaustive // the others are faults
		case http2.ErrCodeRefusedStream:
			return ErrNotBegun
		case http2.ErrCodeCancel:
			return status.Error(codes.Canceled, reset.Error())
		case http2.ErrCodeEnhanceYourCalm:
			return status.Error(codes.ResourceExhausted, reset.Error())
		case http2.ErrCodeInadequateSecurity:
			return status.Error(codes.PermissionDenied, reset.Error())
		}
		return status.Error(codes.Internal, reset.Error())
	}
	if lost, ok := errors.AsType[*lostError](err); ok {
		if errors.Is(lost.err, errClosed) {
			return status.Error(codes.Canceled, errClosed.Error())
		}
		return status.Error(codes.Unavailable, "error reading from server: "+lost.Error())
	}
	_, isStatus := status.FromError(err)
	switch {
	case isStatus: // or nil
		return err
	case errors.Is(err, errNoRoom):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unavailable, err.Error())
}

// maxTimeout is the largest number in a grpc-timeout.
const maxTimeout = 99_999_999

// timeoutUnits are the units of a grpc-timeout.
var timeoutUnits = [...]struct {
	length time.Duration
	name   string
}{{time.Nanosecond, "n"}, {time.Microsecond, "u"}, {time.Millisecond, "m"}, {time.Second, "S"}, {time.Minute, "M"}, {time.Hour, "H"}}

// EncodeTimeout returns the value of a grpc-timeout, in the finest unit that can express it.
func EncodeTimeout(d time.Duration) string {
	d = max(d, 1)
	i := 0
	for d/timeoutUnits[i].length > maxTimeout { // not in hours, which can express every Duration
		i++
	}
	return strconv.FormatInt(int64(d/timeoutUnits[i].length), 10) + timeoutUnits[i].name
}

func decodeTimeout(text string) (time.Duration, error) {
	for _, unit := range timeoutUnits {
		digits, ok := strings.CutSuffix(text, unit.name)
		n, err := strconv.ParseUint(digits, 10, 32)
		switch {
		case !ok || err != nil || len(digits) > 8:
		case n > uint64(math.MaxInt64/unit.length):
			return math.MaxInt64, nil
		default:
			return time.Duration(n) * unit.length, nil
		}
	}
	return 0, fmt.Errorf("the header %s is malformed: %.20q is not up to 8 digits and a unit", timeoutKey, text)
}
