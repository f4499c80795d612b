package client

import (
	"cmp"
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
	task := "wait for plugin " + pluginText(ptype, name)
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
	if said, unknown := errors.AsType[inWords](err); unknown {
		timeout.unknown = said.Error()
	}
	if len(instances) > 0 {
		timeout.Plugin = &instances[0]
	} else if ptype == "" {
		launched, _ := c.ListLaunched(look) // without it the error says less
		if i := slices.IndexFunc(launched, func(p Launched) bool { return p.Name == name }); i >= 0 {
			timeout.Launched = &launched[i]
		}
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
	Type, Name string // what was waited for; Type is empty for a launched plugin named by the catalogue
	Goal       Goal
	// Plugin is the newest instance at the timeout; nil if none was known.
	Plugin *Plugin
	// Launched is the launched plugin at the timeout, if it was named as in the catalogue and had not registered; else nil.
	Launched *Launched

	unknown string // what the daemon said of a plugin that is not known
}

func (e *TimeoutError) Error() string {
	message := fmt.Sprintf("plugin %s was not %s in time: ", pluginText(e.Type, e.Name), e.Goal)
	var state, last string
	switch {
	case e.Plugin != nil:
		state, last = e.Plugin.State, e.Plugin.LastError
	case e.Launched != nil:
		message += "it has not registered, and "
		state, last = e.Launched.State, e.Launched.LastError
	case e.Type == "":
		return message + "it has not registered"
	default:
		return message + cmp.Or(e.unknown, ErrNotFound.Error())
	}
	message += "it is in state " + state
	if last != "" {
		message += ", last error: " + last
	}
	return message
}

// Unwrap returns [context.DeadlineExceeded].
func (e *TimeoutError) Unwrap() error { return context.DeadlineExceeded }
