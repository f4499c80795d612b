// Package fleet has the commands of "patchbay fleet": they list, watch and wait for the nodes and plugins of the fleet, and drain nodes.
// They ask the daemon and never etcd; "role" only reads the configuration.
package fleet

import (
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/plugin"
)

// NewCommand returns the command with its subcommands.
func NewCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Show the plugins of all nodes",
		Long: `Show the nodes that publish their plugins to the etcd of this daemon's configuration, and their plugins.

A dead node stays visible, with its plugins unreachable, until its retention expires. If the daemon has lost etcd, the commands show the
last known state and print a warning.`,
		Example: `  patchbay fleet nodes
  patchbay fleet list --type CSIPlugin --state registered`,
	}
	cmd.AddCommand(newFleetNodesCommand(paths), newFleetListCommand(paths), newFleetVersionsCommand(paths), newFleetWatchCommand(paths),
		newFleetWaitCommand(paths), newFleetLocksCommand(paths), newFleetDrainCommand(paths), newFleetUncordonCommand(paths),
		newFleetForgetCommand(paths), newFleetRoleCommand(paths))
	return cmd
}

// addFleetFilter adds the flags that select plugins of the fleet; fewer if the plugin is named.
func addFleetFilter(cmd *cobra.Command, named bool) *patchbayv1.FleetFilter {
	f := &patchbayv1.FleetFilter{}
	flags := cmd.Flags()
	if !named {
		flags.StringArrayVar(&f.Types, "type", nil, "plugins of this type, or in this role, only; can be repeated")
		flags.StringArrayVar(&f.Names, "name", nil, "plugins of this name only; can be repeated")
		flags.StringArrayVar(&f.States, "state", nil, "plugins in this state only, for example registered; can be repeated")
	}
	flags.StringArrayVar(&f.Nodes, "node", nil, "plugins of this node only; can be repeated")
	flags.StringArrayVar(&f.Versions, "version", nil, "plugins of this version only; can be repeated")
	flags.StringToStringVar(&f.Labels, "label", nil, "plugins of nodes with this label only, as KEY=VALUE; can be repeated")
	return f
}

// listing is a command that lists something of the fleet, as a table, an array of objects or names.
type listing[T any] struct {
	list func(ctx context.Context, c *client.Client) ([]T, *patchbayv1.FleetHealth, error)
	name func(T) string
	head []string
	row  func(t T, now time.Time) []string // escaped
	cuts []int
	tone int // the column of states; zero for none
}

func (l listing[T]) addTo(cmd *cobra.Command, paths command.Paths) *cobra.Command {
	socket := command.AddControlSocket(cmd, paths)
	output := command.AddOutput(cmd, "table", "name")
	cmd.RunE = socket.Ask(command.AnswerTimeout, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		all, health, err := l.list(ctx, c)
		if err != nil {
			return err
		}
		warnStale(cmd.ErrOrStderr(), health)
		names := func(all []T) []string { return command.Each(all, l.name) }
		return command.PrintList(cmd, output, all, names, func(w io.Writer) error {
			list := &console.Table{Terminal: console.TerminalOf(w), Head: l.head, Cuts: l.cuts}
			if l.tone > 0 {
				list.Tones = console.Tones{l.tone: console.ToneOf}
			}
			for _, t := range all {
				list.Add(l.row(t, time.Now())...)
			}
			return list.Write(w)
		})
	})
	return cmd
}

func newFleetNodesCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the fleet",
		Long: `List the nodes of the fleet. A node is ready, unreachable (its presence in etcd has ended), stopped (its daemon ended in order),
or unknown (its record cannot be read). If the daemon did not follow etcd when a node was gone, LAST SEEN is two times, and the node was
last alive between them.

The output is a table, an array of objects as JSON or YAML, or one name a line.`,
		Example: `  # Which nodes are gone, and since when?
  patchbay fleet nodes --state unreachable`,
	}
	f := &patchbayv1.ListNodesRequest{}
	cmd.Flags().StringArrayVar(&f.Nodes, "node", nil, "this node only; can be repeated")
	cmd.Flags().StringArrayVar(&f.States, "state", nil, "nodes in this state only, for example ready; can be repeated")
	cmd.Flags().StringToStringVar(&f.Labels, "label", nil, "nodes with this label only, as KEY=VALUE; can be repeated")
	return listing[*patchbayv1.FleetNode]{
		list: func(ctx context.Context, c *client.Client) ([]*patchbayv1.FleetNode, *patchbayv1.FleetHealth, error) {
			answer, err := c.FleetNodes(ctx, f)
			return answer.GetNodes(), answer.GetHealth(), err
		},
		name: func(n *patchbayv1.FleetNode) string { return n.Name },
		head: []string{"NAME", "STATE", "VERSION", "PLUGINS", "ADDRESS", "UP", "LAST SEEN"}, tone: 1,
		row: func(n *patchbayv1.FleetNode, now time.Time) []string {
			up := "-"
			if n.State == "ready" {
				up = console.Since(console.TimeOf(n.StartedAt), now)
			}
			return []string{
				console.Cell(n.Name), console.Cell(stateOfNode(n)), console.Cell(n.Version), fmt.Sprint(n.Plugins), console.Cell(n.Address), up,
				lastSeen(console.TimeOf(n.LastSeen), console.TimeOf(n.LastSeenBefore), now),
			}
		},
	}.addTo(cmd, paths)
}

func newFleetListCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the plugins of all nodes",
		Long: `List the plugins of all nodes, one line for each instance. The plugins of a node that is not ready are unreachable.

The output is a table, an array of objects as JSON or YAML, or one NODE/TYPE/NAME a line.`,
		Example: `  # On which nodes is the driver registered?
  patchbay fleet list --name hostpath.csi.k8s.io --state registered -o json | jq -r '.[].node'`,
	}
	filter := addFleetFilter(cmd, false)
	return listing[*patchbayv1.FleetPlugin]{
		list: func(ctx context.Context, c *client.Client) ([]*patchbayv1.FleetPlugin, *patchbayv1.FleetHealth, error) {
			answer, err := c.FleetPlugins(ctx, filter)
			return answer.GetPlugins(), answer.GetHealth(), err
		},
		name: fleetPluginID,
		head: []string{"TYPE", "NAME", "VERSION", "NODE", "STATE", "AGE", "LAST SEEN"}, cuts: []int{2, 6, 0, 1}, tone: 4,
		row: fleetPluginRow,
	}.addTo(cmd, paths)
}

func fleetPluginRow(p *patchbayv1.FleetPlugin, now time.Time) []string {
	return []string{
		console.Cell(p.Type), console.Cell(p.Name), console.Cell(p.Version), console.Cell(p.Node), console.Cell(p.State),
		console.Since(console.TimeOf(p.RegisteredAt), now),
		lastSeen(console.TimeOf(p.LastSeen), console.TimeOf(p.LastSeenBefore), now),
	}
}

func newFleetVersionsCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "versions",
		Short: "List the versions of plugins, with numbers of nodes",
		Long: `List the versions of the plugins of all nodes, one line for each version, with the number of nodes on which it is registered
and the names of the first of them. DIFFERS says for how long nodes have run different versions of the plugin. After an hour, or
fleet.drift, the condition fleet-versions of the daemon is degraded too.

The output is a table, an array of objects with all nodes as JSON or YAML, or one TYPE/NAME@VERSION a line.`,
		Example: `  # Which nodes does the upgrade still have to reach?
  patchbay fleet versions --name hostpath.csi.k8s.io -o json | jq -r '.[] | select(.version != "1.2.0") | .nodes[]'`,
	}
	filter := addFleetFilter(cmd, false)
	return listing[*patchbayv1.FleetVersion]{
		list: func(ctx context.Context, c *client.Client) ([]*patchbayv1.FleetVersion, *patchbayv1.FleetHealth, error) {
			answer, err := c.FleetVersions(ctx, filter)
			return answer.GetVersions(), answer.GetHealth(), err
		},
		name: func(v *patchbayv1.FleetVersion) string {
			return console.Escape(v.Type + "/" + v.Name + "@" + v.Version)
		},
		head: []string{"TYPE", "NAME", "VERSION", "COUNT", "DIFFERS", "NODES"}, cuts: []int{5, 0, 1},
		row: func(v *patchbayv1.FleetVersion, now time.Time) []string {
			const shown = 3
			nodes := strings.Join(v.Nodes[:min(len(v.Nodes), shown)], ", ")
			if more := len(v.Nodes) - shown; more > 0 {
				nodes = fmt.Sprintf("%s and %d more", nodes, more)
			}
			return []string{console.Cell(v.Type), console.Cell(v.Name), console.Cell(v.Version), fmt.Sprint(len(v.Nodes)),
				console.Since(console.TimeOf(v.DiffersSince), now), console.Cell(nodes)}
		},
	}.addTo(cmd, paths)
}

func newFleetLocksCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "locks",
		Short: "List the holders of the locks of exclusive plugins",
		Long: `List the locks of the plugins of which one instance in the fleet may be active (fleet.exclusive), with the node that holds each,
its fencing token, and how many nodes want it, with the holder. A lock without a holder is about to pass on.

The output is a table, an array of objects as JSON or YAML, or one TYPE/NAME a line.`,
		Example: `  patchbay fleet locks -o json | jq -r '.[] | select(.node == "") | .name'`,
	}
	return listing[*patchbayv1.FleetLock]{
		list: func(ctx context.Context, c *client.Client) ([]*patchbayv1.FleetLock, *patchbayv1.FleetHealth, error) {
			locks, err := c.FleetLocks(ctx)
			return locks, &patchbayv1.FleetHealth{Current: true}, err
		},
		name: func(l *patchbayv1.FleetLock) string { return console.Escape(l.Type + "/" + l.Name) },
		head: []string{"TYPE", "NAME", "NODE", "TOKEN", "CANDIDATES"},
		row: func(l *patchbayv1.FleetLock, _ time.Time) []string {
			return []string{console.Cell(l.Type), console.Cell(l.Name), console.Cell(l.Node), fmt.Sprint(l.FencingToken), fmt.Sprint(l.Candidates)}
		},
	}.addTo(cmd, paths)
}

func newFleetWatchCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show the plugins of all nodes, and every change",
		Long: `Show everything in the fleet as added, and then every change exactly once. The command runs until it is interrupted, and
fails if the daemon goes away. A plugin that stops matching the filter is shown as removed, one that starts to match as added.
When the daemon loses etcd, so that changes may be late, a warning on standard error says so, and another line when it is back.`,
		Example: `  # Tell me when a controller comes or goes.
  patchbay fleet watch --type csi-controller --state registered`,
	}
	socket := command.AddControlSocket(cmd, paths)
	output := command.AddLines(cmd)
	nodes := cmd.Flags().Bool("nodes", false, "show changes of nodes too")
	filter := addFleetFilter(cmd, false)
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		request := &patchbayv1.WatchFleetRequest{Filter: filter, WithNodes: *nodes, WithHealth: true}
		all := withoutHealth(cmd.ErrOrStderr(), c.WatchFleet(ctx, request))
		return command.PrintLines(cmd, output, all, true, writeFleetChange)
	})
	return cmd
}

func newFleetWaitCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait TYPE/NAME",
		Short: "Wait until a plugin is registered or deregistered in the fleet",
		Long: `Wait until a plugin is registered on a number of nodes, or on none, and exit with 0. After the timeout the command says how
many nodes match and exits with 1. A plugin on a node that is not ready counts neither as registered nor as
deregistered: it is unreachable. A warning on standard error says when the daemon has lost etcd.`,
		Example: `    # Wait until three nodes have the driver.
  patchbay fleet wait CSIPlugin/hostpath.csi.k8s.io --count 3

    # Wait until this node no longer has it.
  patchbay fleet wait CSIPlugin/hostpath.csi.k8s.io --node node-7 --for deregistered`,
		Args:              command.OneRegistered,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	socket := command.AddControlSocket(cmd, paths)
	goal, timeout := command.AddGoal(cmd)
	count := cmd.Flags().Uint16("count", 1, "number of instances to wait for")
	filter := addFleetFilter(cmd, true)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *count == 0:
			return command.WrongUsage(cmd, "--count 0 is nothing to wait for: give one above zero, or use --for deregistered")
		case goal.Value == string(client.GoalDeregistered) && cmd.Flags().Changed("count"):
			return command.WrongUsage(cmd, "--count goes with --for registered only")
		}
		return command.Above0(cmd, *timeout)
	}
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		name, _ := plugin.ParseName(args[0])
		filter.Types, filter.Names = []string{name.Type}, []string{name.Name}
		wanted := 0 // in no state: what is unreachable may be back, and is not deregistered
		if goal.Value == string(client.GoalRegistered) {
			filter.States, wanted = []string{"registered"}, int(*count)
		}
		var warning sync.WaitGroup
		defer warning.Wait()
		watching, stop := context.WithCancel(ctx)
		defer stop()
		warning.Go(func() {
			request := &patchbayv1.WatchFleetRequest{Filter: filter, WithHealth: true}
			for _, err := range withoutHealth(cmd.ErrOrStderr(), c.WatchFleet(watching, request)) {
				if err != nil {
					return // the wait itself says what is wrong
				}
			}
		})
		_, err := c.WaitFleet(ctx, filter, wanted)
		return err
	})
	return cmd
}

// withoutHealth returns the changes of plugins and nodes. It writes to standard error when the daemon has lost etcd and when it is back.
func withoutHealth(stderr io.Writer, all changes) changes {
	return func(yield func(*patchbayv1.WatchFleetResponse, error) bool) {
		for change, err := range all {
			switch {
			case err == nil && change.Health != nil && change.Health.Current:
				fmt.Fprintln(stderr, "the daemon follows etcd again")
			case err == nil && change.Health != nil:
				warnStale(stderr, change.Health)
			case err == nil && change.Plugin == nil && change.Node == nil: // the end of the present state
			default:
				if !yield(change, err) {
					return
				}
			}
		}
	}
}

// changes are the changes of the fleet.
type changes = iter.Seq2[*patchbayv1.WatchFleetResponse, error]

// warnStale says that what is shown may be out of date.
func warnStale(stderr io.Writer, h *patchbayv1.FleetHealth) {
	if !h.GetCurrent() {
		fmt.Fprintf(stderr, "warning: %s\n", console.Escape(h.GetMessage()))
	}
}

// lastSeen returns how long ago a node was last seen, or between which times.
func lastSeen(last, before *time.Time, now time.Time) string {
	switch earliest, latest := console.Since(last, now), console.Since(before, now); {
	case before == nil || earliest == latest:
		return console.Ago(last, now)
	case last == nil:
		return "over " + latest + " ago"
	default:
		return latest + " to " + earliest + " ago"
	}
}

// stateOfNode is the state of a node, with what is wrong with one that is ready.
func stateOfNode(n *patchbayv1.FleetNode) string {
	if n.DrainedAt != nil {
		return n.State + ", drained"
	}
	if n.State == "ready" && slices.ContainsFunc(n.Conditions, func(c *patchbayv1.Condition) bool { return c.Status != "ok" }) {
		return "ready, degraded"
	}
	return n.State
}

func fleetPluginID(p *patchbayv1.FleetPlugin) string {
	return console.Escape(p.Node + "/" + p.Type + "/" + p.Name)
}

func writeFleetChange(w io.Writer, c *patchbayv1.WatchFleetResponse) error {
	if c.Node != nil {
		return console.Write(w, fmt.Appendf(nil, "%-8s  node    %s  %s\n", console.Escape(c.Kind), console.Escape(c.Node.Name),
			withReason(c.Node.State, c.Node.Reason)))
	}
	return console.Write(w, fmt.Appendf(nil, "%-8s  plugin  %s  %s  %s\n", console.Escape(c.Kind), fleetPluginID(c.Plugin),
		console.Cell(c.Plugin.Version),
		withReason(c.Plugin.State, c.Plugin.Reason)))
}

func withReason(state, reason string) string {
	if reason == "" {
		return console.Escape(state)
	}
	return console.Escape(state + ": " + reason)
}
