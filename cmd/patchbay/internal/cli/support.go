package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
)

func newSupportDumpCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "support-dump [FILE]",
		Short: "Collect diagnostics for a bug report",
		Long: `Collect everything a bug report needs into FILE, a compressed tar archive, or with - on standard output: versions, the
configuration in force, plugins and launched plugins, what needs attention, refusals, conditions, past events, and the daemon's metrics,
goroutines and memory. Possible secrets in the configuration are left out. Names, paths and error texts are not, so read the archive
before you send it.

README.txt in the archive describes its files, and errors.txt lists what was not available. Metrics, goroutines and memory need the role
admin.`,
		Example: `  patchbay support-dump report.tar.gz && tar tzf report.tar.gz`,
		Args:    command.Takes("[FILE]"),
	}
	socket := command.AddControlSocket(cmd, paths)
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		if _, err := c.Version(ctx); err != nil {
			return err // no daemon answers
		}
		name := "patchbay-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
		if len(args) > 0 {
			name = args[0]
		}
		var packed bytes.Buffer
		if err := dump(ctx, c, &packed); err != nil {
			return err
		}
		if name == "-" {
			return console.Write(cmd.OutOrStdout(), packed.Bytes())
		}
		if err := writeNew(name, packed.Bytes()); err != nil {
			return err
		}
		return command.WriteLines(cmd.OutOrStdout(), []string{name})
	})
	return cmd
}

// writeNew creates a file that only its owner can read. It fails if the file exists.
func writeNew(name string, content []byte) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("cannot create the file: %w", err)
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("cannot write the file: %w", errors.Join(err, os.Remove(name)))
	}
	return nil
}

// dumped is a file of the archive.
type dumped struct {
	name    string
	content []byte
}

// dumpContents is the README.txt of the archive.
const dumpContents = `What "patchbay support-dump" collected from a daemon. Possible secrets in the configuration are left out.
Names, paths and error texts are not: read the files before you send them. A file that could not be collected
is missing, and errors.txt has the reason.

command.json            the version of the command that wrote this archive
daemon.json             the version, process and uptime of the daemon
plugins.json            the registered plugins, their instances and states
launched.json           the plugins that the daemon launches
refusals.json           sockets and directories that were refused, with reasons
needs.json              what needs attention, with remedies
events.json             past events, oldest first
configuration.json      the configuration in force
process/metrics.txt     the daemon's metrics, in the text format of Prometheus
process/goroutines.txt  the stacks of the daemon's goroutines
process/heap.pprof      the daemon's memory, for "go tool pprof"
errors.txt              what could not be collected; empty if nothing
`

func dump(ctx context.Context, c *client.Client, w io.Writer) error {
	ctx, cancel := command.AnswerInTime(ctx)
	defer cancel()
	packed := gzip.NewWriter(w)
	archive := tar.NewWriter(packed)
	files, wrong := known(ctx, c)
	files = append([]dumped{{"README.txt", []byte(dumpContents)}}, files...)
	files = append(files, ofProcess(ctx, c, &wrong)...)
	files = append(files, dumped{"errors.txt", wrong.Bytes()})
	for _, file := range files {
		header := &tar.Header{Name: "patchbay/" + file.name, Mode: 0o600, Size: int64(len(file.content)), ModTime: time.Now()}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(file.content); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), packed.Close())
}

// known returns files with the daemon's state, and a text with the errors.
func known(ctx context.Context, c *client.Client) (files []dumped, wrong bytes.Buffer) {
	for _, part := range []struct {
		name string
		get  func() (any, error)
	}{
		{"command.json", func() (any, error) { return thisVersion(), nil }},
		{"daemon.json", func() (any, error) { return c.Version(ctx) }},
		{"plugins.json", func() (any, error) { return c.List(ctx) }},
		{"launched.json", func() (any, error) { return c.ListLaunched(ctx) }},
		{"refusals.json", func() (any, error) { return c.Refusals(ctx) }},
		{"needs.json", func() (any, error) {
			all, err := askNeeds(ctx, c)
			return all.needs, err
		}},
		{"events.json", func() (any, error) {
			var events []*patchbayv1.Event
			for e, err := range c.Events(ctx, &patchbayv1.WatchEventsRequest{}) {
				if err != nil {
					return events, err
				}
				events = append(events, e)
			}
			return events, nil
		}},
		{"configuration.json", func() (any, error) { return c.Configuration(ctx) }},
	} {
		value, err := part.get()
		var content []byte
		if err == nil {
			content, err = json.MarshalIndent(command.JSONOf(value), "", "  ")
		}
		if err != nil {
			fmt.Fprintf(&wrong, "%s: %v\n", part.name, err)
			continue
		}
		files = append(files, dumped{part.name, content})
	}
	return files, wrong
}

func ofProcess(ctx context.Context, c *client.Client, wrong io.Writer) (files []dumped) {
	for part, err := range c.Diagnose(ctx) {
		if err != nil {
			fmt.Fprintf(wrong, "the daemon's process: %v\n", err)
			break
		}
		name := "process/" + part.Name
		if len(files) == 0 || files[len(files)-1].name != name {
			files = append(files, dumped{name: name})
		}
		last := &files[len(files)-1]
		last.content = append(last.content, part.Content...)
	}
	return files
}
