package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

func newListCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all known plugins.",
		Long: `List every plugin that the daemon knows, one line for each instance, and every socket that has not said yet who it is.
Instances of one plugin are listed newest first.

The output is a table, an array of objects as JSON or YAML, or one TYPE/NAME a line.`,
		Example: `  # Which plugins are there?
  patchbay list

  # The endpoints of all registered CSI plugins.
  patchbay list -o json | jq -r '.[] | select(.type == "CSIPlugin" and .state == "registered") | .endpoint'`,
	}
	socket := addControlSocket(cmd, paths)
	output := addOutput(cmd, "table", "name")
	cmd.RunE = socket.ask(answerTimeout, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		listing, err := c.List(ctx)
		if err != nil {
			return err
		}
		return printList(cmd, output, listing.Plugins, names, func(w io.Writer) error {
			warn(cmd.ErrOrStderr(), listing)
			return writeTable(w, listing.Plugins, time.Now())
		})
	})
	return cmd
}

// warn says what a reader of the table should know beside it.
func warn(stderr io.Writer, listing client.Listing) {
	for _, c := range listing.Conditions {
		if c.Status != "ok" {
			fmt.Fprintf(stderr, "warning: %s is %s: %s\n", escape(c.Name), escape(c.Status), escape(c.Message))
		}
	}
	if len(listing.Plugins) == 0 {
		fmt.Fprintln(stderr, "no plugins are known")
	}
}

func writeTable(w io.Writer, plugins []client.Plugin, now time.Time) error {
	return pluginTable(terminalOf(w), plugins, now).write(w)
}

func pluginTable(t terminal, plugins []client.Plugin, now time.Time) *table {
	list := &table{
		terminal: t, head: []string{"TYPE", "NAME", "VERSION", "STATE", "ENDPOINT", "AGE"}, cut: 4, tones: tones{3: toneOf, 5: always(faint)},
	}
	for _, p := range plugins {
		list.add(cell(p.Type), cell(p.Name), cell(p.Version), cell(p.State), cell(cmp.Or(p.Endpoint, p.SocketPath)), age(p, now))
	}
	return list
}

// names returns TYPE/NAME of each plugin of a listing once. A socket that has not said who it is has none.
func names(plugins []client.Plugin) []string {
	var list []string
	for _, p := range plugins {
		if p.Name != "" {
			list = append(list, pluginID(p.Type, p.Name))
		}
	}
	return slices.Compact(list) // a listing is ordered
}
