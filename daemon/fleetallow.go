package daemon

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
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
