package reflection

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// message is a message of descriptor.proto, encoded. Its fields are named by their numbers there.
type message []byte

func (m *message) text(field protowire.Number, s string) {
	*m = protowire.AppendString(protowire.AppendTag(*m, field, protowire.BytesType), s)
}

func (m *message) number(field protowire.Number, n int) {
	*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.VarintType), uint64(n))
}

func (m *message) flag(field protowire.Number, set bool) {
	if set {
		m.number(field, 1)
	}
}

// within adds a message unless it is empty.
func (m *message) within(field protowire.Number, inner message) {
	if len(inner) > 0 {
		m.text(field, string(inner))
	}
}

// list is one of the lists of protoreflect.
type list[T any] interface {
	Len() int
	Get(i int) T
}

// each adds a field for each element of a list.
func each[T any](m *message, field protowire.Number, l list[T], encode func(T) message) {
	for i := range l.Len() {
		m.text(field, string(encode(l.Get(i))))
	}
}

// encoder encodes descriptors. optionsOf returns the encoded options of one.
type encoder struct {
	optionsOf func(protoreflect.Descriptor) message
}

// options returns an encoder with the options of descriptors. If descriptor.proto is not linked, no linked file has custom options, and the
// options that a client needs are derived from the descriptors.
func options() encoder {
	if _, err := protoregistry.GlobalTypes.FindMessageByName("google.protobuf.FileOptions"); err == nil {
		return encoder{func(d protoreflect.Descriptor) message {
			encoded, _ := proto.Marshal(d.Options()) // what was linked can be encoded
			return encoded
		}}
	}
	return encoder{derived}
}

func file(d protoreflect.FileDescriptor, e encoder) message {
	var m message
	m.text(1, d.Path())
	if d.Package() != "" {
		m.text(2, string(d.Package()))
	}
	for i := range d.Imports().Len() {
		m.text(3, d.Imports().Get(i).Path())
	}
	for i := range d.Imports().Len() {
		if d.Imports().Get(i).IsPublic {
			m.number(10, i)
		}
	}
	each(&m, 4, d.Messages(), e.message)
	each(&m, 5, d.Enums(), e.enum)
	each(&m, 6, d.Services(), e.service)
	each(&m, 7, d.Extensions(), e.field)
	m.within(8, e.optionsOf(d))
	if d.Syntax() != protoreflect.Proto2 {
		m.text(12, d.Syntax().String())
	}
	if edition, is := d.(interface{ Edition() int32 }); is && d.Syntax() == protoreflect.Editions {
		m.number(14, int(edition.Edition()))
	}
	return m
}

func (e encoder) message(d protoreflect.MessageDescriptor) message {
	var m message
	m.text(1, string(d.Name()))
	each(&m, 2, d.Fields(), e.field)
	each(&m, 3, d.Messages(), e.message)
	each(&m, 4, d.Enums(), e.enum)
	each(&m, 5, d.ExtensionRanges(), between)
	each(&m, 6, d.Extensions(), e.field)
	m.within(7, e.optionsOf(d))
	each(&m, 8, d.Oneofs(), func(d protoreflect.OneofDescriptor) (m message) {
		m.text(1, string(d.Name()))
		m.within(2, e.optionsOf(d))
		return m
	})
	each(&m, 9, d.ReservedRanges(), between)
	each(&m, 10, d.ReservedNames(), func(name protoreflect.Name) message { return message(name) })
	return m
}

func between[N ~int32](span [2]N) (m message) {
	m.number(1, int(span[0]))
	m.number(2, int(span[1]))
	return m
}

func (e encoder) field(d protoreflect.FieldDescriptor) message {
	var m message
	m.text(1, string(d.Name()))
	if d.IsExtension() {
		m.text(2, "."+string(d.ContainingMessage().FullName()))
	}
	m.number(3, int(d.Number()))
	label, kind := d.Cardinality(), d.Kind()
	if d.Syntax() == protoreflect.Editions { // which have features for these
		if label == protoreflect.Required {
			label = protoreflect.Optional
		}
		if kind == protoreflect.GroupKind {
			kind = protoreflect.MessageKind
		}
	}
	m.number(4, int(label))
	m.number(5, int(kind))
	if d.Message() != nil {
		m.text(6, "."+string(d.Message().FullName()))
	}
	if d.Enum() != nil {
		m.text(6, "."+string(d.Enum().FullName()))
	}
	if d.HasDefault() {
		m.text(7, defaultOf(d))
	}
	m.within(8, e.optionsOf(d))
	if d.ContainingOneof() != nil {
		m.number(9, d.ContainingOneof().Index())
	}
	if d.HasJSONName() && !d.IsExtension() {
		m.text(10, d.JSONName())
	}
	m.flag(17, d.Syntax() == protoreflect.Proto3 && d.HasOptionalKeyword())
	return m
}

