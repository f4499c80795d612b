package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

func newDevicesCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List and allocate the devices of device plugins.",
		Long: `List the devices of device plugins, allocate them to owners and release them.

It needs a daemon with --handler DevicePlugin=device. That keeps the list of each plugin's devices up to date, and remembers who has
which, also over restarts, so that no device is ever given twice. A resource is the name of a device plugin, for example
example.com/gpu.`,
		Example: `  patchbay devices list
  patchbay devices allocate example.com/gpu build-17 --count 2 -o json
  patchbay devices release example.com/gpu build-17`,
		Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newDevicesListCommand(paths), newDevicesAllocateCommand(paths), newDevicesReleaseCommand(paths))
	return cmd
}

func newDevicesListCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list [RESOURCE...]",
		Aliases: []string{"ls"},
		Short:   "List devices.",
		Long: `List the devices of all resources, or of those that are named: whether each is healthy, and who has it.

A device is unavailable while its plugin is away, and missing if somebody has it and the plugin does not list it any more.

The output is a table, an array of objects as JSON or YAML, or one RESOURCE/ID a line.`,
		Example: `  # Which devices are free?
  patchbay devices list example.com/gpu -o json | jq -r '.[] | select(.owner == "" and .health == "healthy") | .id'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if slices.Contains(args, "") {
				return wrongUsage(cmd, "a resource has an empty name: write its name, for example example.com/gpu")
			}
			return nil
		},
	}
	socket := addControlSocket(cmd, paths)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		all, directive := completeResources(socket)(cmd, nil, toComplete)
		return slices.DeleteFunc(all, func(name string) bool { return slices.Contains(args, name) }), directive
	}
	output := addChoice(cmd, "output", "o", "output format", "table", "json", "yaml", "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := socket.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := answerInTime(cmd.Context())
		defer cancel()
		listing, err := c.ListDevices(ctx, args...)
		if err != nil {
			return err
		}
		stdout := cmd.OutOrStdout()
		switch output.value {
		case "json":
			return writeJSON(stdout, listing.Devices)
		case "yaml":
			return writeYAML(stdout, listing.Devices)
		case "name":
			return writeDeviceNames(stdout, listing.Devices)
		}
		if len(listing.Devices) == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "no devices are known")
			return nil
		}
		return writeDevices(stdout, listing.Devices)
	}
	return cmd
}

func newDevicesAllocateCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "allocate RESOURCE OWNER",
		Short: "Give devices to an owner.",
		Long: `Give devices of one resource to an owner, which is any name of your choice, and print what the plugin says is to be done for it:
environment variables, mounts, device nodes, annotations and CDI devices (with -o json or -o yaml).

The owner keeps them until "patchbay devices release", whatever becomes of the plugin and the daemon. The same command again prints the
same again, and has the plugin prepare the devices if it wants that before each start; one that asks for something else fails.`,
		Example: `  # Two devices, whichever the plugin prefers.
  patchbay devices allocate example.com/gpu build-17 --count 2 -o json

  # This one.
  patchbay devices allocate example.com/gpu build-18 --device GPU-3`,
		Args: oneAllocation,
	}
	socket := addControlSocket(cmd, paths)
	var request client.DeviceRequest
	cmd.Flags().Uint32Var(&request.Count, "count", 0, "how many devices (default: as many as --device names, or 1)")
	cmd.Flags().StringArrayVar(&request.Devices, "device", nil, "ID of a device that has to be among them; can be repeated")
	output := addAllocationOutput(cmd)
	cmd.ValidArgsFunction = completeResources(socket)
	if err := cmd.RegisterFlagCompletionFunc("device", completeFreeDevices(socket)); err != nil {
		panic(err) // the flag was added above
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("count") && request.Count == 0 {
			return wrongUsage(cmd, "no devices are wanted: --count must be above 0")
		}
		c, err := socket.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		request.Resource, request.Owner = args[0], args[1]
		a, err := c.AllocateDevices(cmd.Context(), request)
		if err != nil {
			return err
		}
		return writeAllocation(cmd.OutOrStdout(), output.value, a)
	}
	return cmd
}

func newDevicesReleaseCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release RESOURCE OWNER",
		Short: "Take devices back from an owner.",
		Long: `Take the devices of one resource back from an owner, and print what it had. Somebody else may have them from then on, so make sure
