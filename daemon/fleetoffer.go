package daemon

import (
	"slices"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/command/config"
)

// useOffers puts other rules in force, for calls that begin from then on.
func (m *fleetMember) useOffers(offers []config.FleetOffer) {
	if m != nil {
		m.offers.Store(&offers)
	}
}

// reload takes over what a reload brings: who may offer what, and files of certificates that have changed. Calls at nodes whose CA is gone
// end.
func (m *fleetMember) reload(offers []config.FleetOffer) {
	m.useOffers(offers)
	m.certificates()
}

// mayOffer is that of a [fleet.DialerConfig].
func (m *fleetMember) mayOffer(node, ptype, name string) bool {
	offers := *m.offers.Load()
	return len(offers) == 0 || slices.ContainsFunc(offers, func(o config.FleetOffer) bool {
		return matchAny([]string{strings.ToLower(o.Node)}, strings.ToLower(node)) && matchAny(o.Types, ptype) && matchAny(o.Names, name)
	})
}
