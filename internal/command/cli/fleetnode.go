package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

// nodeOrder is a command that does something with one node of the fleet, and says nothing if that is done.
type nodeOrder struct {
	use, short, long, example string
	do                        func(c *client.Client, ctx context.Context, node string) error
}

var nodeOrders = []nodeOrder{
	{
		use:   "drain NODE",
		short: "Have calls go to other nodes.",
		long: `Have calls to any node of the fleet go elsewhere than to this node, as long as another one has the plugin, and the node give up the
locks that it holds, until "patchbay fleet uncordon", over restarts of its daemon. Calls in progress go on; those that name the node, and
those of programs on the node itself, still reach it. Nodes of earlier versions go on calling it, and one that is of an earlier version
keeps its locks.`,
		example: `  # Before maintenance: no new calls, and another node holds the locks.
  patchbay fleet drain node-7 && patchbay fleet locks`,
		do: (*client.Client).DrainNode,
	},
	{
		use:     "uncordon NODE",
		short:   "Have calls go to a node again that was drained.",
		long:    `End what "patchbay fleet drain" began. Of a node that is not drained it is no error.`,
		example: `  patchbay fleet uncordon node-7`,
		do:      (*client.Client).UncordonNode,
	},
	{
		use:   "forget NODE",
		short: "Remove a node that is gone, before its retention is over.",
		long: `Remove what etcd has of a node that is gone for good, so that it and its plugins are shown no more, before fleet.retention is
over. A node that is there is not forgotten; stop its daemon first. If its daemon is started again later, the node is back.`,
		example: `  patchbay fleet forget node-7`,
		do:      (*client.Client).ForgetNode,
	},
}

// oneNode is for commands whose only argument is the name of a node.
func oneNode(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return wrongUsage(cmd, "%q takes one argument, NODE, and got %d", cmd.CommandPath(), len(args))
	}
	return nil
}

func newNodeOrderCommand(paths paths, o nodeOrder) *cobra.Command {
	cmd := &cobra.Command{
		Use: o.use, Short: o.short, Example: o.example, Args: oneNode, ValidArgsFunction: cobra.NoFileCompletions,
		Long: o.long + `

The caller needs the control role admin, and the daemon the right to write in etcd what is below the keys of that node.`,
	}
	socket := addControlSocket(cmd, paths)
	cmd.RunE = socket.ask(answerTimeout, func(ctx context.Context, c *client.Client, _ *cobra.Command, args []string) error {
		return o.do(c, ctx, args[0])
	})
	return cmd
}

func newFleetLocksCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "locks",
		Short: "List who holds the locks of exclusive plugins.",
		Long: `List the locks of the plugins of which one instance in the fleet may be active (fleet.exclusive), with the node that holds each,
its fencing token, and how many nodes want it, with the holder. A lock without a holder is about to pass on.

The output is a table, an array of objects as JSON or YAML, or one TYPE/NAME a line.`,
		Example: `  patchbay fleet locks -o json | jq -r '.[] | select(.node == "") | .name'`,
	}
	socket := addControlSocket(cmd, paths)
	output := addOutput(cmd, "table", "name")
	cmd.RunE = socket.ask(answerTimeout, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		locks, err := c.FleetLocks(ctx)
		if err != nil {
			return err
		}
		names := func(all []client.FleetLock) []string {
			return each(all, func(l client.FleetLock) string { return escape(l.Type + "/" + l.Name) })
		}
		return printList(cmd, output, locks, names, func(w io.Writer) error {
			list := &table{terminal: terminalOf(w), head: []string{"TYPE", "NAME", "NODE", "TOKEN", "CANDIDATES"}}
			for _, l := range locks {
				list.add(cell(l.Type), cell(l.Name), cell(l.Node), fmt.Sprint(l.FencingToken), fmt.Sprint(l.Candidates))
			}
			return list.write(w)
		})
	})
	return cmd
}
