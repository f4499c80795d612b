package untrusted

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// The plugin types of the kubelet. The constants of its module are not used, because importing it makes every program larger.
const (
	typeCSI    = "CSIPlugin"
	typeDRA    = "DRAPlugin"
	typeDevice = "DevicePlugin"
)

const (
	maxSegment  = 63
	maxFileName = 255
	// quotaPrefix precedes the names of resources in quotas of Kubernetes. A DNS subdomain, including the prefix, has at most 253 bytes.
	quotaPrefix = "requests."
	maxDomain   = 253 - len(quotaPrefix)
)

var (
	domain  = pattern(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	segment = pattern(`^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$`)
)

// pattern compiles a pattern at its first use: most plugins, which link this package, never use one.
func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// IsType reports whether a text is a plugin type: printable, not empty and without a slash, at which the type of TYPE/NAME ends.
func IsType(text string) bool { return text != "" && !strings.Contains(text, "/") && Printable(text) }

// TypeSyntax is the end of a message about a text that is not a plugin type.
const TypeSyntax = "is not a plugin type: it must have printable characters, at least one, and no slash"

// CheckType returns an error if a configured plugin type is not one.
func CheckType(text string) error {
	if !IsType(text) {
		return fmt.Errorf("%q %s, for example MyPlugin", text, TypeSyntax)
	}
	return nil
}

// isSegment reports whether a text is 1 to 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends.
func isSegment(text string) bool { return len(text) <= maxSegment && segment().MatchString(text) }

// Topology returns an error if a CSI topology breaks the rules of the specification for keys and values, except that all prefixes be equal:
// widely used drivers have several.
func Topology(segments map[string]string) error {
	seen := make(map[string]bool, len(segments))
	for key, value := range segments {
		prefix, name, hasPrefix := strings.Cut(key, "/")
		if !hasPrefix {
			prefix, name = "none", key
		}
		lower := strings.ToLower(key)
		switch {
		case !isSegment(name) || !isSegment(prefix) || strings.Contains(prefix, "_") || strings.ToLower(prefix) != prefix:
			return fmt.Errorf("%s is not a topology key: write NAME or PREFIX/NAME, for example com.example/zone", Quote(key))
		case !isSegment(value):
			return fmt.Errorf("%s, the value of topology key %s, is not a topology segment: 1 to 63 letters, digits, dashes, underscores and "+
				"dots, for example z1", Quote(value), key)
		case seen[lower]:
			return fmt.Errorf("topology key %s is there twice; upper and lower case are the same", key)
		}
		seen[lower] = true
	}
	return nil
}

// PluginName returns an error if a name violates the rules of its plugin type. Only the types of the kubelet have rules.
func PluginName(ptype, name string) error {
	switch ptype {
	case typeCSI:
		return driverName("CSI", name, isSegment(name) && !strings.Contains(name, "_"),
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

// resourceName applies the rules of Kubernetes for extended resources: DOMAIN/NAME, with a domain that is not one of Kubernetes.
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
	case !isSegment(name):
		wrong = fmt.Sprintf("has a name behind the domain that is not made of up to %d letters, digits, -, _ and . that begins and ends with "+
			"a letter or digit; name it like example.com/gpu", maxSegment)
	default:
		return nil
	}
	return fmt.Errorf("resource name %s %s", Quote(resource), wrong)
}

// Endpoint returns an error if a device plugin must not register a socket of this name with the kubelet's own registration service, whose
// socket has the name kubelet and is in the same directory.
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
