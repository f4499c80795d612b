package cli

import (
	"bytes"
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
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	socket := addControlSocket(cmd, paths)
	output := addChoice(cmd, "output", "o", "output format", "table", "json", "yaml", "name")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := socket.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := answerInTime(cmd.Context())
		defer cancel()
		listing, err := c.List(ctx)
		if err != nil {
			return err
		}
		stdout := cmd.OutOrStdout()
		switch output.value {
		case "json":
			return writeJSON(stdout, listing.Plugins)
		case "yaml":
			return writeYAML(stdout, listing.Plugins)
		case "name":
			return writeNames(stdout, listing.Plugins)
		}
		warn(cmd.ErrOrStderr(), listing)
		return writeTable(stdout, listing.Plugins, time.Now())
	}
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
	list := &table{terminal: t, head: []string{"TYPE", "NAME", "VERSION", "STATE", "ENDPOINT", "AGE"}, cut: 4}
	for _, p := range plugins {
		endpoint := p.Endpoint
		if endpoint == "" {
			endpoint = p.SocketPath
		}
		row := plainRow(cell(p.Type), cell(p.Name), cell(p.Version), cell(p.State), cell(endpoint), age(p, now))
		row[3].is, row[5].is = toneOf(p.State), faint
		list.add(row...)
	}
	return list
}

// cell is a value that fills its place in a table and cannot break out of it.
func cell(value string) string {
	if value == "" {
		return "-"
	}
	return escape(value)
}

// age says for how long a plugin has been known: since its socket was seen, or since it was registered, maybe by an earlier daemon.
func age(p client.Plugin, now time.Time) string {
	var since *time.Time
	for _, t := range []*time.Time{p.FirstSeen, p.RegisteredAt} {
		if t != nil && (since == nil || t.Before(*since)) {
			since = t
		}
	}
	if since == nil {
		return "-"
	}
	return short(now.Sub(*since))
}

func writeNames(w io.Writer, plugins []client.Plugin) error {
	var text bytes.Buffer
	for _, name := range names(plugins) {
		fmt.Fprintln(&text, name)
	}
	return write(w, text.Bytes())
}

// names returns TYPE/NAME of each plugin once. A socket that has not said who it is has none.
func names(plugins []client.Plugin) []string {
	var list []string
	for _, p := range plugins {
		if id := pluginID(p.Type, p.Name); p.Name != "" && !slices.Contains(list, id) {
			list = append(list, id)
		}
	}
	return list
}
