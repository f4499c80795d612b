package registration

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
)

// prefixLen is the length of the prefix of a message: a compression flag and the length of the message.
const prefixLen = 5

// maxText is the maximum length in bytes of the text of a status.
const maxText = 1 << 10

// setPrefix writes the prefix of the message that follows it in body.
func setPrefix(body []byte) {
	body[0] = 0
	binary.BigEndian.PutUint32(body[1:prefixLen], uint32(len(body)-prefixLen))
}

// requestHeaders returns the header block of a request. It is valid for any settings of the peer, because it empties the dynamic table and
// does not use it.
func requestHeaders(path string) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSizeLimit(0)
	for _, h := range [...]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "localhost"}, {Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "patchbay"}, {Name: "te", Value: "trailers"},
	} {
		_ = encoder.WriteField(h) // writes to a bytes.Buffer do not fail
	}
	return slices.Clip(block.Bytes())
}

// appendTimeout appends grpc-timeout, if there is a deadline, as a literal without indexing (RFC 7541 section 6.2.2).
func appendTimeout(deadline time.Time, block []byte) []byte {
	if deadline.IsZero() {
		return block
	}
	const name = "grpc-timeout"
	value := h2proxy.EncodeTimeout(time.Until(deadline) + time.Millisecond) // so that the plugin does not give up first
	block = append(block, 0, byte(len(name)))
	block = append(block, name...)
	block = append(block, byte(len(value)))
	return append(block, value...)
}

// answer is the part of an answer that was received: headers, one message, trailers
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
type answer struct {
	started bool           // the headers were received
	ended   bool           // the stream has ended
	status  *status.Status // nil while unknown
	data    []byte         // the prefix and the message
}

func (a *answer) result() ([]byte, error) {
	switch {
	case a.status.Code() != codes.OK:
		return nil, a.status.Err()
	case len(a.data) < prefixLen || len(a.data)-prefixLen != a.length():
		return nil, status.Error(codes.Internal, "the plugin's answer is not one message")
	default:
		return a.data[prefixLen:], nil
	}
}

func (a *answer) length() int { return int(binary.BigEndian.Uint32(a.data[1:prefixLen])) }

// end ends an answer with a status, unless the answer has one.
func (a *answer) end(s *status.Status) {
	a.ended = true
	if a.status == nil {
		a.status = s
	}
}

func (a *answer) addHeaders(f *http2.MetaHeadersFrame) error {
	last := f.StreamEnded()
	if a.started {
		if !last || len(f.PseudoFields()) > 0 {
			return fmt.Errorf("%w: headers where trailers belong", errProtocol)
		}
		a.end(trailerStatus(f.RegularFields()))
		return nil
	}
	code, err := strconv.Atoi(f.PseudoValue("status"))
	switch {
	case err != nil || code < 100 || code > 999 || len(f.PseudoFields()) != 1:
		return fmt.Errorf("%w: no HTTP status", errProtocol)
	case code < 200 && last:
		return fmt.Errorf("%w: the answer ends with interim headers", errProtocol)
	case code < 200:
		return nil
	}
	a.started = true
	if err := h2proxy.NotGRPC(f.Fields); err != nil {
		a.status = status.Convert(err)
	}
	if last {
		a.end(trailerStatus(f.RegularFields()))
	}
	return nil
}

func (a *answer) addData(f *http2.DataFrame) error {
	if !a.started {
		return fmt.Errorf("%w: data before headers", errProtocol)
	}
	if a.status == nil { // otherwise it is not a gRPC answer
		a.data = append(a.data, f.Data()...)
		if len(a.data) >= prefixLen {
			switch {
			case a.data[0] != 0:
				return status.Error(codes.Internal, "the plugin's answer is compressed, which was not offered")
			case uint32(a.length()) > maxAnswer:
				return status.Errorf(codes.ResourceExhausted, "the plugin's answer has %d bytes; at most %d are allowed", a.length(), maxAnswer)
			}
		}
	}
	if f.StreamEnded() {
		a.end(status.New(codes.Internal, "the plugin's answer ends without a status"))
	}
	return nil
}

// trailerStatus returns the status in trailers, with at most maxText bytes of text.
func trailerStatus(fields []hpack.HeaderField) *status.Status {
	s := status.Convert(h2proxy.StatusOf(fields))
	if int32(s.Code()) < 0 {
		return status.New(codes.Unknown, "the plugin's answer ends with a negative status")
	}
	return status.New(s.Code(), cut(s.Message()))
}

// cut shortens s to maxText and makes it valid UTF-8.
func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "\uFFFD") }
