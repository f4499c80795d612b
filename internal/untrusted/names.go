package untrusted

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// The types of the kubelet, whose names have rules. The constants of its module would bring that into every program that checks a text.
const (
	typeCSI    = "CSIPlugin"
	typeDRA    = "DRAPlugin"
	typeDevice = "DevicePlugin"
)

const (
	maxSegment  = 63
	maxFileName = 255
	// quotaPrefix is what Kubernetes puts before the name of a resource in quotas. A DNS subdomain has at most 253 bytes, of which it takes
	// some.
	quotaPrefix = "requests."
	maxDomain   = 253 - len(quotaPrefix)
)

var (
	domain  = pattern(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	segment = pattern(`^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$`)
)

// pattern compiles a pattern when it is first needed: a plugin is built with this package, and may never need one.
func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// IsType reports whether a text has the syntax of a plugin type, as [TypeSyntax] describes it. In TYPE/NAME the type ends at the first
// slash.
func IsType(text string) bool { return text != "" && !strings.Contains(text, "/") && Printable(text) }

// TypeSyntax is what messages say about a text that is not a plugin type.
const TypeSyntax = "is not a plugin type: it must have printable characters, at least one, and no slash"

// CheckType returns what is wrong with a plugin type that was configured.
func CheckType(text string) error {
	if !IsType(text) {
		return fmt.Errorf("%q %s, for example MyPlugin", text, TypeSyntax)
	}
	return nil
}

// IsSegment reports whether a text is 1 to 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends.
func IsSegment(text string) bool { return len(text) <= maxSegment && segment().MatchString(text) }

// PluginName returns what is wrong with the name of a plugin, by the rules for its type. Types other than those of the kubelet have none.
func PluginName(ptype, name string) error {
	switch ptype {
	case typeCSI:
		return driverName("CSI", name, IsSegment(name) && !strings.Contains(name, "_"),
			"letters, digits, dashes and dots are allowed, and it begins and ends with a letter or digit, for example hostpath.csi.k8s.io")
	case typeDRA:
		return driverName("DRA", name, domain().MatchString(name), "it must be a DNS subdomain, for example gpu.example.com")
	case typeDevice:
		return resourceName(name)
	}
	return nil
}

func driverName(kind, name string, ok bool, rule string) error {
	switch {
	case len(name) > maxSegment:
		return fmt.Errorf("a %s driver's name of %d bytes is too long: %d are allowed", kind, len(name), maxSegment)
	case !ok:
		return fmt.Errorf("%s is not a valid name of a %s driver: %s", Quote(name), kind, rule)
	}
	return nil
}

// resourceName has the rules of Kubernetes for extended resources: DOMAIN/NAME, with a domain that is not Kubernetes' own.
func resourceName(resource string) error {
	prefix, name, both := strings.Cut(resource, "/")
	var wrong string
	switch {
	case !both:
		wrong = "has no domain; name it like example.com/gpu"
	case strings.Contains(resource, "kubernetes.io/"):
		wrong = "has a domain of Kubernetes; use a domain of your own"
	case strings.HasPrefix(resource, quotaPrefix):
		wrong = "begins with " + quotaPrefix + ", which is reserved; use a domain of your own"
	case len(prefix) > maxDomain || !domain().MatchString(prefix):
		wrong = fmt.Sprintf("has a domain that is not a lower-case DNS name of up to %d bytes; name it like example.com/gpu", maxDomain)
	case !IsSegment(name):
		wrong = fmt.Sprintf("has a name behind the domain that is not made of up to %d letters, digits, -, _ and . that begins and ends with "+
			"a letter or digit; name it like example.com/gpu", maxSegment)
	default:
		return nil
	}
	return fmt.Errorf("resource name %s %s", Quote(resource), wrong)
}

// Endpoint returns what is wrong with the name under which a device plugin registers its socket the older way, on the socket kubelet in the
// same directory.
func Endpoint(name, kubelet string) error {
	if err := Required("the endpoint", name, maxFileName); err != nil {
		return err
	}
	if strings.ContainsAny(name, `/\`) || strings.HasPrefix(name, ".") || name == kubelet {
		return fmt.Errorf("endpoint %s is not the name of a socket of the plugin: name a file in the directory of %s, without the directory",
			Quote(name), kubelet)
	}
	return nil
}
