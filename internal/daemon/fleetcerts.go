package daemon

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	// certificatesCondition is the name of the condition of the certificates of the node.
	certificatesCondition = "fleet-certificates"
	// certificateLook is how often the files are looked at, besides for each call: a file does not say that it was replaced, on whatever
	// file system it is.
	certificateLook = time.Minute
)

// certificates returns those of the node, by what they are for. It looks at the files.
func (m *fleetMember) certificates() map[string]fleet.Certificate {
	all := map[string]fleet.Certificate{}
	if m == nil {
		return all
	}
	if m.credentials != nil {
		all["nodes"] = m.credentials.Certificate(m.calledAs)
	}
	if c := m.cluster.Certificate(); !c.Expires.IsZero() {
		all["etcd"] = c
	}
	return all
}

// certificateCondition says whether the certificates can be used.
func (m *fleetMember) certificateCondition() patchbay.Condition {
	condition := patchbay.Condition{Name: certificatesCondition, OK: true}
	all := m.certificates()
	for _, use := range slices.Sorted(maps.Keys(all)) {
		if c := all[use]; c.Err != nil {
			condition.OK, condition.Since = false, c.Since
			condition.Message = "the certificate for " + use + " cannot be used: " + untrusted.Valid(c.Err.Error())
		}
	}
	return condition
}

// watchCertificates makes changes of the condition known until ctx ends, and has calls in progress judged again, whose CA may be gone.
func (m *fleetMember) watchCertificates(ctx context.Context, judge func()) {
	before := patchbay.Condition{Name: certificatesCondition, OK: true}
	for pause := time.Duration(0); len(m.certificates()) > 0 && backoff.Pause(ctx, pause); {
		now := m.certificateCondition()
		if now.OK != before.OK || now.Message != before.Message {
			m.announce(fleet.Condition(now))
		}
		before = now
		judge()
		pause = certificateLook
		for _, c := range m.certificates() {
			if left := time.Until(c.Expires) + time.Millisecond; left > 0 {
				pause = min(pause, left)
			}
		}
	}
}
