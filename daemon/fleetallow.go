package daemon

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
)

// FleetAllow allows calls from other nodes. All of its parts have to match; in each, "*" alone matches everything, and else the patterns
// are those of [path.Match]: * stands for any text without a slash.
type FleetAllow struct {
	// Identity is a pattern for who calls, see [fleet.Identities]. A URI is only matched by a pattern with "://", or by "*".
	Identity string
	// Types and Names are patterns for the type, or role, and the name of the plugin as the caller writes them.
	Types, Names []string
	// Methods are patterns for SERVICE/METHOD, for example csi.v1.Controller/*.
	Methods []string
}

func (a FleetAllow) validate() error {
	for _, part := range []struct {
		key      string
		patterns []string
	}{{"identity", []string{a.Identity}}, {"types", a.Types}, {"names", a.Names}, {"methods", a.Methods}} {
		if len(part.patterns) == 0 || slices.Contains(part.patterns, "") {
			return fmt.Errorf(`%s is empty and would allow nothing: name what is allowed, or "*" for everything`, part.key)
		}
		for _, pattern := range part.patterns {
			if _, err := path.Match(pattern, ""); err != nil {
				return fmt.Errorf("%s has %q, which is no pattern: %w", part.key, pattern, err)
			}
		}
	}
	return nil
}

func (a FleetAllow) equal(other FleetAllow) bool {
	return a.Identity == other.Identity && slices.Equal(a.Types, other.Types) && slices.Equal(a.Names, other.Names) &&
		slices.Equal(a.Methods, other.Methods)
}

// errWithdrawn ends calls that no rule allows any more.
var errWithdrawn = errors.New("the call was ended because no rule in fleet.serve.allow of the node allows it any more")

// fleetRules are the rules in force, and the calls that they let in.
type fleetRules struct {
	mu    sync.Mutex
	rules []FleetAllow
	calls map[*fleetCall]bool
}

// fleetCall is a call from another node.
type fleetCall struct {
	identities          []string
	ptype, name, method string
	cancel              context.CancelCauseFunc
}

func newFleetRules(rules []FleetAllow) *fleetRules {
	return &fleetRules{rules: rules, calls: map[*fleetCall]bool{}}
}

// admit says whether a call is allowed. One that is ends when no rule allows it any more, until it is done.
func (r *fleetRules) admit(c *fleetCall) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.allow(c) {
		return false
	}
	r.calls[c] = true
	return true
}

func (r *fleetRules) done(c *fleetCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, c)
}

// use puts other rules in force, and ends the calls that they do not allow.
func (r *fleetRules) use(rules []FleetAllow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = rules
	for c := range r.calls {
		if !r.allow(c) {
			c.cancel(errWithdrawn)
		}
	}
}

// allow is allowed for a call. mu is held.
func (r *fleetRules) allow(c *fleetCall) bool {
	return allowed(r.rules, c.identities, c.ptype, c.name, c.method)
}

// allowed says whether one of the rules lets somebody call a method of a plugin.
func allowed(rules []FleetAllow, identities []string, ptype, name, method string) bool {
	method = strings.TrimPrefix(method, "/")
	return slices.ContainsFunc(rules, func(a FleetAllow) bool {
		return slices.ContainsFunc(identities, a.matchIdentity) && matchAny(a.Types, ptype) && matchAny(a.Names, name) &&
			matchAny(a.Methods, method)
	})
}

func (a FleetAllow) matchIdentity(identity string) bool {
	if a.Identity == "*" {
		return true
	}
	pattern := a.Identity
	if isURI := strings.Contains(identity, "://"); isURI != strings.Contains(pattern, "://") {
		return false
	} else if !isURI {
		pattern = strings.ToLower(pattern)
	}
	return matchAny([]string{pattern}, identity)
}

func matchAny(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, text)
		return pattern == "*" || err == nil && matched
	})
}

// errNoCertificate says that a listener has nothing to show.
var errNoCertificate = errors.New("calls from other nodes need a certificate: name the files cert, key and ca")
