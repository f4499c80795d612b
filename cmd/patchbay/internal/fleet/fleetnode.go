package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
)

const needsAdmin = `

The caller needs the control role admin, and the daemon the right to write in etcd what is below the keys of that node
("patchbay fleet role --operator").`

// addNodeOrder makes a command do something with the node that it names. It prints nothing.
func addNodeOrder(
	cmd *cobra.Command, paths command.Paths, do func(c *client.Client, ctx context.Context, node string) error,
) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = command.Takes("NODE"), cobra.NoFileCompletions
	cmd.RunE = command.AddControlSocket(cmd, paths).Ask(command.AnswerTimeout,
		func(ctx context.Context, c *client.Client, _ *cobra.Command, args []string) error {
			return do(c, ctx, args[0])
		})
	return cmd
}

func newFleetUncordonCommand(paths command.Paths) *cobra.Command {
	return addNodeOrder(&cobra.Command{
		Use:     "uncordon NODE",
		Short:   "Undo the drain of a node",
		Long:    `Undo "patchbay fleet drain". A node that is not drained is left as it is.` + needsAdmin,
		Example: `  patchbay fleet uncordon node-7`,
	}, paths, (*client.Client).UncordonNode)
}

func newFleetForgetCommand(paths command.Paths) *cobra.Command {
	return addNodeOrder(&cobra.Command{
		Use:   "forget NODE",
		Short: "Remove a node that is gone before its retention ends",
		Long: `Remove what etcd has of a node that is gone for good, so that it and its plugins are shown no more, before fleet.retention is
over. A node that is there is not forgotten; stop its daemon first. If its daemon is started again later, the node is back.` + needsAdmin,
		Example: `  patchbay fleet forget node-7`,
	}, paths, (*client.Client).ForgetNode)
}

func newFleetDrainCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Drain a node: calls go to other nodes",
		Long: `Have calls to any node of the fleet go elsewhere than to this node, as long as another one has the plugin, and the node give up the
locks that it holds, until "patchbay fleet uncordon", over restarts of its daemon. Calls in progress go on; those that name the node, and
those of programs on the node itself, still reach it.

With --wait the command returns with 0 when the node holds no locks and other nodes have left it alone for 5 s, or when its daemon has
stopped, if another daemon is asked. After the timeout, or if it is interrupted, it exits with 1; the node stays drained.` + needsAdmin,
		Example: `  # Before maintenance: when it returns, no other node waits for this one.
  patchbay fleet drain node-7 --wait --timeout 10m`,
		Args: command.Takes("NODE"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	socket := command.AddControlSocket(cmd, paths)
	wait := cmd.Flags().Bool("wait", false, "wait until the node serves no more calls of the fleet")
	timeout := cmd.Flags().Duration("timeout", 5*time.Minute, "how long to wait, for example 90s or 10m")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("timeout") && !*wait {
			return command.WrongUsage(cmd, "--timeout goes with --wait only")
		}
		return command.Above0(cmd, *timeout)
	}
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, _ *cobra.Command, args []string) error {
		node := args[0]
		answered, cancel := command.AnswerInTime(ctx)
		defer cancel()
		if err := c.DrainNode(answered, node); err != nil || !*wait {
			return err
		}
		waiting, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		err := c.WaitDrained(waiting, node)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			err = errors.New("interrupted")
		case !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		return fmt.Errorf("%w; node %s stays drained until \"patchbay fleet uncordon %[2]s\"", err, node)
	})
	return cmd
}

func newFleetRoleCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "role NODE",
		Short: "Print the commands that give a node its rights in etcd",
		Long: `Print the commands of etcdctl that make a role and a user of the name of the node, with exactly the rights that its daemon needs
with the configuration of this one: fleet.etcd.prefix and namespace say where, and with fleet.exclusive it may compete for locks.
The user has no password and is known by the common name of its client certificate, unless fleet.etcd.user is configured; then
etcdctl asks for one on the terminal. The commands can be run again after fleet.exclusive was changed. Nothing is changed by this
command, and neither a daemon nor etcd is asked.`,
		Example: `  # As etcd's user root, for a node and for the one on which operators work.
  patchbay fleet role node-7 | sh -e
  patchbay fleet role admin-1 --operator | sh -e`,
		Args: command.Takes("NODE"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	file := cmd.Flags().String("config", paths.Config, "configuration file; the default can be set with "+command.ConfigEnv)
	operator := cmd.Flags().Bool("operator", false, "may also drain, uncordon and forget other nodes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		sources := command.SourcesFor(paths)
		if cmd.Flags().Changed("config") {
			sources.File, sources.Optional = *file, false
		}
		loaded, err := config.Load(sources)
		if err != nil {
			return command.Blame(cmd, err)
		}
		if err := keys.ValidateNode(args[0]); err != nil {
			return command.WrongUsage(cmd, "%w", err)
		}
		return writeRole(cmd.OutOrStdout(), args[0], loaded.Fleet, *operator)
	}
	return cmd
}

// writeRole writes the commands that give a node its rights.
func writeRole(w io.Writer, node string, c config.Fleet, operator bool) error {
	space := fleet.Etcd(c.Etcd).Space()
	lines := []string{"role get " + node + " >/dev/null 2>&1 || etcdctl role add " + node}
	grant := func(kind, key string) {
		prefix := ""
		if strings.HasSuffix(key, "/") {
			prefix = "--prefix=true "
		}
		if strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/.-_@") != "" {
			key = "'" + strings.ReplaceAll(key, "'", `'\''`) + "'"
		}
		lines = append(lines, fmt.Sprintf("role grant-permission %s%s %s %s", prefix, node, kind, key))
	}
	nodes := strings.TrimSuffix(space.NodeRange(node), node+"/")
	if operator {
		grant("readwrite", nodes)
	} else {
		grant("readwrite", space.NodeRange(node))
		grant("read", nodes)
	}
	grant("readwrite", space.SettingsKey(node))
	grant("read", space.SettingsKey(""))
	grant("read", space.LockSpace())
	grant("readwrite", space.IndexSpace())
	if len(c.Exclusive) > 0 {
		grant("readwrite", space.LockRange(node))
		grant("readwrite", space.TokenBaseKey(node))
	}
	asks := " --no-password"
	if c.Etcd.User != "" {
		asks = " </dev/tty" // the shell reads the commands from its standard input
	}
	lines = append(lines, "user get "+node+" >/dev/null 2>&1 || etcdctl user add "+node+asks, "user grant-role "+node+" "+node)
	return command.WriteLines(w, command.Each(lines, func(line string) string { return "etcdctl " + line }))
}