that the owner does not use them any more: nobody else does.`,
		Example: `  patchbay devices release example.com/gpu build-17`,
		Args:    oneAllocation,
	}
	socket := addControlSocket(cmd, paths)
	output := addAllocationOutput(cmd)
	cmd.ValidArgsFunction = completeAllocations(socket)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := socket.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), releaseTimeout)
		defer cancel()
		a, err := c.ReleaseDevices(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return writeAllocation(cmd.OutOrStdout(), output.value, a)
	}
	return cmd
}

// releaseTimeout is more than an allocation for the same owner takes, which a release waits for.
const releaseTimeout = 2 * time.Minute

func addAllocationOutput(cmd *cobra.Command) *choice {
	return addChoice(cmd, "output", "o", "output format", "table", "json", "yaml", "name")
}

// oneAllocation is for commands whose arguments are RESOURCE and OWNER.
func oneAllocation(cmd *cobra.Command, args []string) error {
	if len(args) != 2 || args[0] == "" || args[1] == "" {
		return wrongUsage(cmd, "%q takes two arguments, RESOURCE and OWNER, and got %d", cmd.CommandPath(), len(args))
	}
	return nil
}

func writeDevices(w io.Writer, devices []client.Device) error {
	list := &table{terminal: terminalOf(w), head: []string{"RESOURCE", "ID", "HEALTH", "NUMA", "OWNER"}, cut: 1}
	for _, d := range devices {
		var nodes []string
		for _, n := range d.NUMANodes {
			nodes = append(nodes, fmt.Sprint(n))
		}
		row := plainRow(cell(d.Resource), cell(d.ID), cell(d.Health), cell(strings.Join(nodes, ",")), cell(d.Owner))
		row[2].is = toneOf(strings.ToLower(d.Health))
		list.add(row...)
	}
	return list.write(w)
}

func writeDeviceNames(w io.Writer, devices []client.Device) error {
	var text bytes.Buffer
	for _, d := range devices {
		fmt.Fprintln(&text, escape(d.Resource+"/"+d.ID))
	}
	return write(w, text.Bytes())
}

func writeAllocation(w io.Writer, format string, a client.DeviceAllocation) error {
	devices := make([]client.Device, len(a.Devices))
	for i, id := range a.Devices {
		devices[i] = client.Device{Resource: a.Resource, ID: id}
	}
	switch format {
	case "json":
		return writeJSON(w, a)
	case "yaml":
		return writeYAML(w, a)
	case "name":
		return writeDeviceNames(w, devices)
	}
	list := &table{terminal: terminalOf(w), head: []string{"RESOURCE", "ID", "OWNER"}, cut: 1}
	for _, d := range devices {
		list.add(plainRow(cell(d.Resource), cell(d.ID), cell(a.Owner))...)
	}
	return list.write(w)
}

// completeResources completes one argument with the names of resources.
func completeResources(socket *controlSocket) cobra.CompletionFunc {
	return completeWith(socket, func(ctx context.Context, c *client.Client) ([]string, error) {
		listing, err := c.ListDevices(ctx)
		var resources []string
		for _, d := range listing.Devices {
			if len(resources) == 0 || resources[len(resources)-1] != d.Resource {
				resources = append(resources, d.Resource)
			}
		}
		return resources, err
	})
}

// completeFreeDevices completes the value of a flag with the devices that the resource of the first argument can give.
func completeFreeDevices(socket *controlSocket) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return completeWith(socket, func(ctx context.Context, c *client.Client) ([]string, error) {
			if len(args) == 0 {
				return nil, nil
			}
			listing, err := c.ListDevices(ctx, args[0])
			var ids []string
			for _, d := range listing.Devices {
				if d.Owner == "" && d.Health == "healthy" {
					ids = append(ids, d.ID)
				}
			}
			return ids, err
		})(cmd, nil, toComplete)
	}
}

// completeAllocations completes a resource of which somebody has devices, and then who has.
func completeAllocations(socket *controlSocket) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeWith(socket, func(ctx context.Context, c *client.Client) ([]string, error) {
			listing, err := c.ListDevices(ctx)
			var names []string
			for _, a := range listing.Allocations {
				switch {
				case len(args) == 1 && a.Resource == args[0]:
					names = append(names, a.Owner)
				case len(args) == 0 && !slices.Contains(names, a.Resource):
					names = append(names, a.Resource)
				}
			}
			return names, err
		})(cmd, nil, toComplete)
	}
}
