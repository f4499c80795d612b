package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
)

const (
	// patience is how long a plugin may be unreachable before it is called so: one that restarts is soon back.
	patience = 10 * time.Second
	// longPause is the pause before the next attempt from which on a plugin has been failing for about a minute: each is twice the last.
	longPause = 30 * time.Second
	// mostAlike is how many plugins are shown that need somebody for the same reason.
	mostAlike = 3
	// refusalShown is how long a plugin that was refused and is gone is somebody's business.
	refusalShown = time.Hour
)

// need is a plugin that does not get well by itself, or not soon.
type need struct {
	Plugin string     `json:"plugin"` // TYPE/NAME, the name in the catalogue, or the path of a socket
	State  string     `json:"state"`
	Since  *time.Time `json:"since"`
	Reason string     `json:"reason"`
	Remedy string     `json:"remedy"`
	// Soon says that it may yet get well by itself.
	Soon bool `json:"-"`

	socket string // of which the reason may tell
	what   string // how a sentence names it
	all    string // the command that shows all of its sort
}

func (n need) sentence() string {
	if n.State == stateGone {
		return fmt.Sprintf("%s is gone; it was refused %s: %s", n.what, moment(n.Since, time.Now()), n.Reason)
	}
	return fmt.Sprintf("%s is in state %s since %s: %s", n.what, n.State, moment(n.Since, time.Now()), n.Reason)
}

// stateGone is the state of what was refused and is there no longer.
const stateGone = "gone"

// needy is what a daemon knows that may need somebody.
type needy struct {
	plugins    int
	conditions []*patchbayv1.Condition // that are not well
	needs      []need                  // those to which somebody has to see first
}

func askNeeds(ctx context.Context, c *client.Client) (needy, error) {
	listing, err := c.List(ctx)
	if err != nil {
		return needy{}, err
	}
	launched, err := c.ListLaunched(ctx)
	if err != nil {
		return needy{}, err
	}
	refusals, err := c.Refusals(ctx)
	if err != nil {
		return needy{}, err
	}
	now := time.Now()
	return needy{
		plugins:    len(listing.Plugins),
		conditions: slices.DeleteFunc(listing.Conditions, func(c *patchbayv1.Condition) bool { return c.Status == "ok" }),
		needs:      slices.Concat(launchedInNeed(launched, now), pluginsInNeed(listing.Plugins, now), refusedAndGone(refusals, now)),
	}, nil
}

// launchedInNeed are the launched plugins that do not run though they are to, or not as they are configured.
func launchedInNeed(launched []*patchbayv1.LaunchedPlugin, now time.Time) []need {
	var needs []need
	for _, p := range launched {
		reason := cmp.Or(p.LastError, unknownReason)
		remedy := fmt.Sprintf(`"patchbay logs %s" shows what it printed, if it ran; fix that, then "patchbay restart %s"`, p.Name, p.Name)
		switch {
		case p.State == "blocked":
			remedy = "fix what it says; the plugin is started when its program, its configuration or the handlers have changed"
		case slices.Contains([]string{"failed", "backoff", "unresponsive", "unlinked"}, p.State):
		case p.ReplacementError != "":
			reason = p.ReplacementError
		default:
			continue
		}
		needs = append(needs, need{
			Plugin: p.Name, State: p.State, Since: timeOf(p.Since), Reason: reason, Remedy: remedy,
			Soon: p.State == "backoff" && !isLong(timeOf(p.Since), timeOf(p.NextStart), now),
			what: "launched plugin " + p.Name, all: "patchbay status NAME",
		})
	}
	return needs
}

const unknownReason = "it is not known why"

// pluginsInNeed are the instances that are not registered and do not get any further by themselves.
func pluginsInNeed(plugins []*patchbayv1.Plugin, now time.Time) []need {
	remedies := map[string]string{
		"refused":     "fix what it says; the plugin is tried again by itself",
		"backoff":     "fix what it says; the plugin is tried again by itself",
		"unreachable": "start the plugin again, or remove its socket if it will not come back",
		"unlinked":    "restart the plugin, which makes a new socket, and see who may write to the directory",
	}
	var needs []need
	for _, p := range plugins {
		remedy, isNeed := remedies[p.State]
		if p.State == "refused" && p.NextRetry == nil && p.Type != "" {
			remedy = fmt.Sprintf("name a handler for its type: handlers in the configuration, or --accept-type %s; it registers at once", p.Type)
		}
		if !isNeed || p.Source == "launched" && p.SocketPath == "" {
			continue // the latter is among those that are launched
		}
		needs = append(needs, need{
			Plugin: idOrSocket(p), State: p.State, Since: timeOf(p.Since), Reason: cmp.Or(p.LastError, p.Reason, unknownReason), Remedy: remedy,
			Soon: p.State == "backoff" && !isLong(timeOf(p.Since), timeOf(p.NextRetry), now) ||
				p.State == "unreachable" && p.Since != nil && now.Sub(p.Since.AsTime()) < patience,
			socket: p.SocketPath, what: called(p), all: "patchbay list",
		})
	}
	return needs
}

