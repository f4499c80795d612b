package patchbay

import (
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/launch/running"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// Admission returns what Config.Admission returned; nil if every plugin may be registered.
func (rt *Runtime) Admission() plugin.AdmissionPlugin {
	if rt.entrance == nil {
		return nil
	}
	return rt.entrance.plugin
}

// mayRun returns what is asked before a program is launched; nil if every one may be.
func (rt *Runtime) mayRun() func(context.Context, plugin.Pin) error {
	if rt.entrance == nil {
		return nil
	}
	return func(ctx context.Context, pin plugin.Pin) error {
		return rt.entrance.plugin.CheckAdmission(pin).Wait(ctx)
	}
}

// mayRegister returns what is asked before a plugin is registered; nil if every one may be.
func (rt *Runtime) mayRegister() func(context.Context, reconciler.Instance) error {
	if rt.entrance == nil {
		return nil
	}
	return rt.entrance.admit
}

// entrance lets only plugins in that are admitted.
type entrance struct {
	host     *host.Host
	plugin   plugin.AdmissionPlugin
	programs running.Programs
}

// admit implements [reconciler.Config].Admit.
func (e *entrance) admit(ctx context.Context, in reconciler.Instance) error {
	pin, err := e.pin(ctx, in)
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

// pin finds out what serves.
func (e *entrance) pin(ctx context.Context, in reconciler.Instance) (plugin.Pin, error) {
	pin := plugin.Pin{PackageName: in.Name}
	if p := e.launched(in); p != nil {
		if known := p.Pin(); known != (plugin.Pin{}) {
			return known, nil
		}
		pin.PackageName = p.Name()
	}
	digest, err := e.programs.Digest(ctx, in.Peer.PID, in.Peer.StartTime)
	// gofail: var admissionDigest string
	// err = errors.New(admissionDigest)
	switch {
	case err == nil:
	case errors.Is(err, running.ErrEnded) || ctx.Err() != nil:
		return pin, fmt.Errorf("plugin %s is not admitted: %w: %w", pin.PackageName, err, cache.ErrRetry)
	default:
		return pin, fmt.Errorf("plugin %s is not admitted, because it cannot be told what it is: %w", pin.PackageName, err)
	}
	pin.InstanceID = digest.InstanceID()
	return pin, nil
}

// launched returns the plugin that was launched to serve there, if it does: itself, or this process on its behalf.
func (e *entrance) launched(in reconciler.Instance) *host.PluginProcess {
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
