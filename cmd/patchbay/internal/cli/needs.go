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
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
)

const (
	// restartTime is how long a plugin may be unreachable, for example during a restart, before it needs attention.
	restartTime = 10 * time.Second
	// longPause is the back-off of a plugin that has failed for about a minute. Each pause is twice as long as the one before.
	longPause = 30 * time.Second
	// maxAlike is how many plugins with the same problem are shown.
	maxAlike = 3
	// refusalShown is how long a plugin that was refused and is gone is shown.
	refusalShown = time.Hour
)

// need is a plugin that needs attention, because it does not recover by itself, or not soon.
type need struct {
	Plugin string     `json:"plugin"` // TYPE/NAME, the name in the catalogue, or the path of a socket
	State  string     `json:"state"`
	Since  *time.Time `json:"since"`
	Reason string     `json:"reason"`
	Remedy string     `json:"remedy"`
	// Soon is true if the plugin may still recover by itself.
	Soon bool `json:"-"`

	socket  string // may be part of Reason
	subject string // of a sentence about the plugin
	all     string // the command that shows all plugins of this kind
}

func (n need) sentence() string {
	if n.State == stateGone {
		return fmt.Sprintf("%s is gone; it was refused %s: %s", n.subject, console.Moment(n.Since, time.Now()), n.Reason)
	}
	return fmt.Sprintf("%s is in state %s since %s: %s", n.subject, n.State, console.Moment(n.Since, time.Now()), n.Reason)
}

// stateGone is the state of a plugin that was refused and is gone.
const stateGone = "gone"

// attention has the plugins and conditions of a daemon that need attention.
type attention struct {
	plugins    int
	conditions []*patchbayv1.Condition // that are not well
	needs      []need                  // of plugins that need attention
}

func askNeeds(ctx context.Context, c *client.Client) (attention, error) {
	listing, err := c.List(ctx)
	if err != nil {
		return attention{}, err
	}
	launched, err := c.ListLaunched(ctx)
	if err != nil {
		return attention{}, err
	}
	refusals, err := c.Refusals(ctx)
	if err != nil {
		return attention{}, err
	}
	now := time.Now()
	return attention{
		plugins:    len(listing.Plugins),
		conditions: slices.DeleteFunc(listing.Conditions, func(c *patchbayv1.Condition) bool { return c.Status == "ok" }),
		needs:      slices.Concat(launchedInNeed(launched, now), pluginsInNeed(listing.Plugins, now), refusedAndGone(refusals, now)),
	}, nil
}

// launchedInNeed returns the launched plugins that do not run, or not as configured.
func launchedInNeed(launched []*patchbayv1.LaunchedPlugin, now time.Time) []need {
	var needs []need
	for _, p := range launched {
		reason := cmp.Or(p.LastError, unknownReason)
		remedy := fmt.Sprintf(`"patchbay logs %s" shows what it printed, if it ran; fix that, then "patchbay restart %s"`, p.Name, p.Name)
		switch {
		case p.State == "blocked":
			remedy = "fix the cause; the plugin is started when its program, its configuration or the handlers have changed"
		case slices.Contains([]string{"failed", "backoff", "unresponsive", "unlinked"}, p.State):
		case p.ReplacementError != "":
			reason = p.ReplacementError
		default:
			continue
		}
		needs = append(needs, need{
			Plugin: p.Name, State: p.State, Since: console.TimeOf(p.Since), Reason: reason, Remedy: remedy,
			Soon:    p.State == "backoff" && !isLong(console.TimeOf(p.Since), console.TimeOf(p.NextStart), now),
			subject: "launched plugin " + p.Name, all: "patchbay status NAME",
		})
	}
	return needs
}

const unknownReason = "the reason is not known"

// pluginsInNeed returns the instances that are not registered and do not recover by themselves.
func pluginsInNeed(plugins []*patchbayv1.Plugin, now time.Time) []need {
	remedies := map[string]string{
		"refused":     "fix the cause; the plugin is retried automatically",
		"backoff":     "fix the cause; the plugin is retried automatically",
		"unreachable": "start the plugin again, or remove its socket if it will not be started again",
		"unlinked":    "restart the plugin, so that it creates a new socket, and check who may write to the directory",
	}
	var needs []need
	for _, p := range plugins {
		remedy, isNeed := remedies[p.State]
		if p.State == "refused" && p.NextRetry == nil && p.Type != "" {
			remedy = fmt.Sprintf("configure a handler for its type: handlers in the configuration, or --accept-type %s; "+
				"it is registered immediately", p.Type)
		}
		if !isNeed || p.Source == "launched" && p.SocketPath == "" {
			continue // launchedInNeed returns launched plugins without a socket
		}
		needs = append(needs, need{
			Plugin: idOrSocket(p), State: p.State, Since: console.TimeOf(p.Since),
			Reason: cmp.Or(p.LastError, p.Reason, unknownReason), Remedy: remedy,
			Soon: p.State == "backoff" && !isLong(console.TimeOf(p.Since), console.TimeOf(p.NextRetry), now) ||
				p.State == "unreachable" && p.Since != nil && now.Sub(p.Since.AsTime()) < restartTime,
			socket: p.SocketPath, subject: called(p), all: "patchbay list",
		})
	}
	return needs
}

