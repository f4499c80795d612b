package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
)

func newDevicesCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List and allocate the devices of device plugins",
		Long: `List the devices of device plugins, allocate them to owners and release them.

This needs a daemon with --handler DevicePlugin=device, which tracks each plugin's devices and remembers their owners across restarts, so
that no device is ever allocated twice. A resource is the name of a device plugin, for example example.com/gpu.`,
		Example: `  patchbay devices list
  patchbay devices allocate example.com/gpu build-17 --count 2 -o json
  patchbay devices release example.com/gpu build-17`,
	}
	cmd.AddCommand(newDevicesListCommand(paths), newDevicesAllocateCommand(paths), newDevicesReleaseCommand(paths))
	for _, c := range cmd.Commands() {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	return cmd
}

func newDevicesListCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list [RESOURCE...]",
		Aliases: []string{"ls"},
		Short:   "List devices",
		Long: `List the devices of all resources, or of the named ones, with their health and owner.

A device is unavailable while its plugin is gone, and missing if it has an owner but the plugin no longer lists it.

The output is a table, an array of objects as JSON or YAML, or one RESOURCE/ID a line.`,
		Example: `  # Which devices are free?
  patchbay devices list example.com/gpu -o json | jq -r '.[] | select(.owner == "" and .health == "healthy") | .id'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if slices.Contains(args, "") {
				return command.WrongUsage(cmd, "a resource has an empty name: write its name, for example example.com/gpu")
			}
			return nil
		},
	}
	socket := command.AddControlSocket(cmd, paths)
	output := command.AddOutput(cmd, "table", "name")
	cmd.RunE = socket.Ask(command.AnswerTimeout, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		listing, err := c.ListDevices(ctx, args...)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, output, listing.Devices, deviceNames, func(w io.Writer) error {
			if len(listing.Devices) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "no devices are known")
			}
			return writeDevices(w, listing.Devices)
		})
	})
	return cmd
}

func newDevicesAllocateCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "allocate RESOURCE OWNER",
		Short: "Allocate devices to an owner",
		Long: `Allocate devices of one resource to an owner, any name you choose, and print what the plugin requires for it: environment
variables, mounts, device nodes, annotations and CDI devices (with -o json or -o yaml).

The owner keeps the devices until "patchbay devices release", whatever happens to the plugin and the daemon. If you repeat the command, it
prints the same result and, if the plugin wants that before each start, prepares the devices again. Asking for something else fails.`,
		Example: `  # Two devices that the plugin chooses.
  patchbay devices allocate example.com/gpu build-17 --count 2 -o json

  # A particular device.
  patchbay devices allocate example.com/gpu build-18 --device GPU-3`,
		Args: command.Takes("RESOURCE", "OWNER"),
	}
	socket := command.AddControlSocket(cmd, paths)
	request := &patchbayv1.AllocateDevicesRequest{}
	cmd.Flags().Uint32Var(&request.Count, "count", 0, "how many devices (default: as many as --device names, or 1)")
	cmd.Flags().StringArrayVar(&request.Devices, "device", nil, "ID of a device to allocate; can be repeated")
	output := command.AddOutput(cmd, "table", "name")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("count") && request.Count == 0 {
			return command.WrongUsage(cmd, "--count must be above 0")
		}
		return nil
	}
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, _ *cobra.Command, args []string) error {
		request.Resource, request.Owner = args[0], args[1]
		a, err := c.AllocateDevices(ctx, request)
		if err != nil {
			return err
		}
		return printAllocation(cmd, output, a)
	})
	return cmd
}

func newDevicesReleaseCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release RESOURCE OWNER",
		Short: "Release the devices of an owner",
		Long: `Release the devices of one resource that are allocated to an owner, and print them. They can be allocated again immediately, so
make sure first that the owner no longer uses them: the daemon cannot check that.`,
		Example: `  patchbay devices release example.com/gpu build-17`,
		Args:    command.Takes("RESOURCE", "OWNER"),
	}
	socket := command.AddControlSocket(cmd, paths)
	output := command.AddOutput(cmd, "table", "name")
	cmd.RunE = socket.Ask(releaseTimeout, func(ctx context.Context, c *client.Client, cmd *cobra.Command, args []string) error {
		a, err := c.ReleaseDevices(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return printAllocation(cmd, output, a)
	})
	return cmd
}

// releaseTimeout is longer than an allocation for the same owner can take. A release waits for it.
const releaseTimeout = 2 * time.Minute

func writeDevices(w io.Writer, devices []*patchbayv1.Device) error {
	list := &console.Table{
		Terminal: console.TerminalOf(w), Head: []string{"RESOURCE", "ID", "HEALTH", "NUMA", "OWNER"},
		Cuts: []int{1}, Tones: console.Tones{2: console.ToneOf},
	}
	for _, d := range devices {
		nodes := command.Each(d.NumaNodes, func(node int64) string { return fmt.Sprint(node) })
		list.Add(console.Cell(d.Resource), console.Cell(d.Id), console.Cell(d.Health), console.Cell(strings.Join(nodes, ",")),
			console.Cell(d.Owner))
	}
	return list.Write(w)
}

func deviceNames(devices []*patchbayv1.Device) []string {
	return command.Each(devices, func(d *patchbayv1.Device) string { return d.Resource + "/" + d.Id })
}

func printAllocation(cmd *cobra.Command, output *command.Choice, a *patchbayv1.DeviceAllocation) error {
	return output.Print(cmd, a, func(w io.Writer) error {
		if output.Value == "name" {
			return command.WriteLines(w, command.Each(a.Devices, func(id string) string { return a.Resource + "/" + id }))
		}
		list := &console.Table{Terminal: console.TerminalOf(w), Head: []string{"RESOURCE", "ID", "OWNER"}, Cuts: []int{1}}
		for _, id := range a.Devices {
			list.Add(console.Cell(a.Resource), console.Cell(id), console.Cell(a.Owner))
		}
		return list.Write(w)
	})
}
