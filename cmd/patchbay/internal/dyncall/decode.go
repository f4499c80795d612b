package dyncall

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// maxDepth bounds how deep objects and arrays of a request may be nested.
const maxDepth = 1000

// Request returns the request of a method from its JSON form: one JSON value, or nothing for an empty message. Errors have the line and
// column, which count from 1; firstLine is the line of the first byte.
func (s *Schema) Request(method protoreflect.MethodDescriptor, text []byte, firstLine int) (proto.Message, error) {
	message := dynamicpb.NewMessage(method.Input())
	if len(bytes.TrimSpace(text)) == 0 {
		return message, nil
	}
	options := protojson.UnmarshalOptions{Resolver: s.types(), RecursionLimit: maxDepth}
	if err := options.Unmarshal(text, message); err != nil {
		what := plain(err, firstLine)
		if strings.Contains(what, ": unknown field ") {
			what += "; --describe " + methodPath(method) + " shows the fields"
		}
		return nil, errors.New(what)
	}
	return message, nil
}

// plain returns an error of package protojson without its prefix, which has varying spaces, and with the right line.
func plain(err error, firstLine int) string {
	text := strings.TrimLeftFunc(strings.TrimPrefix(err.Error(), "proto:"), unicode.IsSpace)
	text = strings.TrimPrefix(text, "syntax error ")
	var line, column int
	if n, scanErr := fmt.Sscanf(text, "(line %d:%d):", &line, &column); scanErr == nil && n == 2 {
		_, what, _ := strings.Cut(text, "): ")
		return fmt.Sprintf("line %d, column %d: %s", line+firstLine-1, column, what)
	}
	return text
}
