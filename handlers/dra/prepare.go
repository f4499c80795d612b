package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Prepared is a driver's answer for one claim.
type Prepared struct {
	// Devices must be made available to the user of the claim.
	Devices []*drav1.Device
	// Err is why the claim could not be prepared; Devices is nil then. Preparing it again may help.
	Err error
}

// Prepare calls a driver to prepare claims for use on this machine, and returns its answers by the UIDs of the claims. It sends all claims
// in one call, to the newest instance of the driver. Preparing a claim again is allowed, and necessary if the outcome of an earlier attempt
// is unknown or the driver lost its state.
//
// It blocks until the driver has answered. A call that did not reach the driver, or during which the driver exited, is repeated with
// back-off, on the instance that is the newest at the time, until ctx ends or [Handler].Timeout has passed. Calls of Prepare and Unprepare
// for the same claim run one after another. A call whose caller gave up, or that timed out, continues until the driver answers or exits,
// for at most [Handler].Timeout, because a driver may ignore the cancellation and still be working.
//
// An error means that there is no answer. It wraps [ErrNotRegistered] if the driver was not registered at the beginning.
func (h *Handler) Prepare(ctx context.Context, driver string, claims ...*drav1.Claim) (map[string]Prepared, error) {
	answer, err := prepare.call(ctx, h, driver, claims, &drav1.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		return nil, err
	}
	results := make(map[string]Prepared, len(claims))
	for _, claim := range claims {
		devices, err := preparedDevices(answer.GetClaims(), claim.GetUid())
		if err != nil {
			err = fmt.Errorf("DRA driver %s did not prepare claim %s/%s: %w", driver, claim.GetNamespace(), claim.GetName(), err)
		}
		results[claim.GetUid()] = Prepared{Devices: devices, Err: err}
	}
	return results, nil
}