// isLong reports whether a back-off has reached longPause.
func isLong(since, next *time.Time, now time.Time) bool {
	return since != nil && (now.Sub(*since) >= longPause || next != nil && next.Sub(*since) >= longPause)
}

// refusedAndGone returns the plugins that were refused and are gone.
func refusedAndGone(refusals []*patchbayv1.Plugin, now time.Time) []need {
	return command.Each(refusals, func(p *patchbayv1.Plugin) need {
		return need{
			Plugin: idOrSocket(p), State: stateGone, Since: console.TimeOf(p.Since), Reason: p.LastError,
			Remedy: "fix the cause and start the plugin again",
			Soon:   p.Since != nil && now.Sub(p.Since.AsTime()) >= refusalShown,
			socket: p.SocketPath, subject: called(p), all: "patchbay events",
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
	return command.PluginID(p.Type, p.Name)
}

// summary returns a sentence with the number of plugins that need attention.
func (n attention) summary() string {
	switch {
	case n.plugins == 0 && len(n.needs) == 0:
		return "no plugins are known"
	case len(n.needs) == 0 && n.plugins == 1:
		return "the plugin is healthy"
	case len(n.needs) == 0:
		return fmt.Sprintf("all %d plugins are healthy", n.plugins)
	case len(n.needs) == 1:
		return fmt.Sprintf("1 of %d plugins needs attention", n.plugins)
	}
	return fmt.Sprintf("%d of %d plugins need attention", len(n.needs), n.plugins)
}

// errAttention is the error of a status command that found a problem.
var errAttention = errors.New("some plugins or the daemon need attention")

func statusOfAll(cmd *cobra.Command, output *command.Choice, n attention) error {
	n.needs = slices.DeleteFunc(n.needs, func(n need) bool { return n.Soon })
	// Empty lists are written as [], not null.
	value := map[string]any{
		"plugins": n.plugins, "needs": append([]need{}, n.needs...), "conditions": append([]*patchbayv1.Condition{}, n.conditions...),
	}
	err := output.Print(cmd, value, func(w io.Writer) error { return n.write(w, time.Now()) })
	if err == nil && len(n.needs)+len(n.conditions) > 0 {
		err = errAttention
	}
	return err
}

func (n attention) write(w io.Writer, now time.Time) error {
	var text bytes.Buffer
	fmt.Fprintln(&text, n.summary())
	for _, c := range n.conditions {
		fmt.Fprintf(&text, "the daemon is degraded since %s: %s: %s\n", console.Moment(console.TimeOf(c.Since), now),
			console.Escape(c.Name), console.Escape(c.Message))
	}
	if err := console.Write(w, text.Bytes()); err != nil || len(n.needs) == 0 {
		return err
	}
	fmt.Fprintln(w)
	return writeNeeds(w, n.needs, now)
}

// problem identifies the problem of a plugin, except for the path of the socket.
func (n need) problem() [3]string {
	reason := n.Reason
	if n.socket != "" {
		reason = strings.ReplaceAll(reason, n.socket, "")
	}
	return [3]string{n.State, n.Remedy, reason}
}

// writeNeeds writes a table with the first plugins of each problem.
func writeNeeds(w io.Writer, needs []need, now time.Time) error {
	var groups [][]need
	for _, n := range needs {
		i := slices.IndexFunc(groups, func(g []need) bool { return n.problem() == g[0].problem() })
		if i < 0 {
			groups = append(groups, []need{n})
		} else {
			groups[i] = append(groups[i], n)
		}
	}
	list := &console.Table{Terminal: console.TerminalOf(w), Head: []string{"PLUGIN", "STATE", "FOR", "REASON AND REMEDY"},
		Tones: console.Tones{1: console.ToneOf}}
	for _, alike := range groups {
		for _, n := range alike[:min(len(alike), maxAlike)] {
			list.Add(console.Cell(n.Plugin), console.Cell(n.State), console.Since(n.Since, now), console.Escape(n.Reason))
		}
		if more := len(alike) - maxAlike; more > 0 {
			list.Add("", "", "", fmt.Sprintf("… and %d more for the same reason; -o json shows all", more))
		}
		list.Add("", "", "", "→ "+console.Escape(alike[0].Remedy))
	}
	return list.Write(w)
}
