// Package dyncall calls gRPC methods whose types are known only at run time: it learns a server's services through reflection, or takes
// those of the kubelet's plugin protocols that it knows, turns JSON into requests and answers into JSON, and writes services as proto text.
//
// What a server says about itself is bounded and checked before it is used. This is for people who try plugins out; programs that know
// their plugins use generated clients.
package dyncall

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jhump/protoreflect/v2/protoresolve"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/patchbay-dev/patchbay/internal/suggest"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Source says how the services of a [Schema] are known.
type Source int

const (
	// BuiltIn services are those of [Builtin], which the server may have or not.
	BuiltIn Source = iota
	// Reflected are those that the server itself named.
	Reflected
	// FromFiles are those of files that the user gave.
	FromFiles
)

// Schema is what is known of a server's services. It is read-only, and safe for concurrent use.
type Schema struct {
	Source Source

	services []protoreflect.ServiceDescriptor // by name
	// others are built-in services that plugins of the type do not have. They are found by their full names only.
	others []protoreflect.ServiceDescriptor
	// unannounced are built-in services that plugins of the type may have, and this one does not: they are of none of its versions.
	unannounced []protoreflect.FullName
	versions    []string // that were announced
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
	var found []protoreflect.MethodDescriptor
	var names []string
	for _, candidate := range s.matching(service) {
		m := candidate.Methods().ByName(protoreflect.Name(method))
		if m == nil {
			continue
		}
		if string(candidate.FullName()) == service {
			return m, nil
		}
		found = append(found, m)
		names = append(names, methodPath(m))
	}
	switch len(found) {
	case 0:
		for _, other := range s.others {
			if m := other.Methods().ByName(protoreflect.Name(method)); m != nil && string(other.FullName()) == service {
				return m, nil
			}
		}
		return nil, s.noMethod(selector, service)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("method %s is ambiguous: write one of %s", selector, list(names))
}

// exactly returns the service of that full name, or nil.
func (s *Schema) exactly(name protoreflect.FullName) protoreflect.ServiceDescriptor {
	i := slices.IndexFunc(s.services, func(service protoreflect.ServiceDescriptor) bool { return service.FullName() == name })
	if i < 0 {
		return nil
	}
	return s.services[i]
}

// matching returns the services that a name may mean.
func (s *Schema) matching(name string) []protoreflect.ServiceDescriptor {
	return slices.DeleteFunc(s.Services(), func(service protoreflect.ServiceDescriptor) bool { return !matches(service.FullName(), name) })
}

// noMethod says what there is instead of the method.
func (s *Schema) noMethod(selector, service string) error {
	if i := slices.IndexFunc(s.unannounced, func(name protoreflect.FullName) bool { return matches(name, service) }); i >= 0 && service != "" {
		return fmt.Errorf("unknown method %s: service %s belongs to no version that the plugin announces: %s", selector, s.unannounced[i],
			untrusted.QuoteAll(s.versions))
	}
	var own []string // within the service, if there is that, its methods are what was meant
	if service != "" {
		i := slices.IndexFunc(s.undescribed, func(name protoreflect.FullName) bool { return matches(name, service) })
		if i >= 0 {
			return fmt.Errorf("unknown method %s: the plugin has service %s, but does not describe its methods", selector, s.undescribed[i])
		}
		own = MethodPaths(s.matching(service))
	}
	if similar := nearestTo(selector, own); len(similar) > 0 {
		return fmt.Errorf("unknown method %s: did you mean %s", selector, list(similar))
	}
	if len(own) > 0 {
		return fmt.Errorf("unknown method %s: there are %s", selector, list(own))
	}
	whose := map[Source]string{
		BuiltIn:   "the plugin has no reflection, and no built-in service has it",
		Reflected: "no service of the plugin has it",
		FromFiles: "no service of the files has it",
	}[s.Source]
	if similar := nearestTo(selector, MethodPaths(s.services)); len(similar) > 0 {
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
func (s *Schema) types() protoresolve.TypeResolver {
	if s.files == nil {
		return protoregistry.GlobalTypes
	}
	return protoresolve.Combine(protoresolve.ResolverFromPool(s.files), protoresolve.GlobalDescriptors).AsTypeResolver()
}

// methodPath returns SERVICE/METHOD.
func methodPath(m protoreflect.MethodDescriptor) string {
	return string(m.Parent().FullName()) + "/" + string(m.Name())
}

// MethodPaths returns the paths of all methods of services, in order.
func MethodPaths(services []protoreflect.ServiceDescriptor) []string {
	var paths []string
	for _, service := range services {
		for i := range service.Methods().Len() {
			paths = append(paths, methodPath(service.Methods().Get(i)))
		}
	}
	return paths
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

// matches reports whether a service is named by the end of its full name; the empty name is that of all.
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

// nearestTo returns the paths of the methods, at most three, whose name is most like the one in a selector.
func nearestTo(selector string, paths []string) (similar []string) {
	const most = 2000 // bounds the effort
	paths = paths[:min(len(paths), most)]
	var names []string
	for _, path := range paths {
		names = append(names, path[strings.LastIndexByte(path, '/')+1:])
	}
	_, method := split(selector)
	meant, ok := suggest.To(method, names)
	for i, name := range names {
		if ok && name == meant && len(similar) < 3 {
			similar = append(similar, paths[i])
		}
	}
	return similar
}
