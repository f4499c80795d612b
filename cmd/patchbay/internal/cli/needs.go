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
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// maxAlike is how many plugins with the same problem are shown.
	maxAlike = 3
	// refusalShown is how long a plugin that was refused and is gone is shown.
	refusalShown = time.Hour
)

// need is a plugin that needs attention.
type need struct {
	Plugin     string     `json:"plugin"` // TYPE/NAME, the name in the catalogue, or the path of a socket
	LaunchedAs string     `json:"launchedAs,omitempty"`
	State      string     `json:"state"`
	Since      *time.Time `json:"since"` // of its health
	Restarts   uint32     `json:"restarts,omitempty"`
	Reason     string     `json:"reason"`
	Remedy     string     `json:"remedy"`

	socket string // may be part of Reason
	all    string // the command that shows all plugins of this kind
}

func (n need) sentence() string {
	subject := "plugin " + n.Plugin
	if strings.HasPrefix(n.Plugin, "/") {
		subject = "socket " + n.Plugin
	}
	if n.State == stateGone {
		return fmt.Sprintf("%s is gone; it was refused %s: %s", subject, console.Moment(n.Since, time.Now()), n.Reason)
	}
	return fmt.Sprintf("%s is in state %s, failing since %s: %s", subject, n.State, console.Moment(n.Since, time.Now()), n.Reason)
}

// stateGone is the state of a plugin that was refused and is gone.
const stateGone = "gone"

// attention has the plugins and conditions of a daemon that need attention.
type attention struct {
	plugins    int
	inProgress int                     // how many of plugins are being started, registered or stopped
	conditions []*patchbayv1.Condition // that are not well
	needs      []need                  // of plugins that need attention
}

func askNeeds(ctx context.Context, c *client.Client) (attention, error) {
	listing, err := c.List(ctx)
	if err != nil {
		return attention{}, err
	}
	refusals, err := c.Refusals(ctx)
	if err != nil {
		return attention{}, err
	}
	needs, inProgress := pluginsInNeed(listing.Plugins)
	return attention{
		plugins:    len(listing.Plugins),
		inProgress: inProgress,
		conditions: slices.DeleteFunc(listing.Conditions, func(c *patchbayv1.Condition) bool { return c.Status == "ok" }),
		needs:      append(needs, refusedAndGone(refusals, time.Now())...),
	}, nil
}

// pluginsInNeed returns the plugins that need attention, and how many are being started, registered or stopped. Instances of one launched
// plugin with the same problem count once.
func pluginsInNeed(plugins []*patchbayv1.Plugin) (needs []need, inProgress int) {
	type problem struct{ launchedAs, reason string }
	known := map[problem]bool{}
	for _, p := range plugins {
		h := p.Health
		its := problem{p.LaunchedAs, h.GetReason()}
		if h.GetState() == string(plugin.HealthProgressing) {
			inProgress++
		}
		if h.GetState() != string(plugin.HealthAttention) || known[its] {
			continue
		}
		n := need{
			Plugin: called(p), LaunchedAs: p.LaunchedAs, State: p.State, Since: console.TimeOf(h.Since), Restarts: p.Restarts, Reason: h.Reason,
			Remedy: h.Remedy, socket: p.SocketPath, all: "patchbay status",
		}
		known[its] = p.LaunchedAs != ""
		if known[its] && p.State != string(plugin.StateRefused) && p.State != string(plugin.StateBlocked) {
			n.Remedy += fmt.Sprintf(" (patchbay logs %[1]s, patchbay restart %[1]s)", p.LaunchedAs)
		}
		needs = append(needs, n)
	}
	return needs, inProgress
}

// refusedAndGone returns the plugins that were refused lately and are gone.
func refusedAndGone(refusals []*patchbayv1.Plugin, now time.Time) (needs []need) {
	for _, p := range refusals {
		if p.Since != nil && now.Sub(p.Since.AsTime()) < refusalShown {
			needs = append(needs, need{
				Plugin: called(p), State: stateGone, Since: console.TimeOf(p.Since), Reason: p.LastError,
				Remedy: "fix the cause and start the plugin again", socket: p.SocketPath, all: "patchbay events",
			})
		}
	}
	return needs
}

// called returns the name of a plugin: as it is registered, as it was launched, or its socket.
func called(p *patchbayv1.Plugin) string {
	if p.Type == "" {
		return cmp.Or(p.LaunchedAs, p.SocketPath)
	}
	return command.PluginID(p.Type, p.Name)
}

// summary returns a sentence with the number of plugins that need attention.
func (n attention) summary() string {
	switch {
	case n.plugins == 0 && len(n.needs) == 0:
		return "no plugins are known"
	case len(n.needs) == 0 && n.inProgress > 0:
		return fmt.Sprintf("no plugin needs attention; %d of %d being started, registered or stopped", n.inProgress, n.plugins)
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
	err := n.print(cmd, output)
	if err == nil && len(n.needs)+len(n.conditions) > 0 {
		err = errAttention
	}
	return err
}

func (n attention) print(cmd *cobra.Command, output *command.Choice) error {
	// Empty lists are written as [], not null.
	value := map[string]any{
		"plugins": n.plugins, "progressing": n.inProgress, "needs": append([]need{}, n.needs...),
		"conditions": append([]*patchbayv1.Condition{}, n.conditions...),
	}
	return output.Print(cmd, value, func(w io.Writer) error { return n.write(w, time.Now()) })
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
