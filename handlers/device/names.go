package device

import (
	"fmt"
	"regexp"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

const (
	// maxPrefix is the greatest length of a resource's domain: a DNS subdomain has at most 253 bytes, of which the prefix requests. for
	// quotas of a cluster takes some.
	maxPrefix = 253 - len(quotaPrefix)
	maxName   = 63
	// maxOwner is the greatest length of an owner in bytes.
	maxOwner = 253
	// maxDeviceID is the greatest length of a device's ID in bytes. The API says 63, which the kubelet does not check and not every plugin
	// keeps.
	maxDeviceID = 256
	quotaPrefix = "requests."
)

var (
	domain        = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	qualifiedName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
)

// checkResource checks that a name is that of an extended resource, by the rules of Kubernetes: DOMAIN/NAME, with a domain that is not
// Kubernetes' own.
func checkResource(resource string) error {
	prefix, name, both := strings.Cut(resource, "/")
	switch {
	case !both:
		return fmt.Errorf("resource name %s has no domain; name it like example.com/gpu", foreign.Quote(resource))
	case strings.Contains(resource, "kubernetes.io/"):
		return fmt.Errorf("resource name %s has a domain of Kubernetes; use a domain of your own", foreign.Quote(resource))
	case strings.HasPrefix(resource, quotaPrefix):
		return fmt.Errorf("resource name %s begins with %s, which is reserved; use a domain of your own", foreign.Quote(resource), quotaPrefix)
	case len(prefix) > maxPrefix || !domain.MatchString(prefix):
		return fmt.Errorf("the domain of resource name %s is no lower-case DNS name of up to %d bytes; name it like example.com/gpu",
			foreign.Quote(resource), maxPrefix)
	case len(name) > maxName || !qualifiedName.MatchString(name):
		return fmt.Errorf("the name behind the domain of resource name %s is not made of up to %d letters, digits, -, _ and . that begins "+
			"and ends with a letter or digit; name it like example.com/gpu", foreign.Quote(resource), maxName)
	}
	return nil
}

// checkVersions checks that one of the versions is supported.
func checkVersions(versions []string) error {
	for _, v := range versions {
		if v == pluginapi.Version {
			return nil
		}
	}
	return fmt.Errorf("none of the versions %s of the device plugin API is supported; announce %s", foreign.QuoteAll(versions),
		pluginapi.Version)
}
