package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/internal/suggest"
	"github.com/patchbay-dev/patchbay/plugin"
)

func newListCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all known plugins",
		Long: `List every plugin that the daemon knows, one line for each instance, and every socket whose type and name are not known yet.
Instances of one plugin are listed newest first.

With --watch the command runs until it is interrupted (exit code 0): an instance that changes is printed again, and one that is gone, or
no longer matches, is printed once more in the state "gone".

The output is a table, an array of objects as JSON or YAML, or one TYPE/NAME a line.`,
		Example: `  # All plugins.
  patchbay list

  # The plugins of one type that are not registered.
  patchbay list --type CSIPlugin --state backoff,failed,refused,unreachable

  # The launched plugins of a team, and their changes.
  patchbay list --label team=storage --watch

  # The endpoints of all registered CSI plugins.
  patchbay list -o json | jq -r '.[] | select(.type == "CSIPlugin" and .state == "registered") | .endpoint'`,
	}
	socket := command.AddControlSocket(cmd, paths)
	output := command.AddOutput(cmd, "table", "name")
	only := addFilters(cmd)
	follow := cmd.Flags().BoolP("watch", "w", false, "continue with changes: one line, or one JSON object per line, for each change")
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		if *follow {
			return watchList(ctx, c, cmd, output, only)
		}
		ctx, cancel := command.AnswerInTime(ctx)
		defer cancel()
		listing, err := only.list(ctx, c)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, output, listing.Plugins, command.Names, func(w io.Writer) error {
			warn(ctx, c, cmd.ErrOrStderr(), listing)
			return pluginTable(console.TerminalOf(w), listing.Plugins, time.Now()).Write(w)
		})
	})
	return cmd
}

// filter selects plugins.
type filter struct {
	types, states, labels []string
	name                  string // a pattern
}

func addFilters(cmd *cobra.Command) *filter {
	f := &filter{}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.types, "type", nil, "only plugins of these types, or with these roles")
	command.AddWords(cmd, &f.states, "state", "only instances in these `states`", pluginStates)
	flags.Func("name", "only plugins with this `name`; * matches any text without a slash", func(pattern string) error {
		f.name = pattern
		_, err := path.Match(pattern, "")
		return err
	})
	flags.StringSliceVarP(&f.labels, "label", "l", nil,
		"only launched plugins whose metadata in the catalogue match all of these: KEY, KEY=VALUE or KEY!=VALUE")
	return f
}

func (f *filter) list(ctx context.Context, c *client.Client) (*patchbayv1.ListPluginsResponse, error) {
	listing, err := c.List(ctx, f.types...) // the daemon knows which roles a plugin has
	if err != nil {
		return nil, err
	}
	listing.Plugins = slices.DeleteFunc(listing.Plugins, func(p *patchbayv1.Plugin) bool { return !f.matches(p) })
	return listing, nil
}

// matches reports whether a plugin has one of the states, the name and all labels.
func (f *filter) matches(p *patchbayv1.Plugin) bool {
	named, _ := path.Match(f.name, p.Name) // the pattern is valid
	unlabelled := slices.ContainsFunc(f.labels, func(l string) bool {
		if key, value, differs := strings.Cut(l, "!="); differs {
			has, found := p.Metadata[key]
			return found && has == value
		}
		key, value, exact := strings.Cut(l, "=")
		has, found := p.Metadata[key]
		return !found || exact && has != value
	})
	return (len(f.states) == 0 || slices.Contains(f.states, p.State)) && (f.name == "" || named) && !unlabelled
}

// warn prints degraded conditions, and that no plugins are listed.
func warn(ctx context.Context, c *client.Client, stderr io.Writer, listing *patchbayv1.ListPluginsResponse) {
	for _, c := range listing.Conditions {
		if c.Status != "ok" {
			fmt.Fprintf(stderr, "warning: %s is %s: %s\n", console.Escape(c.Name), console.Escape(c.Status), console.Escape(c.Message))
		}
	}
	if len(listing.Plugins) > 0 {
		return
	}
	if all, err := c.List(ctx); err == nil && len(all.Plugins) > 0 {
		fmt.Fprintf(stderr, "none of the %d known plugins matches\n", len(all.Plugins))
	} else {
		fmt.Fprintln(stderr, "no plugins are known")
	}
}