// Unprepare reverts Prepare. It returns an error, or nil, for each claim, by UID. Unpreparing a claim that is not prepared is allowed.
// Otherwise it behaves like Prepare.
func (h *Handler) Unprepare(ctx context.Context, driver string, claims ...*drav1.Claim) (map[string]error, error) {
	answer, err := unprepare.call(ctx, h, driver, claims, &drav1.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil {
		return nil, err
	}
	results := make(map[string]error, len(claims))
	for _, claim := range claims {
		// An entry may be nil and means success.
		of, ok := answer.GetClaims()[claim.GetUid()]
		err := claimError(ok, of.GetError())
		if err != nil {
			err = fmt.Errorf("DRA driver %s did not unprepare claim %s/%s: %w", driver, claim.GetNamespace(), claim.GetName(), err)
		}
		results[claim.GetUid()] = err
	}
	return results, nil
}

var retry = backoff.Backoff{Min: 50 * time.Millisecond, Max: 5 * time.Second}

// method is a gRPC method that takes claims.
type method[Request, Response any] struct {
	what, name string
	invoke     func(drav1.DRAPluginClient, context.Context, Request, ...grpc.CallOption) (Response, error)
}

var (
	prepare = method[*drav1.NodePrepareResourcesRequest, *drav1.NodePrepareResourcesResponse]{
		"prepare", "NodePrepareResources", drav1.DRAPluginClient.NodePrepareResources,
	}
	unprepare = method[*drav1.NodeUnprepareResourcesRequest, *drav1.NodeUnprepareResourcesResponse]{
		"unprepare", "NodeUnprepareResources", drav1.DRAPluginClient.NodeUnprepareResources,
	}
)

// call calls the method, and repeats calls that may succeed later.
func (m method[Request, Response]) call(
	ctx context.Context, h *Handler, driver string, claims []*drav1.Claim, request Request,
) (none Response, err error) {
	if h.isClosed() {
		return none, ErrClosed
	}
	keys, err := claimKeys(driver, claims)
	if err != nil || len(keys) == 0 {
		return none, err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, h.timeout(), fmt.Errorf("not done within %v: %w", h.timeout(), context.DeadlineExceeded))
	defer cancel()
	if bounded.Err() != nil { // the call would continue after it was given up
		return none, fmt.Errorf("cannot %s claims with DRA driver %s: %w", m.what, untrusted.Clip(driver), context.Cause(bounded))
	}
	unlock, err := h.claims.Lock(bounded, keys...)
	if err != nil {
		return none, fmt.Errorf("cannot %s claims with DRA driver %s: another call for one of them is running: %w",
			m.what, untrusted.Clip(driver), err)
	}
	locked := &lockedClaims{unlock: unlock}
	locked.hold()
	defer locked.release()
	var last error
	for failures := 1; ; failures++ {
		in, changed, err := h.newest(driver)
		switch {
		case err != nil && (last == nil || errors.Is(err, ErrClosed)):
			return none, err
		case err == nil:
			var answer Response
			if answer, last = m.attempt(bounded, h, in, locked, request); last == nil {
				return answer, nil
			}
			if bounded.Err() == nil && !h.repeatable(last, in) {
				return none, fmt.Errorf("cannot %s claims with DRA driver %s at %s: %w", m.what, driver, in.endpoint, last)
			}
		}
		timer := time.NewTimer(retry.After(failures))
		select {
		case <-timer.C:
		case <-changed:
			timer.Stop()
		case <-bounded.Done():
			timer.Stop()
			return none, fmt.Errorf("cannot %s claims with DRA driver %s: %w; the last attempt: %w", m.what, driver, context.Cause(bounded), last)
		}
	}
}

// attempt calls one instance, which newest returned. It returns when the call has ended, ctx is done or the time for one call has passed.
// In the last two cases the call continues and keeps its claims locked.
func (m method[Request, Response]) attempt(
	ctx context.Context, h *Handler, in *instance, locked *lockedClaims, request Request,
) (Response, error) {
	type result struct {
		answer Response
		err    error
	}
	ended := make(chan result, 1)
	locked.hold()
	go func() {
		defer h.calls.Done() // newest has counted it
		defer locked.release()
		defer in.conn.Users.Done()
		invoke := func(ctx context.Context, request Request, options ...grpc.CallOption) (Response, error) {
			return m.invoke(in.client, ctx, request, options...)
		}
		continuing, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(h.life, cancel)()
		answer, err := endpoint.Call(continuing, max(h.timeout(), in.callTimeout), m.name, invoke, request)
		ended <- result{answer, err}
	}()
	waiting, cancel := context.WithTimeout(ctx, in.callTimeout)
	defer cancel()
	select {
	case r := <-ended:
		return r.answer, r.err
	case <-waiting.Done():
		var none Response
		return none, endpoint.CallError(m.name, status.FromContextError(waiting.Err()).Err())
	}
}

// repeatable reports whether a call that failed on an instance may succeed later.
func (h *Handler) repeatable(err error, in *instance) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Aborted:
		return true
	case codes.Canceled, codes.DeadlineExceeded:
		// A driver that lives and does not answer in time would not do so the next time either.
		return !h.isNewest(in)
	default:
		return false
	}
}

type claimKey struct{ driver, uid string }

func claimKeys(driver string, claims []*drav1.Claim) ([]claimKey, error) {
	keys := make([]claimKey, 0, len(claims))
	for _, claim := range claims {
		err := cmp.Or(
			untrusted.Required("the namespace of a claim", claim.GetNamespace(), maxName),
			untrusted.Required("the name of a claim", claim.GetName(), maxName),
			untrusted.Required("the UID of a claim", claim.GetUid(), maxName),
		)
		if err != nil {
			return nil, err
		}
		key := claimKey{driver, claim.GetUid()}
		if slices.Contains(keys, key) {
			return nil, fmt.Errorf("claim %s is there twice", key.uid)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// lockedClaims are locked until each holder has called release.
type lockedClaims struct {
	holders atomic.Int32
	unlock  func()
}

// hold adds a holder, before the last one has called release.
func (c *lockedClaims) hold() { c.holders.Add(1) }

func (c *lockedClaims) release() {
	if c.holders.Add(-1) == 0 {
		c.unlock()
	}
}
