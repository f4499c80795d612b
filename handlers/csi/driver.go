package csi

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// retry is the back-off between attempts. A driver is registered within a second of being ready.
var retry = backoff.Backoff{Min: 100 * time.Millisecond, Max: 800 * time.Millisecond}

type driver struct {
	identity    csipb.IdentityClient
	node        csipb.NodeClient
	callTimeout time.Duration
}

// await calls the driver until it is ready and has answered, until timeout. It does not repeat calls after an invalid answer.
func (d driver) await(ctx context.Context, timeout time.Duration, name, version string) (plugin.Registration, error) {
	bounded, cancel := context.WithTimeout(ctx, timeout) // the last round of calls is not cut short: it says what is wrong
	defer cancel()
	for failures := 1; ; failures++ {
		found, err := d.ask(ctx, name, version)
		if err == nil || !mayPass(err) {
			return found, err
		}
		switch {
		case backoff.Pause(bounded, retry.After(failures)):
		case ctx.Err() != nil:
			return plugin.Registration{}, fmt.Errorf("given up before it was ready: %w: %w", context.Cause(ctx), err)
		default:
			return plugin.Registration{}, fmt.Errorf("not ready within %v: %w", timeout, err)
		}
	}
}

// mayPass reports whether an error may be transient: the driver is not ready, or a call such as NodeGetInfo failed during a boot.
func mayPass(err error) bool {
	failed, isCall := status.FromError(err)
	return errors.Is(err, cache.ErrRetry) || isCall && failed.Code() != codes.Unimplemented
}

func (d driver) ask(ctx context.Context, name, version string) (plugin.Registration, error) {
	probed, err := endpoint.Call(ctx, d.callTimeout, "Probe", d.identity.Probe, &csipb.ProbeRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented:
		// It cannot say that it is not ready. That there is a driver at all shows with the next call, which every one implements.
	case err != nil:
		return plugin.Registration{}, err
	case probed.GetReady() != nil && !probed.GetReady().GetValue():
		return plugin.Registration{}, fmt.Errorf("it says that it is not ready: %w", cache.ErrRetry)
	}
	vendorVersion, err := d.identify(ctx, name)
	if err != nil {
		return plugin.Registration{}, err
	}
	capabilities, err := d.capabilities(ctx)
	if err != nil {
		return plugin.Registration{}, err
	}
	found := plugin.Registration{
		Version:       vendorVersion,
		Details:       map[string]string{KeyVersion: version},
		WatchEndpoint: true,
	}
	if len(capabilities) > 0 {
		found.Details[KeyCapabilities] = strings.Join(capabilities, ",")
	}
	servesNode, err := d.servesNode(ctx, found.Details)
	if err != nil {
		return plugin.Registration{}, err
	}
	if servesNode {
		found.Roles = append(found.Roles, dynamicplugins.PluginTypeCSINode)
	}
	if slices.Contains(capabilities, csipb.PluginCapability_Service_CONTROLLER_SERVICE.String()) {
		found.Roles = append(found.Roles, dynamicplugins.PluginTypeCSIController)
	}
	if len(found.Roles) == 0 {
		return plugin.Registration{}, errors.New("it serves no node, and has not the capability CONTROLLER_SERVICE; implement the Node service")
	}
	return found, nil
}

// identify checks that the driver has the announced name, and returns its vendor version.
func (d driver) identify(ctx context.Context, name string) (vendorVersion string, err error) {
	answer, err := endpoint.Call(ctx, d.callTimeout, "GetPluginInfo", d.identity.GetPluginInfo, &csipb.GetPluginInfoRequest{})
	if status.Code(err) == codes.Unimplemented {
		return "", fmt.Errorf("%w; it is no CSI driver, or not one of CSI 1.x: serve csi.v1.Identity there", err)
	}
	if err != nil {
		return "", err
	}
	if answer.GetName() != name {
		return "", fmt.Errorf("GetPluginInfo: the driver's own name is %s, and it was registered as %s; register it under its own name",
			untrusted.Quote(answer.GetName()), name)
	}
	if err := untrusted.Check("vendor_version", answer.GetVendorVersion(), maxString); err != nil {
		return "", fmt.Errorf("GetPluginInfo: %w", err)
	}
	return answer.GetVendorVersion(), nil
}

