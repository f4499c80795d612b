package call

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/dyncall"
)

// parseHeaders parses KEY:VALUE. The value of a key that ends in -bin is base64, as in HTTP.
func parseHeaders(headers []string) (metadata.MD, error) {
	md := metadata.MD{}
	for _, header := range headers {
		key, value, ok := strings.Cut(header, ":")
		key, value = strings.ToLower(strings.TrimSpace(key)), strings.TrimSpace(value)
		switch {
		case !ok || key == "":
			return nil, fmt.Errorf("%q is not KEY:VALUE", header)
		case strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "":
			return nil, fmt.Errorf("key %q may have letters, digits and -_. only", key)
		case strings.HasPrefix(key, "grpc-"):
			return nil, fmt.Errorf("key %q is reserved for gRPC itself", key)
		}
		if strings.HasSuffix(key, "-bin") {
			raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
			if err != nil {
				return nil, fmt.Errorf("the value of %q is not base64: %w", key, err)
			}
			value = string(raw)
		} else if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, fmt.Errorf("the value of %q has characters that are not printable ASCII; a key that ends in -bin may have any, "+
				"as base64", key)
		}
		md.Append(key, value)
	}
	return md, nil
}

// callInput is the text of the requests.
type callInput struct {
	io.Reader
	io.Closer
	from string // for errors: the source of the text
}

func openInput(cmd *cobra.Command, data string) (*callInput, error) {
	path, isFile := strings.CutPrefix(data, "@")
	switch {
	case !isFile:
		return &callInput{strings.NewReader(data), io.NopCloser(nil), ""}, nil
	case path == "-":
		return &callInput{cmd.InOrStdin(), io.NopCloser(nil), " from standard input"}, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the request: %w", err)
	}
	return &callInput{file, file, " from " + path}, nil
}

// requests returns the requests of a call. For a client stream, each JSON value of the text is a request, returned when it has been read;
// other methods have one request. If given is false, the user gave no request, and a client stream is empty. The input is read until ctx is
// done.
func (in *callInput) requests(
	ctx context.Context, schema *dyncall.Schema, method protoreflect.MethodDescriptor, given bool,
) dyncall.Requests {
	texts := make(chan requestText)
	switch {
	// A read of a terminal or pipe cannot be interrupted. The goroutine ends with the input or with the process.
	case !method.IsStreamingClient():
		go in.whole(ctx, texts)
	case given:
		go in.split(ctx, texts)
	default:
		close(texts)
	}
	return func(ctx context.Context) (proto.Message, error) {
		select {
		case text, ok := <-texts:
			if !ok || errors.Is(text.err, io.EOF) {
				return nil, io.EOF
			}
			err := text.err
			var request proto.Message
			if err == nil {
				request, err = schema.Request(method, text.text, text.line)
			}
			if err != nil {
				return nil, fmt.Errorf("cannot read the request%s: %w", in.from, err)
			}
			return request, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// requestText is the JSON text of one request and the line on which it begins.
type requestText struct {
	text []byte
	line int
	err  error
}

// maxRequestBytes bounds the text of one request; servers rarely take more than 4 MiB.
const maxRequestBytes = 64 << 20

func (in *callInput) whole(ctx context.Context, texts chan<- requestText) {
	text, err := io.ReadAll(io.LimitReader(in, maxRequestBytes+1))
	if err == nil && len(text) > maxRequestBytes {
		err = fmt.Errorf("it has more than %d bytes", maxRequestBytes)
	}
	pass(ctx, texts, requestText{text: text, line: 1, err: err})
}

// pass sends one request. It returns false if ctx is done first.
func pass(ctx context.Context, texts chan<- requestText, text requestText) bool {
	select {
	case texts <- text:
		return true
	case <-ctx.Done():
		return false
	}
}

// split sends each JSON value of the input as soon as it is complete.
func (in *callInput) split(ctx context.Context, texts chan<- requestText) {
	var seen bytes.Buffer // what was read after the offset
	line, offset := 1, int64(0)
	lineAt := func(next int64) int {
		line += bytes.Count(seen.Next(int(max(next-offset, 0))), []byte("\n"))
		offset = max(next, offset)
		return line
	}
	decoder := json.NewDecoder(io.TeeReader(in, &seen))
	for {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		end := decoder.InputOffset()
		first := lineAt(end - int64(len(raw)))
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			err = fmt.Errorf("line %d: %w", lineAt(syntax.Offset-1), err)
		} else if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("line %d: unexpected end of the JSON text", lineAt(end))
		}
		if !pass(ctx, texts, requestText{text: bytes.Clone(raw), line: first, err: err}) || err != nil {
			return
		}
	}
}

// maxIndented is the maximum nesting of an answer that is indented. Indenting a deeply nested one would make it much longer.
const maxIndented = 64

// print writes one answer, given as compact JSON.
func (c *callCommand) print(w io.Writer, answer []byte) error {
	switch {
	case c.output.Value == "yaml":
		if err := console.Write(w, []byte("---\n")); err != nil {
			return err
		}
		return command.WriteYAML(w, json.RawMessage(answer))
	case console.IsTerminal(w) && depth(answer) <= maxIndented:
		return command.WriteJSON(w, json.RawMessage(answer))
	}
	return command.WriteJSONLine(w, json.RawMessage(answer))
}

func depth(text []byte) int {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // accepts numbers of any size
	for now, most := 0, 0; ; most = max(most, now) {
		switch token, err := decoder.Token(); token {
		case json.Delim('{'), json.Delim('['):
			now++
		case json.Delim('}'), json.Delim(']'):
			now--
		default:
			if err != nil {
				return most
			}
		}
	}
}
