package dyncall

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jhump/protoreflect/v2/protoprint"
	"github.com/jhump/protoreflect/v2/protoresolve"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxTypes bounds how many types are shown for one method.
const maxTypes = 200

// Describe returns the proto text of a service, of a method with all types that its messages use, or of a message or enum by its full name.
// The selector of a service or method is like that of [Schema.Method]. Comments and options in the text may contain any characters.
func (s *Schema) Describe(selector string) (text string, err error) {
	// The printer may panic for descriptors that no compiler wrote.
	defer func() {
		if problem := recover(); problem != nil {
			text, err = "", fmt.Errorf("cannot describe %s: %w: %v", selector, errReflection, problem)
		}
	}()
	name := strings.TrimPrefix(selector, "/")
	service := s.exactly(protoreflect.FullName(name))
	if services := s.matching(name); service == nil && name != "" && len(services) == 1 {
		service = services[0]
	}
	if service != nil {
		return protoText(service)
	}
	if d := s.typeNamed(protoreflect.FullName(name)); d != nil {
		return protoText(d)
	}
	method, err := s.Method(selector)
	if err != nil {
		return "", err
	}
	return describeMethod(method)
}

func protoText(d protoreflect.Descriptor) (string, error) {
	printer := protoprint.Printer{Compact: true, OmitComments: protoprint.CommentsDetached}
	text, err := printer.PrintProtoToString(d)
	if err != nil {
		return "", fmt.Errorf("cannot describe %s: %w", d.FullName(), err)
	}
	return strings.TrimRight(text, "\n") + "\n", nil
}

// describeMethod returns the text of a method and of the types that its messages use, in the order of their first use.
func describeMethod(method protoreflect.MethodDescriptor) (string, error) {
	text, err := protoText(method)
	if err != nil {
		return "", err
	}
	out := strings.Builder{}
	fmt.Fprintf(&out, "// %s\n%s", methodPath(method), text)
	types := []protoreflect.Descriptor{method.Input()}
	if method.Output() != method.Input() {
		types = append(types, method.Output())
	}
	for i := 0; i < len(types); i++ { // types grows
		if types[i].FullName().Parent() == "google.protobuf" {
			continue // a type of protobuf itself
		}
		if i == maxTypes {
			fmt.Fprintf(&out, "\n// More types are left out.\n")
			break
		}
		text, err := protoText(types[i])
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "\n%s", text)
		if message, ok := types[i].(protoreflect.MessageDescriptor); ok {
			types = addUsed(types, message)
		}
	}
	return out.String(), nil
}

// addUsed adds the types of the fields of a message, and of the messages declared in it, which are printed with it.
func addUsed(types []protoreflect.Descriptor, message protoreflect.MessageDescriptor) []protoreflect.Descriptor {
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		if field.IsMap() {
			field = field.MapValue()
		}
		var used protoreflect.Descriptor = field.Enum()
		if field.Message() != nil {
			used = field.Message()
		}
		isPrinted := func(t protoreflect.Descriptor) bool { // on its own or inside an outer message
			return strings.HasPrefix(string(used.FullName())+".", string(t.FullName())+".")
		}
		if used != nil && !slices.ContainsFunc(types, isPrinted) {
			types = append(types, used)
		}
	}
	for i := range message.Messages().Len() {
		if nested := message.Messages().Get(i); !nested.IsMapEntry() {
			types = addUsed(types, nested)
		}
	}
	return types
}

func (s *Schema) typeNamed(name protoreflect.FullName) (d protoreflect.Descriptor) {
	if s.files != nil {
		d, _ = s.files.FindDescriptorByName(name)
	}
	for _, service := range s.Services {
		if d == nil {
			d = protoresolve.FindDescriptorByNameInFile(service.ParentFile(), name)
		}
	}
	switch d.(type) {
	case protoreflect.MessageDescriptor, protoreflect.EnumDescriptor:
		return d
	}
	return nil
}