func (d driver) capabilities(ctx context.Context) ([]string, error) {
	answer, err := endpoint.Call(ctx, d.callTimeout, "GetPluginCapabilities", d.identity.GetPluginCapabilities,
		&csipb.GetPluginCapabilitiesRequest{})
	if err != nil {
		return nil, err
	}
	var known []string
	for _, capability := range answer.GetCapabilities() {
		var name string
		switch {
		case capability.GetService() != nil:
			name = csipb.PluginCapability_Service_Type_name[int32(capability.GetService().GetType())]
		case capability.GetVolumeExpansion() != nil:
			// ONLINE and OFFLINE alone would say too little.
			if n := csipb.PluginCapability_VolumeExpansion_Type_name[int32(capability.GetVolumeExpansion().GetType())]; n != "" {
				name = "VOLUME_EXPANSION_" + n
			}
		}
		if name != "" && !strings.HasSuffix(name, "UNKNOWN") {
			known = append(known, name)
		}
	}
	slices.Sort(known)
	return slices.Compact(known), nil
}

// servesNode reports whether the driver has a Node service, and adds its information about this node to the details.
func (d driver) servesNode(ctx context.Context, details map[string]string) (serves bool, err error) {
	answer, err := endpoint.Call(ctx, d.callTimeout, "NodeGetInfo", d.node.NodeGetInfo, &csipb.NodeGetInfoRequest{})
	if status.Code(err) == codes.Unimplemented {
		// Only drivers that publish volumes through their controller have to implement it. Every Node service has this one:
		_, err := endpoint.Call(ctx, d.callTimeout, "NodeGetCapabilities", d.node.NodeGetCapabilities, &csipb.NodeGetCapabilitiesRequest{})
		if status.Code(err) == codes.Unimplemented {
			return false, nil
		}
		return err == nil, err
	}
	if err != nil {
		return false, err
	}
	info, err := nodeInfo(answer)
	if err != nil {
		return false, fmt.Errorf("NodeGetInfo: %w", err)
	}
	return true, info.addTo(details)
}

// versionForm matches a version as the kubelet does: numbers and dots, followed by any text.
var versionForm = regexp.MustCompile(`^\s*v?((?:0|[1-9]\d*)(?:\.\d+)+)`)

// negotiate returns the highest announced version 1.x. It ignores malformed versions and other major versions, unless there is no 1.x: then
// the error lists them.
//
// It decides as the kubelet does (HighestSupportedVersion of k8s.io/apimachinery/pkg/util/version).
func negotiate(versions []string) (string, error) {
	if len(versions) == 0 {
		return "", errors.New("no CSI version was announced; announce one of 1.x")
	}
	var highest string
	var highestNumbers []uint64
	var malformed []error
	for _, version := range versions {
		numbers, err := parseVersion(version)
		switch {
		case err != nil:
			malformed = append(malformed, err)
		case numbers[0] == 1 && slices.Compare(numbers, highestNumbers) > 0:
			highest, highestNumbers = strings.TrimSpace(version), numbers
		}
	}
	if highest != "" {
		return highest, nil
	}
	why := "none of the announced CSI versions %q is supported: only 1.x is"
	if announcesZero(versions) {
		why += ", and 0.x no more"
	}
	if len(malformed) > 0 {
		return "", fmt.Errorf(why+"; %w", versions, errors.Join(malformed...))
	}
	return "", fmt.Errorf(why, versions)
}

func announcesZero(versions []string) bool {
	return slices.ContainsFunc(versions, func(version string) bool {
		numbers, err := parseVersion(version)
		return err == nil && numbers[0] == 0
	})
}

// parseVersion returns the numbers of a version, without trailing zeros after the first number.
func parseVersion(version string) ([]uint64, error) {
	found := versionForm.FindStringSubmatch(version)
	if found == nil {
		return nil, fmt.Errorf("%q is not a version: two numbers at least, for example 1.9.0", version)
	}
	var numbers []uint64
	length := 1
	for text := range strings.SplitSeq(found[1], ".") {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a version: the number %s is too large", version, text)
		}
		if numbers = append(numbers, n); n > 0 {
			length = len(numbers)
		}
	}
	return numbers[:length], nil
}
