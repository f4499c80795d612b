package cli

import (
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

func newFleetCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Show the plugins of all nodes.",
		Long: `Show the nodes that publish their plugins to the etcd of this daemon's configuration, and their plugins.

A dead node stays visible, with its plugins unreachable, until its retention expires. If the daemon has lost etcd, the commands show the
last known state and print a warning.`,
		Example: `  patchbay fleet nodes
  patchbay fleet list --type CSIPlugin --state registered`,
	}
	cmd.AddCommand(newFleetNodesCommand(paths), newFleetListCommand(paths), newFleetWatchCommand(paths), newFleetWaitCommand(paths),
		newFleetLocksCommand(paths))
	for _, o := range nodeOrders {
		cmd.AddCommand(newNodeOrderCommand(paths, o))
	}
	return cmd
}

// addFleetFilter adds the flags that select plugins of the fleet; fewer if the plugin is named.
func addFleetFilter(cmd *cobra.Command, named bool) *client.FleetFilter {
	f := &client.FleetFilter{}
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

func newFleetNodesCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the fleet.",
		Long: `List the nodes of the fleet. A node is ready, unreachable (its presence in etcd has ended), stopped (its daemon ended in order),
or unknown (its record cannot be read).

The output is a table, an array of objects as JSON or YAML, or one name a line.`,
		Example: `  # Which nodes are gone, and since when?
  patchbay fleet nodes --state unreachable`,
	}
	socket := addControlSocket(cmd, paths)
	output := addOutput(cmd, "table", "name")
	names := cmd.Flags().StringArray("node", nil, "this node only; can be repeated")
	states := cmd.Flags().StringArray("state", nil, "nodes in this state only, for example ready; can be repeated")
	labels := cmd.Flags().StringToString("label", nil, "nodes with this label only, as KEY=VALUE; can be repeated")
	cmd.RunE = socket.ask(answerTimeout, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		nodes, health, err := c.FleetNodesWith(ctx, *names, *states, *labels)
		if err != nil {
			return err
		}
		warnStale(cmd.ErrOrStderr(), health)
		return printList(cmd, output, nodes, nodeNames, func(w io.Writer) error { return writeNodes(w, nodes, time.Now()) })
	})
	return cmd
}

func newFleetListCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the plugins of all nodes.",
		Long: `List the plugins of all nodes, one line for each instance. The plugins of a node that is not ready are unreachable.

The output is a table, an array of objects as JSON or YAML, or one NODE/TYPE/NAME a line.`,
		Example: `  # On which nodes is the driver registered?
  patchbay fleet list --name hostpath.csi.k8s.io --state registered -o json | jq -r '.[].node'`,
	}
	socket := addControlSocket(cmd, paths)
	output := addOutput(cmd, "table", "name")
	filter := addFleetFilter(cmd, false)
	cmd.RunE = socket.ask(answerTimeout, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		plugins, health, err := c.FleetPlugins(ctx, *filter)
		if err != nil {
			return err
		}
		warnStale(cmd.ErrOrStderr(), health)
		return printList(cmd, output, plugins, fleetPluginIDs, func(w io.Writer) error { return writeFleetPlugins(w, plugins, time.Now()) })
	})
	return cmd
}

func newFleetWatchCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show the plugins of all nodes, and every change.",
		Long: `Show everything in the fleet as added, and then every change exactly once. The command runs until it is interrupted, and
fails if the daemon goes away. A plugin that stops matching the filter is shown as removed, one that starts to match as added.
When the daemon loses etcd, so that changes may be late, a warning on standard error says so, and another line when it is back.`,
		Example: `  # Tell me when a controller comes or goes.
  patchbay fleet watch --type csi-controller --state registered`,
	}
	socket := addControlSocket(cmd, paths)
	output := addLines(cmd)
	nodes := cmd.Flags().Bool("nodes", false, "show changes of nodes too")
	filter := addFleetFilter(cmd, false)
	cmd.RunE = socket.ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		filter.Health = true
		changes := withoutHealth(cmd.ErrOrStderr(), c.WatchFleet(ctx, *filter, *nodes, nil))
		return printLines(cmd, output, changes, true, writeFleetChange)
	})
	return cmd
}

func newFleetWaitCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait TYPE/NAME",
		Short: "Wait until a plugin is registered in the fleet, or nowhere any more.",
		Long: `Wait until a plugin is registered on a number of nodes, or on none, and exit with 0. After the timeout the command says how
many nodes match and exits with 1. A plugin on a node that is not ready counts neither as registered nor as
deregistered: it is unreachable. A warning on standard error says when the daemon has lost etcd.`,
		Example: `    # Wait until three nodes have the driver.
  patchbay fleet wait CSIPlugin/hostpath.csi.k8s.io --count 3

    # Wait until this node no longer has it.
  patchbay fleet wait CSIPlugin/hostpath.csi.k8s.io --node node-7 --for deregistered`,
		Args:              oneRegistered,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	socket := addControlSocket(cmd, paths)
	goal, timeout := addGoal(cmd)
	count := cmd.Flags().Uint16("count", 1, "number of instances to wait for")
	filter := addFleetFilter(cmd, true)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *count == 0:
			return wrongUsage(cmd, "--count 0 is nothing to wait for: give one above zero, or use --for deregistered")
		case goal.value == string(client.GoalDeregistered) && cmd.Flags().Changed("count"):
			return wrongUsage(cmd, "--count goes with --for registered only")
		}
		return above0(cmd, *timeout)
	}
	cmd.RunE = socket.ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		ptype, name, _ := client.ParsePlugin(args[0])
		filter.Types, filter.Names = []string{ptype}, []string{name}
		wanted := 0 // in no state: what is unreachable may be back, and is not deregistered
		if goal.value == string(client.GoalRegistered) {
			filter.States, wanted = []string{"registered"}, int(*count)
		}
		var warning sync.WaitGroup
		defer warning.Wait()
		watching, stop := context.WithCancel(ctx)
		defer stop()
		watched := *filter
		watched.Health = true
		warning.Go(func() {
			for _, err := range withoutHealth(cmd.ErrOrStderr(), c.WatchFleet(watching, watched, false, nil)) {
				if err != nil {
					return // the wait itself says what is wrong
				}
			}
		})
		_, err := c.WaitFleet(ctx, *filter, wanted)
		return err
	})
	return cmd
}

// withoutHealth says on standard error when the daemon has lost etcd, and when it is back, and passes everything else on.
func withoutHealth(stderr io.Writer, all iter.Seq2[client.FleetChange, error]) iter.Seq2[client.FleetChange, error] {
	return func(yield func(client.FleetChange, error) bool) {
		for change, err := range all {
			switch {
			case err == nil && change.Health != nil && change.Health.Current:
				fmt.Fprintln(stderr, "the daemon follows etcd again")
			case err == nil && change.Health != nil:
				warnStale(stderr, *change.Health)
			default:
				if !yield(change, err) {
					return
				}
			}
		}
	}
}

// warnStale says that what is shown may be out of date.
func warnStale(stderr io.Writer, h client.FleetHealth) {
	if !h.Current {
		fmt.Fprintf(stderr, "warning: %s\n", escape(h.Message))
	}
}

func writeNodes(w io.Writer, nodes []client.FleetNode, now time.Time) error {
	list := &table{
		terminal: terminalOf(w), head: []string{"NAME", "STATE", "VERSION", "PLUGINS", "ADDRESS", "UP", "LAST SEEN"}, tones: tones{1: toneOf},
	}
	for _, n := range nodes {
		up := "-"
		if n.State == "ready" {
			up = since(n.StartedAt, now)
		}
		list.add(cell(n.Name), cell(stateOfNode(n)), cell(n.Version), fmt.Sprint(n.Plugins), cell(n.Address), up, ago(n.LastSeen, now))
	}
	return list.write(w)
}

// stateOfNode is the state of a node, with what is wrong with one that is ready.
func stateOfNode(n client.FleetNode) string {
	if n.DrainedAt != nil {
		return n.State + ", drained"
	}
	if n.State == "ready" && slices.ContainsFunc(n.Conditions, func(c client.Condition) bool { return c.Status != "ok" }) {
		return "ready, degraded"
	}
	return n.State
}

func nodeNames(nodes []client.FleetNode) []string {
	return each(nodes, func(n client.FleetNode) string { return n.Name })
}

func writeFleetPlugins(w io.Writer, plugins []client.FleetPlugin, now time.Time) error {
	list := &table{
		terminal: terminalOf(w), head: []string{"TYPE", "NAME", "VERSION", "NODE", "STATE", "AGE", "LAST SEEN"},
		cuts: []int{2, 6, 0, 1}, tones: tones{4: toneOf},
	}
	for _, p := range plugins {
		list.add(cell(p.Type), cell(p.Name), cell(p.Version), cell(p.Node), cell(p.State), since(p.RegisteredAt, now), ago(p.LastSeen, now))
	}
	return list.write(w)
}

func fleetPluginID(p client.FleetPlugin) string { return escape(p.Node + "/" + p.Type + "/" + p.Name) }

func fleetPluginIDs(plugins []client.FleetPlugin) []string { return each(plugins, fleetPluginID) }

func writeFleetChange(w io.Writer, c client.FleetChange) error {
	if c.Node != nil {
		return write(w, fmt.Appendf(nil, "%-8s  node    %s  %s\n", escape(c.Kind), escape(c.Node.Name), withReason(c.Node.State, c.Node.Reason)))
	}
	return write(w, fmt.Appendf(nil, "%-8s  plugin  %s  %s  %s\n", escape(c.Kind), fleetPluginID(*c.Plugin), cell(c.Plugin.Version),
		withReason(c.Plugin.State, c.Plugin.Reason)))
}

func withReason(state, reason string) string {
	if reason == "" {
		return escape(state)
	}
	return escape(state + ": " + reason)
}
