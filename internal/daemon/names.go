package daemon

import (
	"fmt"
	"maps"
	"slices"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// roleGiver is what a handler may also be: it names the roles that it may give the plugins of its type.
type roleGiver interface{ Roles() []string }

// naming decides which plugin is meant by a type and a name, for all calls of the control API, all filters and the page. The type is the
// one that the plugin announced, or a role of it: one that its handler gave it, or might give it, if it was never registered.
type naming struct {
	// handlers returns the handlers by plugin type.
	handlers func() map[string]cache.PluginHandler
	// registered says whether a plugin is in the registry under a type or role.
	registered func(ptype, name string) bool
}

// isOf says whether a plugin is of a type or has it as a role. Its roles are empty if it was never registered, or if that is not known.
func (n naming) isOf(ptype, announced string, roles []string) bool {
	if len(roles) == 0 && ptype != announced {
		roles = n.mayHave(announced)
	}
	return ptype == announced || slices.Contains(roles, ptype)
}

// set is what a filter lets pass; an empty one lets everything pass.
type set map[string]bool

func setOf(values []string) set {
	s := make(set, len(values))
	for _, v := range values {
		s[v] = true
	}
	return s
}

func (s set) passes(value string) bool { return len(s) == 0 || s[value] }

// anyIsOf is isOf for any of some types, or for all if there are none.
func (n naming) anyIsOf(types set, announced string, roles []string) bool {
	if types.passes(announced) {
		return true
	}
	if len(roles) == 0 {
		roles = n.mayHave(announced)
	}
	return slices.ContainsFunc(roles, func(role string) bool { return types[role] })
}

// tellsOf says whether an event is about a plugin of any of some types, or of all if there are none. One that is registered has the roles
// that it has.
func (n naming) tellsOf(types set, e plugin.Event) bool {
	if types.passes(e.Type) {
		return true
	}
	roles := slices.DeleteFunc(slices.Clone(n.mayHave(e.Type)), func(role string) bool { return !types[role] })
	return len(roles) > 0 && (!n.registered(e.Type, e.Name) ||
		slices.ContainsFunc(roles, func(role string) bool { return n.registered(role, e.Name) }))
}

// concerned says which events are about a plugin of any of some types, or of all, with any of some names, or all. Those of a launched
// plugin are also about what it is registered as, or was last, and the other way round.
type concerned struct {
	c            *control
	types, names set
	// launched is what launched plugins of these names are registered as, or were last; nil to look at each event.
	launched map[plugin.Name]bool
}

// concerned returns which events concern a caller. With now, those are judged by what launched plugins are registered as now.
func (c *control) concerned(types, names []string, now bool) concerned {
	w := concerned{c: c, types: setOf(types), names: setOf(names)}
	if now {
		w.launched = w.launchedAs()
	}
	return w
}

func (w concerned) launchedAs() map[plugin.Name]bool {
	all := map[plugin.Name]bool{}
	for name := range w.names {
		if is, known := w.c.source.LaunchedAs(name); known {
			all[is] = true
		}
	}
	return all
}

func (w concerned) by(e plugin.Event) bool {
	if w.names.passes(e.Name) && w.c.tellsOf(w.types, e) {
		return true
	}
	if e.Type == "" {
		is, known := w.c.source.LaunchedAs(e.Name)
		e.Type, e.Name = is.Type, is.Name
		return known && w.names.passes(e.Name) && w.c.tellsOf(w.types, e)
	}
	if len(w.types) > 0 {
		return false
	}
	launched := w.launched
	if launched == nil {
		launched = w.launchedAs()
	}
	return launched[plugin.Name{Type: e.Type, Name: e.Name}]
}

// mayHave returns the roles that plugins of a type may have.
func (n naming) mayHave(ptype string) []string {
	if h, ok := n.handlers()[ptype].(roleGiver); ok {
		return h.Roles()
	}
	return nil
}

// means says whether an instance is one of the plugin that is asked for.
func (n naming) means(asked plugin.Name, s plugin.Status) bool {
	return s.Name == asked.Name && n.isOf(asked.Type, s.Type, s.Registration.Roles)
}

// launchedAt returns the socket of the launched plugin with a name in the catalogue, and whether there is one. The socket is empty if it
// does not serve.
func (c *control) launchedAt(name string) (socket string, known bool) {
	all := c.launched.Plugins()
	i := slices.IndexFunc(all, func(s plugin.LaunchStatus) bool { return s.Name == name })
	if i < 0 {
		return "", false
	}
	return all[i].Socket, true
}

// tells says whether an event may change what a plugin that is asked for is, whatever its type and roles.
func (c *control) tells(asked plugin.Name, e plugin.Event) bool {
	named := e.Kind == plugin.EventResync || e.Name == asked.Name
	if named || asked.Type != "" || e.SocketPath == "" {
		return named
	}
	socket, _ := c.launchedAt(asked.Name)
	return e.SocketPath == socket
}

// announced returns the name under which the plugin that is asked for registers, by what is known of it. Of one of which nothing is known
// it is the one that the handlers leave possible.
func (c *control) announced(asked plugin.Name) plugin.Name {
	if asked.Type == "" {
		if is := c.instances(asked); len(is) > 0 {
			return is[0].PluginName()
		}
		return asked
	}
	others := map[string]bool{} // types of plugins of the name that are not the one that is asked for
	for _, s := range slices.Concat(c.source.PluginsNamed(asked.Name), c.source.Refusals()) {
		if c.means(asked, s) {
			return s.PluginName()
		}
		others[s.Type] = others[s.Type] || s.Name == asked.Name
	}
	for _, ptype := range slices.Sorted(maps.Keys(c.handlers())) {
		if !others[ptype] && c.isOf(asked.Type, ptype, nil) {
			return plugin.Name{Type: ptype, Name: asked.Name}
		}
	}
	return asked
}

func validateTypeOrPlugin(key string) error {
	if _, isPlugin := plugin.ParseName(key); !isPlugin && !untrusted.IsType(key) {
		return fmt.Errorf("%q is neither a plugin type nor a plugin: write TYPE or TYPE/NAME, for example CSIPlugin/hostpath.csi.k8s.io", key)
	}
	return nil
}
