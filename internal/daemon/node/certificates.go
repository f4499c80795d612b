package node

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/fleet/certfile"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// certificatesCondition is the name of the condition of the certificates of the node.
	certificatesCondition = "fleet-certificates"
	// certificateLook is how often the files are read, in addition to each call: no file system reliably reports that a file was replaced.
	certificateLook = time.Minute
)

// Certificates returns the certificates of the node, by their use. It reads files that have changed. It can be called on a nil Node.
func (n *Node) Certificates() map[string]certfile.Certificate {
	all := map[string]certfile.Certificate{}
	if n == nil {
		return all
	}
	if n.credentials != nil {
		calledAs := "" // the node, if it takes calls from others
		if n.Fleet.Serve.Listen != "" {
			calledAs = n.name
		}
		all["nodes"] = n.credentials.Certificate(calledAs)
	}
	if c := n.cluster.Certificate(); !c.Expires.IsZero() {
		all["etcd"] = c
	}
	return all
}

// certificateCondition is degraded if a certificate cannot be used.
func (n *Node) certificateCondition() plugin.Condition {
	condition := plugin.Condition{Name: certificatesCondition, OK: true}
	all := n.Certificates()
	for _, use := range slices.Sorted(maps.Keys(all)) {
		if c := all[use]; c.Err != nil {
			condition.OK, condition.Since = false, c.Since
			condition.Message = "the certificate for " + use + " cannot be used: " + untrusted.Valid(c.Err.Error())
		}
	}
	return condition
}

// watchCertificates announces changes of the condition until ctx ends, and checks the calls in progress again: their CA may be gone.
func (n *Node) watchCertificates(ctx context.Context) {
	before := plugin.Condition{Name: certificatesCondition, OK: true}
	for pause := time.Duration(0); len(n.Certificates()) > 0 && backoff.Pause(ctx, pause); {
		now := n.certificateCondition()
		if now.OK != before.OK || now.Message != before.Message {
			n.announce(now)
		}
		before = now
		n.rules.Recheck()
		pause = certificateLook
		for _, c := range n.Certificates() {
			if left := time.Until(c.Expires) + time.Millisecond; left > 0 {
				pause = min(pause, left)
			}
		}
	}
}
