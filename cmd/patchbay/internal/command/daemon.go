// Package command has what the commands share: flags, usage errors, paths and settings, output as text, JSON or YAML, and the connection
// to the daemon.
package command

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/plugin"
)

// AnswerTimeout bounds calls that a daemon answers immediately unless it hangs.
const AnswerTimeout = 10 * time.Second

// AnswerInTime returns a context whose deadline is [AnswerTimeout] from now, unless ctx ends earlier.
func AnswerInTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return Limited(ctx, AnswerTimeout)
}

// Limited returns a context with a timeout, or without one if limit is not positive.
func Limited(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// ControlSocket is the flag that names the daemon's control socket.
type ControlSocket struct {
	value string
	paths Paths
}

// AddControlSocket adds the flag --control-socket.
func AddControlSocket(cmd *cobra.Command, paths Paths) *ControlSocket {
	s := &ControlSocket{paths: paths}
	cmd.Flags().StringVar(&s.value, "control-socket", paths.ControlSocket,
		"path of the daemon's control socket; default: $"+controlSocketEnv+", then the configuration file")
	return s
}

// find returns the path of the control socket from the flag, the environment, the configuration file or the default, in this order.
func (s *ControlSocket) find(cmd *cobra.Command) (string, error) {
	if cmd.Flags().Changed("control-socket") {
		return s.value, nil
	}
	if fromEnv := os.Getenv(controlSocketEnv); fromEnv != "" {
		return fromEnv, nil
	}
	loaded, err := config.Load(SourcesFor(s.paths))
	if err != nil {
		return "", fmt.Errorf("cannot find the control socket in the configuration: %w; correct it or name the socket with "+
			"--control-socket or %s", err, controlSocketEnv)
	}
	return loaded.ControlSocket, nil
}

// Ask returns a RunE that calls run with a client of the daemon, and with a timeout if limit is positive.
func (s *ControlSocket) Ask(
	limit time.Duration, run func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error,
) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		path, err := s.find(cmd)
		if err != nil {
			return err
		}
		if path == "" {
			return WrongUsage(cmd, "no control socket is known: name one with --control-socket or %s", controlSocketEnv)
		}
		c := client.New(path)
		defer c.Close()
		ctx, cancel := Limited(cmd.Context(), limit)
		defer cancel()
		return run(ctx, c, cmd, args)
	}
}

// OnePlugin checks that the only argument is TYPE/NAME or the name of a launched plugin.
func OnePlugin(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && args[0] != "" && !strings.Contains(args[0], "/") {
		return nil
	}
	return OneRegistered(cmd, args)
}

// PluginOf splits TYPE/NAME. The type is empty for the name of a launched plugin.
func PluginOf(arg string) (ptype, name string) {
	if !strings.Contains(arg, "/") {
		return "", arg
	}
	parsed, _ := plugin.ParseName(arg)
	return parsed.Type, parsed.Name
}

// NamesPlugin is the help for the argument of [OnePlugin].
const NamesPlugin = "" +
	"TYPE is the type of the plugin or one of its roles, such as csi-node. It ends at the first slash; the name may have\n" +
	"more slashes. NAME alone is a launched plugin, by its name in the catalogue."

// OneRegistered checks that the one argument is TYPE/NAME.
func OneRegistered(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return Takes("TYPE/NAME")(cmd, args)
	}
	if _, ok := plugin.ParseName(args[0]); !ok {
		return WrongUsage(cmd, "malformed plugin %q: write TYPE/NAME, for example CSIPlugin/hostpath.csi.k8s.io", args[0])
	}
	return nil
}

// PluginID formats a plugin as TYPE/NAME, as NAME if it is launched and not registered, or as "-" if neither is known.
func PluginID(ptype, name string) string {
	switch {
	case ptype == "" && name == "":
		return "-"
	case ptype == "":
		return console.Escape(name)
	}
	return console.Escape(ptype + "/" + name)
}

// CompletePlugins completes the names of the plugins that the daemon knows.
func CompletePlugins(socket *ControlSocket) cobra.CompletionFunc {
	return CompleteWith(socket, func(ctx context.Context, c *client.Client) ([]string, error) {
		listing, err := c.List(ctx)
		if err != nil {
			return nil, err
		}
		launched, err := c.ListLaunched(ctx)
		return append(Names(listing.Plugins), Each(launched, func(p *patchbayv1.LaunchedPlugin) string { return p.Name })...), err
	})
}

// CompleteWith completes the first argument, or a flag, with words from the daemon. Without a daemon there are no completions.
func CompleteWith(socket *ControlSocket, list func(ctx context.Context, c *client.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (completions []cobra.Completion, _ cobra.ShellCompDirective) {
		ask := socket.Ask(AnswerTimeout, func(ctx context.Context, c *client.Client, _ *cobra.Command, _ []string) error {
			found, err := list(ctx, c)
			completions = slices.DeleteFunc(found, func(c string) bool { return !completable.MatchString(c) })
			return err
		})
		if len(args) > 0 || ask(cmd, args) != nil {
			completions = nil
		}
		return completions, cobra.ShellCompDirectiveNoFileComp
	}
}

// completable matches words without special characters of shells or of cobra's completion, and without a leading dash. Plugins choose their
// names; others are not completed.
var completable = regexp.MustCompile(`^[\p{L}\p{N}._][\p{L}\p{N}._/:@+,=-]*$`)

// Names returns the unique TYPE/NAME of a listing. Sockets whose name is not known yet are left out.
func Names(plugins []*patchbayv1.Plugin) []string {
	var list []string
	for _, p := range plugins {
		if p.Name != "" {
			list = append(list, PluginID(p.Type, p.Name))
		}
	}
	return slices.Compact(list) // a listing is ordered
}

// Takes checks that a command has these arguments and that none is empty. The last one is optional if its name is in brackets.
func Takes(names ...string) cobra.PositionalArgs {
	least := len(names)
	if strings.HasPrefix(names[least-1], "[") {
		least--
	}
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > len(names) || slices.Contains(args, "") {
			return WrongUsage(cmd, "%q takes %s, and got %q", cmd.CommandPath(), strings.Join(names, " and "), args)
		}
		return nil
	}
}

// Above0 returns an error if a timeout is not positive.
func Above0(cmd *cobra.Command, timeout time.Duration) error {
	if timeout <= 0 {
		return WrongUsage(cmd, "--timeout %v must be above zero", timeout)
	}
	return nil
}

// AddGoal adds the flags --for and --timeout.
func AddGoal(cmd *cobra.Command) (goal *Choice, timeout *time.Duration) {
	timeout = cmd.Flags().Duration("timeout", 30*time.Second, "how long to wait, for example 90s or 5m")
	return AddChoice(cmd, "for", "", "what to wait for", string(client.GoalRegistered), string(client.GoalDeregistered)), timeout
}
