// Package dyncall calls gRPC methods whose types are known only at run time. A [Schema] has the services of a server: from reflection, from
// proto files, or built in for the kubelet's plugin protocols. It turns JSON into requests and answers into JSON, and prints services as
// proto text.
//
// Descriptors from a server are bounded and checked before use. The package is for people who try out plugins; programs that know their
// plugins use generated clients.
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

// Source is the origin of the services of a [Schema].
type Source int

const (
	// BuiltIn services are those of [Builtin]; the server may lack some of them.
	BuiltIn Source = iota
	// Reflected services were listed by the server.
	Reflected
	// FromFiles services are those of [Files].
	FromFiles
)

// Schema has the services of a server. It is read-only, and safe for concurrent use.
type Schema struct {
	Source Source
	// Services are the services whose methods are known, sorted by name.
	Services []protoreflect.ServiceDescriptor
	// Undescribed are the names of the server's other services, sorted: it does not describe them, or the selector of [Load] excludes them.
	Undescribed []protoreflect.FullName

	// others are built-in services that plugins of the type do not have. They are found only by their full names.
	others []protoreflect.ServiceDescriptor
	// unannounced are built-in services for the type that belong to none of the plugin's versions.
	unannounced []protoreflect.FullName
	versions    []string             // announced by the plugin
	files       *protoregistry.Files // from the server or from Files; nil for built-in services
}

func (s *Schema) add(service protoreflect.ServiceDescriptor) {
	i, _ := slices.BinarySearchFunc(s.Services, service.FullName(), func(have protoreflect.ServiceDescriptor, name protoreflect.FullName) int {
		return strings.Compare(string(have.FullName()), string(name))
	})
	s.Services = slices.Insert(s.Services, i, service)
}

// Method returns the method that a selector names: SERVICE/METHOD, SERVICE.METHOD or METHOD. SERVICE may lack leading parts of the
// service's full name. If no method matches, or more than one, the error lists the candidates.
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

// exactly returns the service with the full name; nil if there is none.
func (s *Schema) exactly(name protoreflect.FullName) protoreflect.ServiceDescriptor {
	i := slices.IndexFunc(s.Services, func(service protoreflect.ServiceDescriptor) bool { return service.FullName() == name })
	if i < 0 {
		return nil
	}
	return s.Services[i]
}

// matching returns the services that match a name; see [matches].
func (s *Schema) matching(name string) []protoreflect.ServiceDescriptor {
	isOther := func(service protoreflect.ServiceDescriptor) bool { return !matches(service.FullName(), name) }
	return slices.DeleteFunc(slices.Clone(s.Services), isOther)
}

// noMethod returns the error for an unknown method. It suggests similar methods, or lists what exists.
func (s *Schema) noMethod(selector, service string) error {
	if i := slices.IndexFunc(s.unannounced, func(name protoreflect.FullName) bool { return matches(name, service) }); i >= 0 && service != "" {
		return fmt.Errorf("unknown method %s: service %s belongs to no version that the plugin announces: %s", selector, s.unannounced[i],
			untrusted.QuoteAll(s.versions))
	}
	var own []string // methods of the service in the selector
	if service != "" {
		i := slices.IndexFunc(s.Undescribed, func(name protoreflect.FullName) bool { return matches(name, service) })
		if i >= 0 {
			return fmt.Errorf("unknown method %s: the plugin has service %s, but does not describe its methods", selector, s.Undescribed[i])
		}
		own = MethodPaths(s.matching(service))
	}
	if similar := nearestTo(selector, own); len(similar) > 0 {
		return fmt.Errorf("unknown method %s: did you mean %s", selector, list(similar))
	}
	if len(own) > 0 {
		return fmt.Errorf("unknown method %s: there are %s", selector, list(own))
	}
	reason := map[Source]string{
		BuiltIn:   "the plugin has no reflection, and no built-in service has it",
		Reflected: "no service of the plugin has it",
		FromFiles: "no service of the files has it",
	}[s.Source]
	if similar := nearestTo(selector, MethodPaths(s.Services)); len(similar) > 0 {
		return fmt.Errorf("unknown method %s: %s, did you mean %s", selector, reason, list(similar))
	}
	var names []string
	for _, candidate := range s.Services {
		names = append(names, string(candidate.FullName()))
	}
	for _, name := range s.Undescribed {
		names = append(names, string(name))
	}
	if len(names) == 0 {
		return fmt.Errorf("unknown method %s: %s", selector, reason)
	}
	return fmt.Errorf("unknown method %s: %s; the services are %s", selector, reason, list(names))
}

// types resolves the types of Any messages from the schema's files and from this program.
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

// matches reports whether name is the full name of a service or its last parts. The empty name matches all services.
func matches(full protoreflect.FullName, name string) bool {
	return name == "" || string(full) == name || strings.HasSuffix(string(full), "."+name)
}

// list joins names for an error. It counts those after the first few.
func list(names []string) string {
	const most = 12
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// nearestTo returns the paths of up to three methods with the name that is most similar to the one in the selector.
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
