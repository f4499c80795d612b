package dyncall

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Schema is what is known of a server's services. It is read-only, and safe for concurrent use.
type Schema struct {
	// Reflected says that the server itself said so; else the services are those of [Builtin], which it may have or not.
	Reflected bool

	services []protoreflect.ServiceDescriptor // by name
	// undescribed are services that the server has, but whose methods it does not tell or was not asked for.
	undescribed []protoreflect.FullName
	files       *protoregistry.Files // what the server told; nil without reflection
}

func (s *Schema) add(service protoreflect.ServiceDescriptor) {
	i, _ := slices.BinarySearchFunc(s.services, service.FullName(), func(have protoreflect.ServiceDescriptor, name protoreflect.FullName) int {
		return strings.Compare(string(have.FullName()), string(name))
	})
	s.services = slices.Insert(s.services, i, service)
}

// Services returns the services in the order of their names.
func (s *Schema) Services() []protoreflect.ServiceDescriptor { return slices.Clone(s.services) }

// Undescribed returns the names of the services that the server has and whose methods are not known, in order.
func (s *Schema) Undescribed() []protoreflect.FullName { return slices.Clone(s.undescribed) }

// Method returns the method that a selector names: SERVICE/METHOD, SERVICE.METHOD or METHOD, where the service may lack leading parts of
// its full name. The error of a selector that fits none, or more than one, says what there is.
func (s *Schema) Method(selector string) (protoreflect.MethodDescriptor, error) {
	service, method := split(selector)
	if m := s.find(service, method); m != nil {
		return m, nil
	}
	var found []protoreflect.MethodDescriptor
	var all []string
	for _, candidate := range s.services {
		for i := range candidate.Methods().Len() {
			m := candidate.Methods().Get(i)
			all = append(all, MethodPath(m))
			if string(m.Name()) == method && matches(candidate.FullName(), service) {
				found = append(found, m)
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, s.noMethod(selector, service, all)
	}
	names := make([]string, len(found))
	for i, m := range found {
		names[i] = MethodPath(m)
	}
	return nil, fmt.Errorf("method %s is ambiguous: write one of %s", selector, list(names))
}

// find returns the method of a service by their exact names, or nil.
func (s *Schema) find(service, method string) protoreflect.MethodDescriptor {
	for _, candidate := range s.services {
		if string(candidate.FullName()) == service {
			return candidate.Methods().ByName(protoreflect.Name(method))
		}
	}
	return nil
}

// noMethod says what there is instead of the method.
func (s *Schema) noMethod(selector, service string, all []string) error {
	for _, name := range s.undescribed {
		if service != "" && matches(name, service) {
			return fmt.Errorf("unknown method %s: the plugin has service %s, but does not say what methods that has", selector, name)
		}
	}
	whose := "no service of the plugin has it"
	if !s.Reflected {
		whose = "the plugin has no reflection, and no built-in service has it"
	}
	// Within the service, if there is that, its methods are what was meant.
	var own []string
	for _, candidate := range s.services {
		if service != "" && matches(candidate.FullName(), service) {
			for i := range candidate.Methods().Len() {
				own = append(own, MethodPath(candidate.Methods().Get(i)))
			}
		}
	}
	if similar := nearest(selector, own); len(similar) > 0 {
		return fmt.Errorf("unknown method %s: did you mean %s", selector, list(similar))
	}
	if len(own) > 0 {
		return fmt.Errorf("unknown method %s: there are %s", selector, list(own))
	}
	if similar := nearest(selector, all); len(similar) > 0 {
		return fmt.Errorf("unknown method %s: %s, did you mean %s", selector, whose, list(similar))
	}
	var names []string
	for _, candidate := range s.services {
		names = append(names, string(candidate.FullName()))
	}
	for _, name := range s.undescribed {
		names = append(names, string(name))
	}
	if len(names) == 0 {
		return fmt.Errorf("unknown method %s: %s", selector, whose)
	}
	return fmt.Errorf("unknown method %s: %s; the services are %s", selector, whose, list(names))
}

// types resolves the types of Any messages: those that the server told, and those of this program.
func (s *Schema) types() resolver {
	r := resolver{}
	if s.files != nil {
		r.told = dynamicpb.NewTypes(s.files)
	}
	return r
}

// MethodPath returns SERVICE/METHOD.
func MethodPath(m protoreflect.MethodDescriptor) string {
	return string(m.Parent().FullName()) + "/" + string(m.Name())
}

// split splits a selector into service and method; the service is empty if there is none.
func split(selector string) (service, method string) {
	selector = strings.TrimPrefix(selector, "/")
	if service, method, ok := strings.Cut(selector, "/"); ok {
		return service, method
	}
	if i := strings.LastIndexByte(selector, '.'); i >= 0 {
		return selector[:i], selector[i+1:]
	}
	return "", selector
}

// matches says whether a service is named by the end of its full name; the empty name is that of all.
func matches(full protoreflect.FullName, name string) bool {
	return name == "" || string(full) == name || strings.HasSuffix(string(full), "."+name)
}

// list writes some names for an error, and how many more there are.
func list(names []string) string {
	const most = 12
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// resolver finds types by name, first among those that the server told.
type resolver struct{ told *dynamicpb.Types }

func (r resolver) FindMessageByName(name protoreflect.FullName) (protoreflect.MessageType, error) {
	if r.told != nil {
		if t, err := r.told.FindMessageByName(name); err == nil {
			return t, nil
		}
	}
	return protoregistry.GlobalTypes.FindMessageByName(name)
}

func (r resolver) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	return r.FindMessageByName(protoreflect.FullName(url[strings.LastIndexByte(url, '/')+1:]))
}

func (r resolver) FindExtensionByName(name protoreflect.FullName) (protoreflect.ExtensionType, error) {
	if r.told != nil {
		if t, err := r.told.FindExtensionByName(name); err == nil {
			return t, nil
		}
	}
	return protoregistry.GlobalTypes.FindExtensionByName(name)
}

func (r resolver) FindExtensionByNumber(
	message protoreflect.FullName, number protoreflect.FieldNumber,
) (protoreflect.ExtensionType, error) {
	if r.told != nil {
		if t, err := r.told.FindExtensionByNumber(message, number); err == nil {
			return t, nil
		}
	}
	return protoregistry.GlobalTypes.FindExtensionByNumber(message, number)
}
