package dra

import (
	"cmp"
	"errors"
	"fmt"

	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Bounds of what a driver may answer for one claim. Kubernetes allocates 32 devices to a claim at most.
const (
	// maxName is the greatest length of a DNS subdomain, which names of Kubernetes are at most.
	maxName     = 253
	maxDevices  = 1024
	maxRequests = 256
	maxCDI      = 256
	maxCDIID    = 1024
	maxShareID  = 63
)

var errNoAnswer = errors.New("the driver's answer says nothing of it; try again, and report it to the driver's author")

func preparedDevices(claims map[string]*drav1.NodePrepareResourceResponse, uid string) ([]*drav1.Device, error) {
	claim, ok := claims[uid]
	if err := claimError(ok, claim.GetError()); err != nil {
		return nil, err
	}
	if len(claim.GetDevices()) > maxDevices {
		return nil, fmt.Errorf("the driver answers with %d devices; %d are allowed", len(claim.GetDevices()), maxDevices)
	}
	for i, device := range claim.GetDevices() {
		if err := checkDevice(device); err != nil {
			return nil, fmt.Errorf("device %d of the driver's answer: %w", i, err)
		}
	}
	return claim.GetDevices(), nil
}

// claimError returns an error if the answer has no entry for a claim, or an error text.
func claimError(answered bool, text string) error {
	switch {
	case !answered:
		return errNoAnswer
	case text != "":
		return errors.New("the driver says: " + untrusted.Quote(text))
	default:
		return nil
	}
}

func checkDevice(device *drav1.Device) error {
	if device == nil {
		return errors.New("it is nil")
	}
	if len(device.GetRequestNames()) > maxRequests || len(device.GetCdiDeviceIds()) > maxCDI {
		return fmt.Errorf("%d requests and %d CDI device IDs; %d and %d are allowed",
			len(device.GetRequestNames()), len(device.GetCdiDeviceIds()), maxRequests, maxCDI)
	}
	errs := []error{
		untrusted.Required("the pool's name", device.GetPoolName(), maxName),
		untrusted.Required("the device's name", device.GetDeviceName(), maxName),
		untrusted.Check("the share ID", device.GetShareId(), maxShareID),
	}
	for _, request := range device.GetRequestNames() {
		errs = append(errs, untrusted.Required("a request's name", request, maxName))
	}
	for _, id := range device.GetCdiDeviceIds() {
		errs = append(errs, untrusted.Required("a CDI device ID", id, maxCDIID))
	}
	return cmp.Or(errs...) // the first says enough
}
