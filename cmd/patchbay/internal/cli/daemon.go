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

// answerTimeout bounds calls that a daemon answers immediately unless it hangs.
const answerTimeout = 10 * time.Second

func answerInTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return limited(ctx, answerTimeout)
}

// limited returns a context with a timeout, or without one if limit is not positive.
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
		"path of the daemon's control socket; default: $"+controlSocketEnv+", then the configuration file")
	return s
}

// find returns the path of the control socket from the flag, the environment, the configuration file or the default, in this order.
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

// ask returns a RunE that calls run with a client of the daemon, and with a timeout if limit is positive.
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

// onePlugin checks that the only argument is TYPE/NAME or the name of a launched plugin.
func onePlugin(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && args[0] != "" && !strings.Contains(args[0], "/") {
		return nil
	}
	return oneRegistered(cmd, args)
}

// pluginOf splits TYPE/NAME. The type is empty for the name of a launched plugin.
func pluginOf(arg string) (ptype, name string) {
	if !strings.Contains(arg, "/") {
		return "", arg
	}
	parsed, _ := plugin.ParseName(arg)
	return parsed.Type, parsed.Name
}

// namesPlugin is the help for the argument of [onePlugin].
const namesPlugin = "TYPE is the type of the plugin or one of its roles, such as csi-node. It ends at the first slash; the name may have more\n" +
	"slashes. NAME alone is a launched plugin, by its name in the catalogue."

func oneRegistered(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return takes("TYPE/NAME")(cmd, args)
	}
	if _, ok := plugin.ParseName(args[0]); !ok {
		return wrongUsage(cmd, "malformed plugin %q: write TYPE/NAME, for example CSIPlugin/hostpath.csi.k8s.io", args[0])
	}
	return nil
}

// pluginID formats a plugin as TYPE/NAME, as NAME if it is launched and not registered, or as "-" if neither is known.
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

// completeWith completes the first argument, or a flag, with words from the daemon. Without a daemon there are no completions.
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

// completable matches words without special characters of shells or of cobra's completion, and without a leading dash. Plugins choose their
// names; others are not completed.
var completable = regexp.MustCompile(`^[\p{L}\p{N}._][\p{L}\p{N}._/:@+,=-]*$`)
