package verify

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// Bounds of what a plugin may announce: what hosts accept by default.
const (
	maxText     = 4096
	maxVersions = 64
	// maxShown bounds an error that repeats what a plugin says.
	maxShown = 512
)

func clip(s string) string { return foreign.Cut(s, maxShown) }

var (
	dnsSubdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	csiName      = regexp.MustCompile(`^[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?$`)
	qualified    = regexp.MustCompile(`^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$`)
	csiVersion   = regexp.MustCompile(`^v?(\d+)(\.\d+)+$`)
)

const (
	maxLabel     = 63
	maxSubdomain = 253
)

// checkCSIName follows the CSI specification for GetPluginInfoResponse.name.
func checkCSIName(name string) string {
	switch {
	case len(name) > maxLabel:
		return fmt.Sprintf("the driver's name has %d bytes, and CSI allows %d", len(name), maxLabel)
	case !csiName.MatchString(name):
		return fmt.Sprintf("%s is no domain name: letters, digits, dashes and dots, with a letter or digit at both ends", foreign.Quote(name))
	}
	return ""
}

// checkResourceName follows the rules of Kubernetes for names of extended resources.
func checkResourceName(resource string) string {
	domain, name, ok := strings.Cut(resource, "/")
	switch {
	case !ok:
		return fmt.Sprintf("%s is no extended resource: it has no domain, as in example.com/gpu", foreign.Quote(resource))
	case !dnsSubdomain.MatchString(domain) || len(domain) > maxSubdomain:
		return fmt.Sprintf("%s has %s as its domain, which is no lower-case DNS name", foreign.Quote(resource), foreign.Quote(domain))
	case domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io"):
		return fmt.Sprintf("%s is in the domain kubernetes.io, which is reserved", foreign.Quote(resource))
	case strings.HasPrefix(domain, "requests."):
		return fmt.Sprintf("%s begins with \"requests.\", which is kept for quotas", foreign.Quote(resource))
	case !qualified.MatchString(name) || len(name) > maxLabel:
		return fmt.Sprintf("%s has a name behind the slash that is not 1 to %d letters, digits, dashes, underscores and dots",
			foreign.Quote(resource), maxLabel)
	}
	return ""
}

// checkDRAName follows the rules of Kubernetes for names of DRA drivers.
func checkDRAName(name string) string {
	switch {
	case len(name) > maxLabel:
		return fmt.Sprintf("the driver's name has %d bytes, and DRA allows %d", len(name), maxLabel)
	case !dnsSubdomain.MatchString(name):
		return fmt.Sprintf("%s is no DNS subdomain: lower-case letters, digits, dashes and dots", foreign.Quote(name))
	}
	return ""
}
