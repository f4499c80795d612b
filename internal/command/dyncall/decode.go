package dyncall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// maxDepth bounds how deep objects and arrays of a request may be nested.
const maxDepth = 1000

// Request makes the request of a method from its JSON form: one JSON value, or nothing at all for an empty message. Errors say where in
// the text and what is wrong; the line and column count from 1, and firstLine is the line of the first byte.
func (s *Schema) Request(method protoreflect.MethodDescriptor, text []byte, firstLine int) (proto.Message, error) {
	message := dynamicpb.NewMessage(method.Input())
	if len(bytes.TrimSpace(text)) == 0 {
		return message, nil
	}
	check := &checker{text: text, firstLine: firstLine, decoder: json.NewDecoder(bytes.NewReader(text))}
	check.decoder.UseNumber()
	if err := check.syntax(); err != nil {
		return nil, err
	}
	if err := check.value(method.Input(), 0); err != nil {
		return nil, err
	}
	options := protojson.UnmarshalOptions{Resolver: s.types()}
	if err := options.Unmarshal(text, message); err != nil {
		return nil, errors.New(plain(err, firstLine))
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

// checker looks through a JSON text for what package protojson says too little about: broken syntax and unknown fields.
type checker struct {
	text      []byte
	firstLine int
	decoder   *json.Decoder
}

// value checks the next value, which stands for a message, for a list of messages, for a map if the message is an entry of that, or,
// without a message, for anything.
func (c *checker) value(message protoreflect.MessageDescriptor, depth int) error {
	if depth > maxDepth {
		return c.wrong(c.decoder.InputOffset(), fmt.Sprintf("nested more than %d deep", maxDepth))
	}
	token, err := c.decoder.Token() // fails nowhere, the syntax is right
	if err != nil {
		return err
	}
	delimiter, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	for c.decoder.More() {
		inner := message
		if delimiter == '{' {
			key, _ := c.decoder.Token()
			name, _ := key.(string) // keys are
			if inner, err = c.field(message, name); err != nil {
				return err
			}
		}
		if err := c.value(inner, depth+1); err != nil {
			return err
		}
	}
	_, err = c.decoder.Token() // the closing delimiter
	return err
}

// field returns what the value of a key stands for, for [checker.value].
func (c *checker) field(message protoreflect.MessageDescriptor, key string) (protoreflect.MessageDescriptor, error) {
	switch {
	case message == nil || isBuiltinType(message.FullName()):
		return nil, nil // any keys, or such as only protojson knows
	case message.IsMapEntry():
		return message.Fields().ByNumber(2).Message(), nil // of the value; the key is the user's
	case strings.HasPrefix(key, "["):
		return nil, nil // an extension
	}
	field := message.Fields().ByJSONName(key)
	if field == nil {
		field = message.Fields().ByTextName(key)
	}
	if field == nil {
		return nil, c.unknown(message, key)
	}
	return field.Message(), nil
}

func (c *checker) unknown(message protoreflect.MessageDescriptor, key string) error {
	var names []string
	for i := range message.Fields().Len() {
		names = append(names, message.Fields().Get(i).JSONName())
	}
	what := fmt.Sprintf("%s has no field %.100q", message.FullName(), key)
	switch similar := nearestTo(key, names); {
	case len(similar) > 0:
		what += ", did you mean " + list(similar)
	case len(names) > 0:
		slices.Sort(names)
		what += ", it has " + list(names)
	default:
		what += ", nor any other"
	}
	at := c.decoder.InputOffset()
	quoted, _ := json.Marshal(key) // a string
	if start := at - int64(len(quoted)); start >= 0 && bytes.Equal(c.text[start:at], quoted) {
		at = start
	}
	return c.wrong(at, what)
}

// syntax checks that the text is one JSON value.
func (c *checker) syntax() error {
	err := json.Unmarshal(c.text, new(json.RawMessage))
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		at := syntax.Offset - 1 // the offset is behind the character that is wrong
		if int(syntax.Offset) == len(c.text) && strings.HasPrefix(syntax.Error(), "unexpected end") {
			at++
		}
		return c.wrong(at, syntax.Error())
	}
	return err
}

// wrong is an error at an offset in the text.
func (c *checker) wrong(offset int64, what string) error {
	before := c.text[:max(0, min(offset, int64(len(c.text))))]
	line := c.firstLine + bytes.Count(before, []byte("\n"))
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Errorf("line %d, column %d: %s", line, column, what)
}
