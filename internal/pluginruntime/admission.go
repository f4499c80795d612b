package pluginruntime

import (
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// mayRegister implements [reconciler.Config].Admit. A front of a launched plugin, which this process serves, is not checked: the program is
// checked each time it is started.
func (rt *Runtime) mayRegister(ctx context.Context, in plugin.Instance) error {
	if _, _, isFront := rt.launcher.FrontAt(in.SocketPath); isFront && in.Peer.PID == os.Getpid() {
		return nil
	}
	launched := rt.launchedFor(in)
	if launched == nil && rt.LaunchedOnly {
		return &trust.Refusal{
			Reason:  trust.NotLaunched,
			Problem: fmt.Sprintf("plugin %s was not launched by this host, and only such plugins are registered", in.Name),
			Remedy:  "have the host launch it, or unset admission.launchedOnly",
		}
	}
	if rt.admission == nil {
		return nil
	}
	pin, err := rt.pin(ctx, in, launched)
	if err != nil {
		return err
	}
	err = rt.admission.CheckAdmission(pin).Wait(ctx)
	// gofail: var admissionAnswer struct{}
	// err = host.ErrAborted
	if err != nil && !isFinal(err) {
		return fmt.Errorf("%w: %w", err, cache.ErrRetry)
	}
	return err
}

// pin identifies the program that serves the instance: that of p or, if p is nil, of the process behind the socket.
func (rt *Runtime) pin(ctx context.Context, in plugin.Instance, p *host.PluginProcess) (plugin.Pin, error) {
	pin := plugin.Pin{PackageName: in.Name}
	if p != nil {
		if known := p.Pin(); known != (plugin.Pin{}) {
			return known, nil
		}
		pin.PackageName = p.Name()
	}
	digest, err := rt.programs.Digest(ctx, in.Peer.PID, in.Peer.Start)
	// gofail: var admissionDigest string
	// err = errors.New(admissionDigest)
	switch {
	case err == nil:
	case errors.Is(err, sealedexec.ErrEnded) || ctx.Err() != nil:
		return pin, fmt.Errorf("plugin %s is not admitted: %w: %w", pin.PackageName, err, cache.ErrRetry)
	default:
		return pin, fmt.Errorf("plugin %s is not admitted, because its program cannot be identified: %w", pin.PackageName, err)
	}
	pin.InstanceID = digest.InstanceID()
	return pin, nil
}

// launchedFor returns the launched plugin that serves an instance, itself or through this process; nil if there is none.
func (rt *Runtime) launchedFor(in plugin.Instance) *host.PluginProcess {
	for _, p := range rt.host.Plugins() {
		if p.PluginSocket() == in.SocketPath && (p.Owns(in.Peer.PID) || in.Peer.PID == os.Getpid()) {
			return p
		}
	}
	return nil
}

// isFinal reports whether err is an answer of the admission plugin, and not a failure to get one.
func isFinal(err error) bool {
	for _, unanswered := range []error{
		host.ErrAborted, host.ErrTimeout, host.ErrProtocol, host.ErrQueueFull, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, unanswered) {
			return false
		}
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.Unavailable, codes.ResourceExhausted:
		return false
	default:
		return true
	}
}