// isLong says of a back-off whether it has been going on for a while.
func isLong(since, next *time.Time, now time.Time) bool {
	return since != nil && (now.Sub(*since) >= longPause || next != nil && next.Sub(*since) >= longPause)
}

// refusedAndGone are the plugins that are gone and were refused last.
func refusedAndGone(refusals []*patchbayv1.Plugin, now time.Time) []need {
	return each(refusals, func(p *patchbayv1.Plugin) need {
		return need{
			Plugin: idOrSocket(p), State: stateGone, Since: timeOf(p.Since), Reason: p.LastError,
			Remedy: "fix what it says and start the plugin again",
			Soon:   p.Since != nil && now.Sub(p.Since.AsTime()) >= refusalShown,
			socket: p.SocketPath, what: called(p), all: "patchbay events",
		}
	})
}

func called(p *patchbayv1.Plugin) string {
	if p.Type == "" {
		return "socket " + p.SocketPath
	}
	return "plugin " + idOrSocket(p)
}

func idOrSocket(p *patchbayv1.Plugin) string {
	if p.Type == "" {
		return p.SocketPath
	}
	return pluginID(p.Type, p.Name)
}

// summary says in a sentence how many of the plugins need somebody.
func (n needy) summary() string {
	switch {
	case n.plugins == 0 && len(n.needs) == 0:
		return "no plugins are known"
	case len(n.needs) == 0 && n.plugins == 1:
		return "the one plugin does not need you"
	case len(n.needs) == 0:
		return fmt.Sprintf("none of %d plugins needs you", n.plugins)
	case len(n.needs) == 1:
		return fmt.Sprintf("1 of %d plugins needs you", n.plugins)
	}
	return fmt.Sprintf("%d of %d plugins need you", len(n.needs), n.plugins)
}

// errNeeds ends a status command that found something.
var errNeeds = errors.New("something needs you: see the list")

func statusOfAll(cmd *cobra.Command, output *choice, n needy) error {
	n.needs = slices.DeleteFunc(n.needs, func(n need) bool { return n.Soon })
	err := output.print(cmd, map[string]any{"plugins": n.plugins, "needs": orEmpty(n.needs), "conditions": orEmpty(n.conditions)},
		func(w io.Writer) error { return n.write(w, time.Now()) })
	if err == nil && len(n.needs)+len(n.conditions) > 0 {
		err = errNeeds
	}
	return err
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (n needy) write(w io.Writer, now time.Time) error {
	var text bytes.Buffer
	fmt.Fprintln(&text, n.summary())
	for _, c := range n.conditions {
		fmt.Fprintf(&text, "the daemon is degraded since %s: %s: %s\n", moment(timeOf(c.Since), now), escape(c.Name), escape(c.Message))
	}
	if err := write(w, text.Bytes()); err != nil || len(n.needs) == 0 {
		return err
	}
	fmt.Fprintln(w)
	return writeNeeds(w, n.needs, now)
}

// isLike reports whether two need the same for the same reason, but for the socket that it names.
func (n need) isLike(other need) bool {
	of := func(n need) string {
		if n.socket == "" {
			return n.Reason
		}
		return strings.ReplaceAll(n.Reason, n.socket, "")
	}
	return n.State == other.State && n.Remedy == other.Remedy && of(n) == of(other)
}

// inGroups puts those that are alike behind the first of them.
func inGroups(needs []need) []need {
	var groups [][]need
	for _, n := range needs {
		i := slices.IndexFunc(groups, func(g []need) bool { return n.isLike(g[0]) })
		if i < 0 {
			groups = append(groups, []need{n})
		} else {
			groups[i] = append(groups[i], n)
		}
	}
	return slices.Concat(groups...)
}

// writeNeeds writes a table. Of those that are alike it has the first ones.
func writeNeeds(w io.Writer, needs []need, now time.Time) error {
	needs = inGroups(needs)
	list := &table{terminal: terminalOf(w), head: []string{"PLUGIN", "STATE", "FOR", "WHY, AND WHAT TO DO"}, tones: tones{1: toneOf}}
	for len(needs) > 0 {
		first := needs[0]
		alike := slices.IndexFunc(needs, func(n need) bool { return !n.isLike(first) })
		if alike < 0 {
			alike = len(needs)
		}
		shown := min(alike, mostAlike)
		for _, n := range needs[:shown] {
			list.add(cell(n.Plugin), cell(n.State), since(n.Since, now), escape(n.Reason))
		}
		if more := alike - shown; more > 0 {
			list.add("", "", "", fmt.Sprintf("… and %d more for the same reason; all: -o json", more))
		}
		list.add("", "", "", "→ "+escape(first.Remedy))
		needs = needs[alike:]
	}
	return list.write(w)
}
