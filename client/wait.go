package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// lookTimeout bounds the one call that finds out the state of a plugin for which waiting was in vain.
const lookTimeout = 2 * time.Second

// Wait blocks until the plugin is registered or deregistered, and returns at once if it already is. It returns the current instance
// for [GoalRegistered], and nil or the newest known instance for [GoalDeregistered].
//
// If the deadline of ctx passes first, the error is a [*TimeoutError], which says what state the plugin is in.
func (c *Client) Wait(ctx context.Context, ptype, name string, goal Goal) (*Plugin, error) {
	task := fmt.Sprintf("wait for plugin %s/%s", ptype, name)
	goals := map[Goal]patchbayv1.WaitFor{
		GoalRegistered: patchbayv1.WaitFor_WAIT_FOR_REGISTERED, GoalDeregistered: patchbayv1.WaitFor_WAIT_FOR_DEREGISTERED,
	}
	if _, known := goals[goal]; !known {
		return nil, fmt.Errorf("cannot %s: unknown goal %q, known are %q and %q", task, goal, GoalRegistered, GoalDeregistered)
	}
	request := &patchbayv1.WaitForPluginRequest{Type: ptype, Name: name, For: goals[goal]}
	response, err := c.control.WaitForPlugin(ctx, connect.NewRequest(request))
	if err == nil {
		if response.Msg.GetPlugin() == nil {
			return nil, nil
		}
		return new(pluginOf(response.Msg.GetPlugin())), nil
	}
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded || errors.Is(ctx.Err(), context.Canceled) {
		return nil, c.explain(task, err)
	}

	// The deadline ends the call on both sides at the same moment, so the daemon's own word on the state rarely arrives.
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	instances, err := c.Get(look, ptype, name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if plugin, ok := reached(goal, instances); ok {
		return plugin, nil
	}
	timeout := &TimeoutError{Type: ptype, Name: name, Goal: goal}
	if len(instances) > 0 {
		timeout.Plugin = &instances[0]
	}
	return nil, timeout
}

// reached says whether the instances of a plugin, newest first, are what is waited for. It judges like the daemon.
func reached(goal Goal, instances []Plugin) (*Plugin, bool) {
	if goal == GoalRegistered {
		i := slices.IndexFunc(instances, func(p Plugin) bool { return p.State == "registered" })
		if i < 0 {
			return nil, false
		}
		return &instances[i], true
	}
	if slices.ContainsFunc(instances, func(p Plugin) bool { return p.Instance != "" }) {
		return nil, false
	}
	if len(instances) == 0 {
		return nil, true
	}
	return &instances[0], true
}

// TimeoutError says that a plugin did not reach the goal in time. It matches [context.DeadlineExceeded].
type TimeoutError struct {
	Type, Name string
	Goal       Goal
	// Plugin is the newest instance as it was when the time was over; nil if none was known.
	Plugin *Plugin
}

func (e *TimeoutError) Error() string {
	message := fmt.Sprintf("plugin %s/%s was not %s in time: ", e.Type, e.Name, e.Goal)
	if e.Plugin == nil {
		return message + "no such plugin is known"
	}
	message += "it is in state " + e.Plugin.State
	if e.Plugin.LastError != "" {
		message += ", last error: " + e.Plugin.LastError
	}
	return message
}

// Unwrap returns [context.DeadlineExceeded].
func (e *TimeoutError) Unwrap() error { return context.DeadlineExceeded }
