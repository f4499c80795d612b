package verify

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of what a plugin may announce: what hosts accept by default.
const (
	maxText     = 4096
	maxVersions = 64
	// maxShown bounds a text of a plugin in a result.
	maxShown = 512
)

// clip bounds a text.
func clip(s string) string {
	if len(s) <= maxShown {
		return s
	}
	cut := maxShown
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + fmt.Sprintf("… (%d bytes)", len(s))
}

// quote returns a text of a plugin in quotes, in bounded length.
func quote(s string) string { return strconv.Quote(clip(s)) }

func quoteAll(all []string) string {
	quoted := make([]string, min(len(all), 16))
	for i := range quoted {
		quoted[i] = quote(all[i])
	}
	text := strings.Join(quoted, ", ")
	if len(all) > len(quoted) {
		text += fmt.Sprintf(" and %d more", len(all)-len(quoted))
	}
	return "[" + text + "]"
}

// checkText returns what is wrong with a text that names something, or nothing.
func checkText(what, s string) string {
	switch {
	case s == "":
		return what + " is empty"
	case len(s) > maxText:
		return fmt.Sprintf("%s has %d bytes, and hosts accept %d at most", what, len(s), maxText)
	case !utf8.ValidString(s):
		return fmt.Sprintf("%s %s is not UTF-8", what, quote(s))
	case strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }):
		return fmt.Sprintf("%s %s has spaces or characters that cannot be printed", what, quote(s))
	}
	return ""
}

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
		return fmt.Sprintf("%s is no domain name: letters, digits, dashes and dots, with a letter or digit at both ends", quote(name))
	}
	return ""
}

// checkResourceName follows the rules of Kubernetes for names of extended resources.
func checkResourceName(resource string) string {
	domain, name, ok := strings.Cut(resource, "/")
	switch {
	case !ok:
		return fmt.Sprintf("%s is no extended resource: it has no domain, as in example.com/gpu", quote(resource))
	case !dnsSubdomain.MatchString(domain) || len(domain) > maxSubdomain:
		return fmt.Sprintf("%s has %s as its domain, which is no lower-case DNS name", quote(resource), quote(domain))
	case domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io"):
		return fmt.Sprintf("%s is in the domain kubernetes.io, which is reserved", quote(resource))
	case strings.HasPrefix(domain, "requests."):
		return fmt.Sprintf("%s begins with \"requests.\", which is kept for quotas", quote(resource))
	case !qualified.MatchString(name) || len(name) > maxLabel:
		return fmt.Sprintf("%s has a name behind the slash that is not 1 to %d letters, digits, dashes, underscores and dots", quote(resource),
			maxLabel)
	}
	return ""
}

// checkDRAName follows the rules of Kubernetes for names of DRA drivers.
func checkDRAName(name string) string {
	switch {
	case len(name) > maxLabel:
		return fmt.Sprintf("the driver's name has %d bytes, and DRA allows %d", len(name), maxLabel)
	case !dnsSubdomain.MatchString(name):
		return fmt.Sprintf("%s is no DNS subdomain: lower-case letters, digits, dashes and dots", quote(name))
	}
	return ""
}
