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

// prefixLen is the length of what precedes a message: a flag that says whether it is compressed, and its length.
const prefixLen = 5

// maxText bounds the text of a status.
const maxText = 1 << 10

// setPrefix writes the prefix of the message that follows it in body.
func setPrefix(body []byte) {
	body[0] = 0
	binary.BigEndian.PutUint32(body[1:prefixLen], uint32(len(body)-prefixLen))
}

// requestHeaders returns the header block of a request, which stays valid whatever the peer's settings are: it empties the dynamic table
// and does not use it.
func requestHeaders(path string) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSizeLimit(0)
	for _, h := range [...]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "localhost"}, {Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "patchbay"}, {Name: "te", Value: "trailers"},
	} {
		_ = encoder.WriteField(h) // a bytes.Buffer takes all
	}
	return slices.Clip(block.Bytes())
}

// appendTimeout returns the header block with grpc-timeout, if there is a deadline, as a literal that is not indexed (RFC 7541 section
// 6.2.2).
func appendTimeout(deadline time.Time, block []byte) []byte {
	if deadline.IsZero() {
		return block
	}
	const name = "grpc-timeout"
	value := h2proxy.EncodeTimeout(time.Until(deadline) + time.Millisecond) // the plugin should not be the first to give up
	block = append(block, 0, byte(len(name)))
	block = append(block, name...)
	block = append(block, byte(len(value)))
	return append(block, value...)
}

// answer is what has come of the answer to a call: headers, one message, trailers
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
type answer struct {
	started bool           // the headers have come
	ended   bool           // nothing more will come
	status  *status.Status // nil as long as it is unknown
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

// end takes over the status of an answer, unless it is known.
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
	if a.status == nil { // otherwise it is no gRPC answer
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

// trailerStatus returns the status that trailers carry, with a text that is not too long.
func trailerStatus(fields []hpack.HeaderField) *status.Status {
	s := status.Convert(h2proxy.StatusOf(fields))
	if int32(s.Code()) < 0 {
		return status.New(codes.Unknown, "the plugin's answer ends with a negative status")
	}
	return status.New(s.Code(), cut(s.Message()))
}

// cut makes a text of the plugin short and valid UTF-8.
func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "\uFFFD") }
