package cli

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
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/plugin"
)

// answerTimeout bounds the calls that a daemon answers at once. Only one that hangs does not.
const answerTimeout = 10 * time.Second

func answerInTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return limited(ctx, answerTimeout)
}

// limited returns a context that ends after a while, or with its parent if there is no limit.
func limited(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// controlSocket is the flag that names the daemon's control socket.
type controlSocket struct {
	value string
	paths paths
}

func addControlSocket(cmd *cobra.Command, paths paths) *controlSocket {
	s := &controlSocket{paths: paths}
	cmd.Flags().StringVar(&s.value, "control-socket", paths.controlSocket,
		"path of the daemon's control socket; without the flag, "+controlSocketEnv+" and the configuration file are asked")
	return s
}

// find returns the path of the control socket: that of the flag, else of the environment, else of the configuration file, else the
// default.
func (s *controlSocket) find(cmd *cobra.Command) (string, error) {
	if cmd.Flags().Changed("control-socket") {
		return s.value, nil
	}
	if fromEnv := os.Getenv(controlSocketEnv); fromEnv != "" {
		return fromEnv, nil
	}
	loaded, err := config.Load(sourcesFor(s.paths))
	if err != nil {
		return "", fmt.Errorf("cannot find the control socket in the configuration: %w; correct it or name the socket with "+
			"--control-socket or %s", err, controlSocketEnv)
	}
	return loaded.Config.ControlSocket, nil
}

// ask returns what a command runs that asks the daemon something, for at most so long if limit is above zero.
func (s *controlSocket) ask(
	limit time.Duration, run func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error,
) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		path, err := s.find(cmd)
		if err != nil {
			return err
		}
		if path == "" {
			return wrongUsage(cmd, "no control socket is known: name one with --control-socket or %s", controlSocketEnv)
		}
		c := client.New(path)
		defer c.Close()
		ctx, cancel := limited(cmd.Context(), limit)
		defer cancel()
		return run(ctx, c, cmd, args)
	}
}

// onePlugin is for commands whose only argument is TYPE/NAME or the name of a launched plugin.
func onePlugin(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && args[0] != "" && !strings.Contains(args[0], "/") {
		return nil
	}
	return oneRegistered(cmd, args)
}

// pluginOf reads TYPE/NAME or the name of a launched plugin, whose type is empty.
func pluginOf(arg string) (ptype, name string) {
	if !strings.Contains(arg, "/") {
		return "", arg
	}
	parsed, _ := plugin.ParseName(arg)
	return parsed.Type, parsed.Name
}

// namesPlugin is what the help of commands with [onePlugin] says of it.
const namesPlugin = "TYPE is the type of the plugin or a role of it, such as csi-node; it ends at the first slash, the name may have\n" +
	"more. NAME alone is a launched plugin, by its name in the catalogue."

func oneRegistered(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return takes("TYPE/NAME")(cmd, args)
	}
	if _, ok := plugin.ParseName(args[0]); !ok {
		return wrongUsage(cmd, "malformed plugin %q: write TYPE/NAME, for example CSIPlugin/hostpath.csi.k8s.io", args[0])
	}
	return nil
}

// pluginID is how plugins are written for people: TYPE/NAME, NAME for a launched plugin that has not registered, or "-" for a socket that
// has not said who it is.
func pluginID(ptype, name string) string {
	switch {
	case ptype == "" && name == "":
		return "-"
	case ptype == "":
		return escape(name)
	}
	return escape(ptype + "/" + name)
}

func completePlugins(socket *controlSocket) cobra.CompletionFunc {
	return completeWith(socket, func(ctx context.Context, c *client.Client) ([]string, error) {
		listing, err := c.List(ctx)
		if err != nil {
			return nil, err
		}
		launched, err := c.ListLaunched(ctx)
		return append(names(listing.Plugins), each(launched, func(p *patchbayv1.LaunchedPlugin) string { return p.Name })...), err
	})
}

// completeWith completes the first argument, or a flag, with what the daemon lists. Without a daemon there are no completions.
func completeWith(socket *controlSocket, list func(ctx context.Context, c *client.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (completions []cobra.Completion, _ cobra.ShellCompDirective) {
		ask := socket.ask(answerTimeout, func(ctx context.Context, c *client.Client, _ *cobra.Command, _ []string) error {
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

// completable are the words that are the same to every shell and cannot be taken for anything else: plugins choose their names, and one
// with spaces, quotes, a leading dash or what cobra takes for a directive of its own is for those to type who know what it is.
var completable = regexp.MustCompile(`^[\p{L}\p{N}._][\p{L}\p{N}._/:@+,=-]*$`)