func pluginTable(t console.Terminal, plugins []*patchbayv1.Plugin, now time.Time) *console.Table {
	list := &console.Table{
		Terminal: t, Head: []string{"TYPE", "NAME", "VERSION", "STATE", "ENDPOINT", "AGE"},
		Cuts: []int{4, 2, 0, 1}, Tones: console.Tones{3: console.ToneOf, 5: func(string) console.Tone { return console.Faint }},
	}
	for _, p := range plugins {
		list.Add(console.Cell(p.Type), console.Cell(p.Name), console.Cell(p.Version), console.Cell(p.State),
			console.Cell(cmp.Or(p.Endpoint, p.SocketPath)), age(p, now))
	}
	return list
}

// age formats the time since the plugin's socket was first seen or, if that was earlier, since it was registered by an earlier daemon.
func age(p *patchbayv1.Plugin, now time.Time) string {
	seen, registered := console.TimeOf(p.FirstSeen), console.TimeOf(p.RegisteredAt)
	if seen == nil || registered != nil && registered.Before(*seen) {
		return console.Since(registered, now)
	}
	return console.Since(seen, now)
}

func newStatusCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [TYPE/NAME | NAME]",
		Short: "Show plugins that need attention, or one in detail",
		Long: `Without an argument, show the plugins that need attention, with the reason, the time and the remedy: those that failed, were
refused, do not answer, or serve without a socket, until they are registered again, launched plugins until they have not failed for
restart.window; and those that were refused within the last hour and are gone. The exit code is 1 if there are any, or if a condition of
the daemon is degraded.

TYPE/NAME shows every instance of one plugin, newest first: its state and the reason, its sockets, the number of failed attempts, the time
of the next attempt, and the last error. TYPE is the type of the plugin or one of its roles, such as csi-node. It ends at the first slash;
the name may have more slashes.

NAME alone is a launched plugin, by its name in the catalogue: its process, its health, the number of restarts, and the last error.`,
		Example: `  # Which plugins need attention?
  patchbay status

  # Why is the driver not registered?
  patchbay status CSIPlugin/hostpath.csi.k8s.io

  # The last error of its newest instance.
  patchbay status CSIPlugin/hostpath.csi.k8s.io -o json | jq -r '.[0].lastError'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return command.OnePlugin(cmd, args)
		},
	}
	socket := command.AddControlSocket(cmd, paths)
	cmd.ValidArgsFunction = command.CompletePlugins(socket)
	output := command.AddOutput(cmd, "text")
	cmd.RunE = socket.Ask(command.AnswerTimeout, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			all, err := askNeeds(ctx, c)
			if err != nil {
				return err
			}
			return statusOfAll(cmd, output, all)
		}
		ptype, name := command.PluginOf(args[0])
		if ptype == "" {
			return statusOfLaunched(ctx, c, cmd, output, name)
		}
		instances, err := c.Get(ctx, ptype, name)
		if err != nil {
			return err
		}
		return output.Print(cmd, instances, func(w io.Writer) error { return writeStatus(w, instances, time.Now()) })
	})
	return cmd
}

func statusOfLaunched(ctx context.Context, c *client.Client, cmd *cobra.Command, output *command.Choice, name string) error {
	all, err := c.ListLaunched(ctx)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(all, func(p *patchbayv1.LaunchedPlugin) bool { return p.Name == name }); i >= 0 {
		return printLaunched(cmd, output, all[i])
	}
	like := suggest.Hint(name, command.Each(all, func(p *patchbayv1.LaunchedPlugin) string { return p.Name }))
	return fmt.Errorf("no launched plugin %s is known%s: launched plugins are in the catalogue, the key plugins of the "+
		"configuration; name any other plugin as TYPE/NAME", name, like)
}

func writeStatus(w io.Writer, instances []*patchbayv1.Plugin, now time.Time) error {
	var text bytes.Buffer
	screen := console.TerminalOf(w)
	fmt.Fprintln(&text, command.PluginID(instances[0].Type, instances[0].Name))
	for i, p := range instances {
		fmt.Fprintf(&text, "\nInstance %d of %d\n", i+1, len(instances))
		writeDescription(&text, screen, describe(p, now))
	}
	return console.Write(w, text.Bytes())
}

// line is one line of a description. Lines without a value are not printed.
type line struct{ label, value string }

func writeDescription(text *bytes.Buffer, screen console.Terminal, lines []line) {
	lines = slices.DeleteFunc(lines, func(l line) bool { return l.value == "" })
	widest := 0
	for _, l := range lines {
		widest = max(widest, runewidth.StringWidth(l.label))
	}
	for _, l := range lines {
		is := console.Plain
		if l.label == "State" {
			is = console.ToneOf(l.value)
		}
		label := l.label + ":" + strings.Repeat(" ", widest-runewidth.StringWidth(l.label))
		fmt.Fprintf(text, "  %s  %s\n", screen.Paint(label, console.Faint), screen.Paint(l.value, is))
	}
}

func describe(p *patchbayv1.Plugin, now time.Time) []line {
	state := console.Escape(p.State)
	if p.Current {
		state += " (current)"
	}
	lines := append([]line{{"State", state}}, healthLines(p.Health, now, p.LastError)...)
	lines = append(lines, []line{
		{"Since", console.Moment(console.TimeOf(p.Since), now)},
		{"Reason", console.Escape(p.Reason)},
		{"Failed attempts", positive(p.Attempts)},
		{"Next attempt", console.Moment(console.TimeOf(p.NextRetry), now)},
		{"Last error", console.Escape(p.LastError)},
		{"Version", console.Escape(ownVersion(p))},
		{"Versions", console.Escape(strings.Join(p.Versions, ", "))},
		{"Roles", console.Escape(strings.Join(p.Roles, ", "))},
		{"Endpoint", console.Escape(p.Endpoint)},
		{"Socket", console.Escape(p.SocketPath)},
		{"Source", console.Escape(p.Source)},
		{"Instance ID", console.Escape(p.Instance)},
		{"First seen", console.Moment(console.TimeOf(p.FirstSeen), now)},
		{"Registered at", console.Moment(console.TimeOf(p.RegisteredAt), now)},
		{"Launched as", console.Escape(p.LaunchedAs)},
		{"Restarts", positive(p.Restarts)},
	}...)
	for _, key := range slices.Sorted(maps.Keys(p.Details)) {
		lines = append(lines, line{console.Escape(key), console.Escape(p.Details[key])})
	}
	return append(lines, labelLines(p.Metadata)...)
}

// healthLines returns lines about the health. The reason is left out if it is among the errors that are shown in any case.
func healthLines(h *patchbayv1.Health, now time.Time, errors ...string) []line {
	lines := []line{{"Health", console.Escape(h.GetState())}}
	if h.GetState() != string(plugin.HealthAttention) {
		return lines
	}
	lines = append(lines, line{"Failing since", console.Moment(console.TimeOf(h.Since), now)})
	if !slices.Contains(errors, h.Reason) {
		lines = append(lines, line{"Failure", console.Escape(h.Reason)})
	}
	return append(lines, line{"Remedy", console.Escape(h.Remedy)}, line{"Healthy from", console.Moment(console.TimeOf(h.HealthyFrom), now)})
}

// labelLines returns one line for each entry of a launched plugin's metadata.
func labelLines(metadata map[string]string) (lines []line) {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		lines = append(lines, line{"Label", console.Escape(key + "=" + metadata[key])})
	}
	return lines
}

func ownVersion(p *patchbayv1.Plugin) string {
	if slices.Contains(p.Versions, p.Version) {
		return ""
	}
	return p.Version
}

func positive[N int64 | uint32](n N) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprint(n)
}