// defaultOf returns the default value of a field as it is written in a file.
func defaultOf(d protoreflect.FieldDescriptor) string {
	switch value := d.Default().Interface().(type) {
	case protoreflect.EnumNumber:
		return string(d.DefaultEnumValue().Name())
	case []byte:
		var text strings.Builder
		for _, b := range value {
			switch {
			case b < ' ' || b > '~':
				fmt.Fprintf(&text, `\%03o`, b)
			case b == '\\' || b == '\'' || b == '"':
				text.Write([]byte{'\\', b})
			default:
				text.WriteByte(b)
			}
		}
		return text.String()
	case float32:
		return floatText(float64(value), 32)
	case float64:
		return floatText(value, 64)
	default:
		return fmt.Sprint(value)
	}
}

func floatText(value float64, bits int) string {
	switch {
	case math.IsInf(value, 1):
		return "inf"
	case math.IsInf(value, -1):
		return "-inf"
	case math.IsNaN(value):
		return "nan"
	}
	return strconv.FormatFloat(value, 'g', -1, bits)
}

func (e encoder) enum(d protoreflect.EnumDescriptor) message {
	var m message
	m.text(1, string(d.Name()))
	each(&m, 2, d.Values(), func(d protoreflect.EnumValueDescriptor) (m message) {
		m.text(1, string(d.Name()))
		m.number(2, int(d.Number()))
		m.within(3, e.optionsOf(d))
		return m
	})
	m.within(3, e.optionsOf(d))
	each(&m, 4, d.ReservedRanges(), between)
	each(&m, 5, d.ReservedNames(), func(name protoreflect.Name) message { return message(name) })
	return m
}

func (e encoder) service(d protoreflect.ServiceDescriptor) message {
	var m message
	m.text(1, string(d.Name()))
	each(&m, 2, d.Methods(), func(d protoreflect.MethodDescriptor) (m message) {
		m.text(1, string(d.Name()))
		m.text(2, "."+string(d.Input().FullName()))
		m.text(3, "."+string(d.Output().FullName()))
		m.within(4, e.optionsOf(d))
		m.flag(5, d.IsStreamingClient())
		m.flag(6, d.IsStreamingServer())
		return m
	})
	m.within(3, e.optionsOf(d))
	return m
}

// derived returns the options that affect how a client encodes messages.
func derived(d protoreflect.Descriptor) (m message) {
	switch d := d.(type) {
	case protoreflect.MessageDescriptor:
		m.flag(7, d.IsMapEntry())
	case protoreflect.EnumDescriptor:
		numbers := map[protoreflect.EnumNumber]bool{}
		for i := range d.Values().Len() {
			numbers[d.Values().Get(i).Number()] = true
		}
		m.flag(2, len(numbers) < d.Values().Len()) // allow_alias
		if d.ParentFile().Syntax() == protoreflect.Editions && d.IsClosed() {
			m.within(7, feature(2, 2))
		}
	case protoreflect.FieldDescriptor:
		if d.ParentFile().Syntax() == protoreflect.Editions {
			m.within(21, featuresOf(d))
		} else if packable(d) {
			m.number(2, map[bool]int{true: 1}[d.IsPacked()])
		}
	default: // theirs are for those who read
	}
	return m
}

// packable reports whether a field may be packed.
func packable(d protoreflect.FieldDescriptor) bool {
	switch d.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
		return false
	default:
		return d.IsList()
	}
}

func featuresOf(d protoreflect.FieldDescriptor) (m message) {
	const presence, repeated, encoding = 1, 3, 5
	switch {
	case d.Cardinality() == protoreflect.Required:
		m = append(m, feature(presence, 3)...)
	case d.Cardinality() == protoreflect.Optional && !d.HasPresence():
		m = append(m, feature(presence, 2)...)
	case d.Cardinality() == protoreflect.Optional && !d.IsExtension() && d.ContainingOneof() == nil && d.Message() == nil:
		m = append(m, feature(presence, 1)...)
	}
	if packable(d) {
		m = append(m, feature(repeated, map[bool]int{true: 1, false: 2}[d.IsPacked()])...)
	}
	if d.Kind() == protoreflect.GroupKind {
		m = append(m, feature(encoding, 2)...)
	}
	return m
}

func feature(field protowire.Number, value int) (m message) {
	m.number(field, value)
	return m
}
