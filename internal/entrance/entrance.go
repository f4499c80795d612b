// Package entrance lets only plugins in that an admission plugin admits: programs before they are launched, and whatever serves a socket
// before it is registered, by the digest of what runs there. What is admitted, the admission plugin says. It may also be shut to whatever
// was not launched.
package entrance

import (
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/launch/exe"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/reconciler"
	"github.com/patchbay-dev/patchbay/trust"
)

// Entrance asks an admission plugin.
type Entrance struct {
	host         *host.Host
	plugin       plugin.AdmissionPlugin
	launchedOnly bool
	answers      func(socket string) bool
	programs     exe.Programs
}

// New returns the entrance to a host, at which an admission plugin decides; nil admits everything. With launchedOnly nothing may be
// registered that the host did not launch.
//
// Answers says at which sockets this process answers for a plugin that it launches when somebody needs it. Such a plugin may be registered:
// the admission plugin is asked at each start.
func New(h *host.Host, admission plugin.AdmissionPlugin, launchedOnly bool, answers func(socket string) bool) *Entrance {
	return &Entrance{host: h, plugin: admission, launchedOnly: launchedOnly, answers: answers}
}

// MayRun implements [launcher.Config].Admit.
func (e *Entrance) MayRun(ctx context.Context, pin plugin.Pin) error {
	return e.plugin.CheckAdmission(pin).Wait(ctx)
}

// MayRegister implements [reconciler.Config].Admit.
func (e *Entrance) MayRegister(ctx context.Context, in reconciler.Instance) error {
	if in.Peer.PID == os.Getpid() && e.answers(in.SocketPath) {
		return nil
	}
	launched := e.launched(in)
	if launched == nil && e.launchedOnly {
		return &trust.Refusal{
			Reason:  trust.NotLaunched,
			Problem: fmt.Sprintf("plugin %s was not launched by this host, and only such plugins are registered", in.Name),
			Remedy:  "have the host launch it, or unset admission.launchedOnly",
		}
	}
	if e.plugin == nil {
		return nil
	}
	pin, err := e.pin(ctx, in, launched)
	if err != nil {
		return err
	}
	err = e.plugin.CheckAdmission(pin).Wait(ctx)
	// gofail: var admissionAnswer struct{}
	// err = host.ErrAborted
	if err != nil && !final(err) {
		return fmt.Errorf("%w: %w", err, cache.ErrRetry)
	}
	return err
}

// pin finds out what serves: a launched plugin, if p is not nil.
func (e *Entrance) pin(ctx context.Context, in reconciler.Instance, p *host.PluginProcess) (plugin.Pin, error) {
	pin := plugin.Pin{PackageName: in.Name}
	if p != nil {
		if known := p.Pin(); known != (plugin.Pin{}) {
			return known, nil
		}
		pin.PackageName = p.Name()
	}
	digest, err := e.programs.Digest(ctx, in.Peer.PID, in.Peer.Start)
	// gofail: var admissionDigest string
	// err = errors.New(admissionDigest)
	switch {
	case err == nil:
	case errors.Is(err, exe.ErrEnded) || ctx.Err() != nil:
		return pin, fmt.Errorf("plugin %s is not admitted: %w: %w", pin.PackageName, err, cache.ErrRetry)
	default:
		return pin, fmt.Errorf("plugin %s is not admitted, because its program cannot be identified: %w", pin.PackageName, err)
	}
	pin.InstanceID = digest.InstanceID()
	return pin, nil
}

// launched returns the plugin that was launched to serve there, if it does: itself, or this process on its behalf.
func (e *Entrance) launched(in reconciler.Instance) *host.PluginProcess {
	for _, p := range e.host.Plugins() {
		if p.PluginSocket() == in.SocketPath && (p.Owns(in.Peer.PID) || in.Peer.PID == os.Getpid()) {
			return p
		}
	}
	return nil
}

// final says whether a refusal is an answer of the admission plugin, and one that it would give again.
func final(err error) bool {
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
