package daemon

import (
	"slices"
	"strings"
)

// FleetOffer lets nodes offer plugins: if there are any rules, this node calls no plugin at another node that none of them lets offer it.
// All of its parts have to match; the patterns are those of [FleetAllow].
type FleetOffer struct {
	// Node is a pattern for the name of the node, which its certificate has to have.
	Node string
	// Types and Names are patterns for the type, or role, and the name of the plugin as they are called.
	Types, Names []string
}

func (o FleetOffer) validate() error {
	return validatePatterns([]patterns{{"node", []string{o.Node}}, {"types", o.Types}, {"names", o.Names}})
}

// useOffers puts other rules in force, for calls that begin from then on.
func (m *fleetMember) useOffers(offers []FleetOffer) {
	if m != nil {
		m.offers.Store(&offers)
	}
}

// reload takes over what a reload brings: who may offer what, and files of certificates that have changed. Calls at nodes whose CA is gone
// end.
func (m *fleetMember) reload(offers []FleetOffer) {
	m.useOffers(offers)
	m.certificates()
}

// mayOffer is that of a [fleet.DialerConfig].
func (m *fleetMember) mayOffer(node, ptype, name string) bool {
	offers := *m.offers.Load()
	return len(offers) == 0 || slices.ContainsFunc(offers, func(o FleetOffer) bool {
		return matchAny([]string{strings.ToLower(o.Node)}, strings.ToLower(node)) && matchAny(o.Types, ptype) && matchAny(o.Names, name)
	})
}
