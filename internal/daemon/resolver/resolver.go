// Package resolver determines which plugin a type and a name refer to, for all methods and filters of the control API, the status page, and
// calls from other nodes.
//
// The type may be the type that the plugin announced or one of its roles. A registered instance has the roles that its handler gave it; a
// plugin that was never registered may have any role that the handler can give. Without a type, the name is that of a launched plugin in
// the catalogue.
package resolver

import (
	"maps"
	"slices"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Runtime provides the plugins that are known.
type Runtime interface {
	Plugins() []plugin.Status
	PluginsNamed(name string) []plugin.Status
	Refusals() []plugin.Status
	// LaunchedAs returns the name under which a launched plugin is registered, or was last.
	LaunchedAs(name string) (plugin.Name, bool)
}

// Launcher provides the launched plugins.
type Launcher interface {
	Plugins() []plugin.LaunchStatus
}

// Registry provides the instances that are registered.
type Registry interface {
	Instances(ptype, name string) []dynamicplugins.Instance
}

// Handlers provides the handlers by plugin type. A handler with a method Roles() []string may give its plugins these roles.
type Handlers interface {
	All() map[string]cache.PluginHandler
}

// Resolver resolves types and names. Its methods may be called concurrently.
type Resolver struct {
	runtime  Runtime
	launcher Launcher
	registry Registry
	handlers Handlers
}

// New returns a resolver.
func New(runtime Runtime, launched Launcher, registry Registry, handlers Handlers) *Resolver {
	return &Resolver{runtime, launched, registry, handlers}
}

// Set is a filter by one property. An empty set contains everything.
type Set map[string]bool

// SetOf returns the set of some values.
func SetOf(values []string) Set {
	s := make(Set, len(values))
	for _, v := range values {
		s[v] = true
	}
	return s
}

// Contains reports whether a value passes the filter.
func (s Set) Contains(value string) bool { return len(s) == 0 || s[value] }

// possibleRoles returns the roles that plugins of a type may have.
func (r *Resolver) possibleRoles(ptype string) []string {
	if h, ok := r.handlers.All()[ptype].(interface{ Roles() []string }); ok {
		return h.Roles()
	}
	return nil
}

// HasType reports whether a plugin has one of the given types, as its announced type or as a role. If roles is empty, it uses the roles
// that the handler may give.
func (r *Resolver) HasType(types Set, announced string, roles []string) bool {
	if types.Contains(announced) {
		return true
	}
	if len(roles) == 0 {
		roles = r.possibleRoles(announced)
	}
	return slices.ContainsFunc(roles, func(role string) bool { return types[role] })
}

// hasType is HasType for one type.
func (r *Resolver) hasType(ptype, announced string, roles []string) bool {
	return r.HasType(Set{ptype: true}, announced, roles)
}

// matches reports whether an instance is one of the named plugin.
func (r *Resolver) matches(name plugin.Name, s plugin.Status) bool {
	return s.Name == name.Name && r.hasType(name.Type, s.Type, s.Registration.Roles)
}

// Launched returns the plugin with a name in the catalogue.
func (r *Resolver) Launched(name string) (plugin.LaunchStatus, bool) {
	all := r.launcher.Plugins()
	if i := slices.IndexFunc(all, func(s plugin.LaunchStatus) bool { return s.Name == name }); i >= 0 {
		return all[i], true
	}
	return plugin.LaunchStatus{}, false
}

// Instances returns the instances of the named plugin, newest first.
func (r *Resolver) Instances(name plugin.Name) []plugin.Status {
	if name.Type != "" {
		return slices.DeleteFunc(r.runtime.PluginsNamed(name.Name), func(s plugin.Status) bool { return !r.matches(name, s) })
	}
	return slices.DeleteFunc(r.runtime.Plugins(), func(s plugin.Status) bool { // those that are launched may not have announced a type yet
		return s.Type == "" || s.Launch == nil || s.Launch.Name != name.Name
	})
}

// Announced returns the name that the named plugin announces, by its instances, its refusals and the handlers; else the name itself.
func (r *Resolver) Announced(name plugin.Name) plugin.Name {
	if name.Type == "" {
		if instances := r.Instances(name); len(instances) > 0 {
			return instances[0].PluginName()
		}
		return name
	}
	others := map[string]bool{} // types of other plugins with this name
	for _, s := range slices.Concat(r.runtime.PluginsNamed(name.Name), r.runtime.Refusals()) {
		if r.matches(name, s) {
			return s.PluginName()
		}
		others[s.Type] = others[s.Type] || s.Name == name.Name
	}
	for _, ptype := range slices.Sorted(maps.Keys(r.handlers.All())) {
		if !others[ptype] && r.hasType(name.Type, ptype, nil) {
			return plugin.Name{Type: ptype, Name: name.Name}
		}
	}
	return name
}

// InCatalogue returns the launched plugin with the given catalogue name, or that is or was last registered under the given TYPE/NAME.
func (r *Resolver) InCatalogue(text string) (plugin.LaunchStatus, bool) {
	if s, ok := r.Launched(text); ok {
		return s, true
	}
	name, ok := plugin.ParseName(text)
	if !ok {
		return plugin.LaunchStatus{}, false
	}
	for _, instance := range r.Instances(name) {
		if instance.Launch != nil {
			return *instance.Launch, true
		}
	}
	s, _, ok := r.FormerlyLaunched(name)
	return s, ok
}

// FormerlyLaunched returns the plugin of the catalogue that was last registered as the named plugin, and the name that it announced.
func (r *Resolver) FormerlyLaunched(name plugin.Name) (_ plugin.LaunchStatus, announced plugin.Name, ok bool) {
	for _, s := range r.launcher.Plugins() {
		last, known := r.runtime.LaunchedAs(s.Name)
		if name.Type == "" && s.Name == name.Name || known && last.Name == name.Name && r.hasType(name.Type, last.Type, nil) {
			return s, last, true
		}
	}
	return plugin.LaunchStatus{}, announced, false
}

// Concerns reports whether an event may change the instances of the named plugin.
func (r *Resolver) Concerns(name plugin.Name, e plugin.Event) bool {
	isNamed := e.Kind == plugin.EventResync || e.Name == name.Name
	if isNamed || name.Type != "" || e.SocketPath == "" {
		return isNamed
	}
	launched, _ := r.Launched(name.Name)
	return e.SocketPath == launched.Socket
}

// Filter selects events by the types and names of plugins. The events of a launched plugin also belong to the plugin under whose name it is
// registered, or was last, and vice versa.
type Filter struct {
	resolver     *Resolver
	types, names Set
	// launched are the names under which launched plugins of these names are registered, or were last; nil to look for each event.
	launched map[plugin.Name]bool
}

// Filter returns a filter. Empty types or names match everything. If arePast is true, the names of launched plugins are looked up only
// once.
func (r *Resolver) Filter(types, names []string, arePast bool) Filter {
	f := Filter{resolver: r, types: SetOf(types), names: SetOf(names)}
	if arePast {
		f.launched = f.launchedAs()
	}
	return f
}

func (f Filter) launchedAs() map[plugin.Name]bool {
	all := map[plugin.Name]bool{}
	for name := range f.names {
		if announced, ok := f.resolver.runtime.LaunchedAs(name); ok {
			all[announced] = true
		}
	}
	return all
}

// Matches reports whether an event passes the filter.
func (f Filter) Matches(e plugin.Event) bool {
	if f.names.Contains(e.Name) && f.matchesType(e) {
		return true
	}
	if e.Type == "" {
		announced, ok := f.resolver.runtime.LaunchedAs(e.Name)
		e.Type, e.Name = announced.Type, announced.Name
		return ok && f.names.Contains(e.Name) && f.matchesType(e)
	}
	if len(f.types) > 0 {
		return false
	}
	launched := f.launched
	if launched == nil {
		launched = f.launchedAs()
	}
	return launched[plugin.Name{Type: e.Type, Name: e.Name}]
}

// matchesType reports whether an event is about a plugin of one of the types. A registered plugin has only the roles in the registry.
func (f Filter) matchesType(e plugin.Event) bool {
	if f.types.Contains(e.Type) {
		return true
	}
	isRegistered := func(ptype string) bool { return len(f.resolver.registry.Instances(ptype, e.Name)) > 0 }
	roles := slices.DeleteFunc(slices.Clone(f.resolver.possibleRoles(e.Type)), func(role string) bool { return !f.types[role] })
	return len(roles) > 0 && (!isRegistered(e.Type) || slices.ContainsFunc(roles, isRegistered))
}

// LaunchedFilter returns a function that reports whether an event is about a plugin of the catalogue, as it is registered or was last.
func (r *Resolver) LaunchedFilter(name string) func(plugin.Event) bool {
	announced, ok := r.runtime.LaunchedAs(name)
	return func(e plugin.Event) bool {
		return e.Type == "" && e.Name == name || ok && announced == plugin.Name{Type: e.Type, Name: e.Name}
	}
}

// IsUnhealthy reports whether the current instance of a plugin with a type, or role, and a name was launched and its health check fails.
func (r *Resolver) IsUnhealthy(ptype, name string) bool {
	return slices.ContainsFunc(r.runtime.PluginsNamed(name), func(s plugin.Status) bool {
		return s.Current && s.FailsHealthChecks() && (s.Type == ptype || slices.Contains(s.Registration.Roles, ptype))
	})
}
