package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// lookBefore is how long before its deadline a call that waits asks for the present state, so that the daemon has time to answer.
const lookBefore = time.Second

// waitOrLook makes a call that waits. At lookBefore before the deadline of ctx it also calls look, which asks for the present state: when
// the deadline passes, the daemon's own report of the state rarely arrives in time. late reports that the deadline has passed; look has
// returned then.
func waitOrLook[Q, A any](
	ctx context.Context, call func(context.Context, *Q) (*A, error), request *Q, look func(context.Context),
) (answer *A, late bool, err error) {
	deadline, limited := ctx.Deadline()
	looking, cancel := context.WithCancel(ctx)
	var looked sync.WaitGroup
	defer looked.Wait()
	defer cancel()
	if limited {
		looked.Go(func() {
			if backoff.Pause(looking, time.Until(deadline)-lookBefore) {
				look(looking)
			}
		})
	}
	response, err := call(ctx, request)
	if err == nil {
		return response, false, nil
	}
	late = limited && connect.CodeOf(err) == connect.CodeDeadlineExceeded && !errors.Is(ctx.Err(), context.Canceled)
	if late {
		looked.Wait()
	}
	return nil, late, err
}

// Goal is what [Client.Wait] waits for.
type Goal string

// The goals of [Client.Wait].
const (
	// GoalRegistered: an instance of the plugin is registered and can be dispensed.
	GoalRegistered Goal = "registered"
	// GoalDeregistered: no instance of the plugin is registered, nor restored and not yet confirmed. A plugin that was never known is
	// deregistered.
	GoalDeregistered Goal = "deregistered"
)

// Wait blocks until the plugin is registered or deregistered. It returns the current instance for [GoalRegistered], and the newest known
// instance or nil for [GoalDeregistered].
//
// If the deadline of ctx passes first, the error is a [*TimeoutError] with the plugin's state.
func (c *Client) Wait(ctx context.Context, ptype, name string, goal Goal) (*patchbayv1.Plugin, error) {
	task := "wait for plugin " + pluginText(ptype, name)
	goals := map[Goal]patchbayv1.WaitFor{
		GoalRegistered: patchbayv1.WaitFor_WAIT_FOR_REGISTERED, GoalDeregistered: patchbayv1.WaitFor_WAIT_FOR_DEREGISTERED,
	}
	if _, known := goals[goal]; !known {
		return nil, fmt.Errorf("cannot %s: unknown goal %q, known are %q and %q", task, goal, GoalRegistered, GoalDeregistered)
	}
	request := &patchbayv1.WaitForPluginRequest{Type: ptype, Name: name, For: goals[goal]}
	seen := look{err: context.DeadlineExceeded}
	answer, late, err := waitOrLook(ctx, c.control.WaitForPlugin, request, func(ctx context.Context) { seen = c.look(ctx, ptype, name) })
	switch {
	case late:
		return seen.judge(goal, &TimeoutError{Type: ptype, Name: name, Goal: goal})
	case err != nil:
		return nil, c.explain(task, err)
	}
	return answer.GetPlugin(), nil
}

// look is the state of a plugin as the daemon reported it.
type look struct {
	instances []*patchbayv1.Plugin
	launched  *patchbayv1.LaunchedPlugin
	err       error
}

func (c *Client) look(ctx context.Context, ptype, name string) (seen look) {
	seen.instances, seen.err = c.Get(ctx, ptype, name)
	if ptype == "" && len(seen.instances) == 0 {
		launched, _ := c.ListLaunched(ctx) // optional: without it the error has less detail
		if i := slices.IndexFunc(launched, func(p *patchbayv1.LaunchedPlugin) bool { return p.GetName() == name }); i >= 0 {
			seen.launched = launched[i]
		}
	}
	return seen
}

// judge returns the plugin if the goal is reached, and otherwise timeout with the state filled in.
func (l *look) judge(goal Goal, timeout *TimeoutError) (*patchbayv1.Plugin, error) {
	unknown, isUnknown := errors.AsType[inWords](l.err)
	switch {
	case errors.Is(l.err, context.DeadlineExceeded):
		timeout.reason = "the daemon does not answer"
		return nil, timeout
	case l.err != nil && !errors.Is(l.err, ErrNotFound):
		return nil, l.err
	}
	if plugin, ok := reached(goal, l.instances); ok {
		return plugin, nil
	}
	if len(l.instances) > 0 {
		timeout.Plugin = l.instances[0]
	}
	if timeout.Launched = l.launched; isUnknown && timeout.Type != "" {
		timeout.reason = unknown.Error()
	}
	return nil, timeout
}

// reached reports whether the instances of a plugin, newest first, have reached the goal, by the daemon's own rules.
func reached(goal Goal, instances []*patchbayv1.Plugin) (*patchbayv1.Plugin, bool) {
	if goal == GoalRegistered {
		i := slices.IndexFunc(instances, func(p *patchbayv1.Plugin) bool { return p.GetState() == "registered" })
		if i < 0 {
			return nil, false
		}
		return instances[i], true
	}
	if slices.ContainsFunc(instances, func(p *patchbayv1.Plugin) bool { return p.GetInstance() != "" }) {
		return nil, false
	}
	if len(instances) == 0 {
		return nil, true
	}
	return instances[0], true
}

// TimeoutError is the error of a plugin that did not reach the goal in time. It matches [context.DeadlineExceeded].
type TimeoutError struct {
	Type, Name string // of the plugin; Type is empty if Name is a name in the catalogue
	Goal       Goal
	// Plugin is the newest instance shortly before the timeout; nil if none was known.
	Plugin *patchbayv1.Plugin
	// Launched is the launched plugin shortly before the timeout, if it was named as in the catalogue and had not registered; otherwise
	// nil.
	Launched *patchbayv1.LaunchedPlugin

	reason string // the daemon's message for an unknown plugin, or that it did not answer
}

func (e *TimeoutError) Error() string {
	message := fmt.Sprintf("plugin %s was not %s in time: ", pluginText(e.Type, e.Name), e.Goal)
	var state, last string
	switch {
	case e.Plugin != nil:
		state, last = e.Plugin.GetState(), e.Plugin.GetLastError()
	case e.Launched != nil:
		message += "it has not registered, and "
		state, last = e.Launched.GetState(), e.Launched.GetLastError()
	case e.reason == "" && e.Type == "":
		return message + "it has not registered"
	default:
		return message + cmp.Or(e.reason, ErrNotFound.Error())
	}
	message += "it is in state " + state
	if last != "" {
		message += ", last error: " + last
	}
	return message
}

// Unwrap returns [context.DeadlineExceeded].
func (e *TimeoutError) Unwrap() error { return context.DeadlineExceeded }
