// Package call implements the command "patchbay call": it parses the arguments and prints the answers of a plugin's methods. Package
// dyncall makes the calls.
package call

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/dyncall"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// callTimeout is the default timeout of a unary call. Streams have none.
const callTimeout = 30 * time.Second

// callCommand has the flags of "patchbay call".
type callCommand struct {
	control  *command.ControlSocket
	socket   string
	fleet    bool
	node     string
	labels   map[string]string
	data     string
	list     bool
	describe string
	headers  []string
	timeout  time.Duration
	files    dyncall.Files
	output   *command.Choice
}

// NewCommand returns the command.
func NewCommand(paths command.Paths) *cobra.Command {
	c := &callCommand{}
	cmd := &cobra.Command{
		Use:   "call (TYPE/NAME | NAME | --socket PATH) (SERVICE/METHOD [JSON] | --list | --describe SERVICE[/METHOD])",
		Short: "Call a method of a plugin",
		Long: `Call any gRPC method of a plugin with a request in JSON, and print the answer as JSON. TYPE may also be a role, such as
csi-node; NAME alone is a launched plugin, by its name in the catalogue. The call goes through the daemon to the current instance
of the plugin or, with --socket, directly to whatever listens on that socket. With --fleet it goes to any node of the fleet that
has the plugin, preferably this one, with --label to one with that label, and with --node to that node. The daemon must allow it.

The command learns the plugin's methods through gRPC reflection. Without reflection, it knows the services of the kubelet's plugin
protocols: registration, CSI, device plugin, DRA, and gRPC health. You can leave out the service or its package if the method name is
unambiguous.

The request is a JSON object, a file (@FILE) or standard input (@-). For a method that takes a stream of requests, each JSON value of the
input is sent as it arrives. Each response of a stream is printed as it arrives. JSON is indented on a terminal and one line per response
elsewhere.

If the plugin returns an error, its code, message and details are printed, and the exit code is 1.`,
		Example: `  # The methods of a plugin, and the types of one method.
  patchbay call CSIPlugin/hostpath.csi.k8s.io --list
  patchbay call CSIPlugin/hostpath.csi.k8s.io --describe NodeGetInfo

  # Call methods.
  patchbay call CSIPlugin/hostpath.csi.k8s.io NodeGetInfo
  patchbay call CSIPlugin/hostpath.csi.k8s.io csi.v1.Controller/CreateVolume -d @volume.json

  # The name and type of the plugin on a socket, without a daemon.
  patchbay call --socket /run/patchbay/plugins/hello.sock pluginregistration.Registration/GetInfo

  # Call the CSI controller on whichever node has it, and a plugin on one node.
  patchbay call --fleet csi-controller/hostpath.csi.k8s.io ListVolumes
  patchbay call --node node-7 CSIPlugin/hostpath.csi.k8s.io NodeGetInfo
  patchbay call --label zone=a Greeter/hello hello.v1.Greeter/SayHello

  # Call a plugin without reflection.
  patchbay call Greeter/hello --proto hello.proto hello.v1.Greeter/SayHello '{"name": "you"}'

  # Follow the devices of a device plugin.
  patchbay call DevicePlugin/example.com/widget ListAndWatch`,
		Args:              c.args,
		RunE:              c.run,
		ValidArgsFunction: c.complete,
	}
	c.control = command.AddControlSocket(cmd, paths)
	flags := cmd.Flags()
	flags.StringVar(&c.socket, "socket", "", "call whatever listens on this socket, without a daemon")
	flags.BoolVar(&c.fleet, "fleet", false, "call the plugin on any node of the fleet, preferably this one")
	flags.StringVar(&c.node, "node", "", "call the plugin on this node of the fleet")
	flags.StringToStringVar(&c.labels, "label", nil, "call the plugin on any node of the fleet with this label, as KEY=VALUE; can be repeated")
	flags.StringVarP(&c.data, "data", "d", "", "the request: JSON, @FILE, or @- for standard input")
	flags.BoolVar(&c.list, "list", false, "list the services and methods")
	flags.StringVar(&c.describe, "describe", "", "print a service, method or type as proto text")
	flags.StringArrayVarP(&c.headers, "header", "H", nil, "metadata to send, as KEY:VALUE; may be repeated")
	flags.DurationVar(&c.timeout, "timeout", 0, "how long the call may take (default 30s, and no limit for streams)")
	flags.StringSliceVar(&c.files.Protos, "proto", nil, "proto files with the plugin's services, instead of asking the plugin")
	flags.StringSliceVar(&c.files.Imports, "import-path", nil, "directories to search for proto files (default: the working directory)")
	flags.StringSliceVar(&c.files.Sets, "protoset", nil, "files with serialized descriptors of the plugin's services; may be repeated")
	c.output = command.AddChoice(cmd, "output", "o", "output format", "json", "yaml")
	return cmd
}

// args checks the arguments. If --socket is set, the first argument is the method, not the plugin.
func (c *callCommand) args(cmd *cobra.Command, args []string) error {
	changed := cmd.Flags().Changed
	if changed("socket") && c.socket == "" {
		return command.WrongUsage(cmd, "--socket has an empty path: name a socket")
	}
	rest := args
	if c.socket == "" {
		if err := command.OnePlugin(cmd, args[:min(len(args), 1)]); err != nil {
			return err
		}
		rest = args[1:]
	}
	if changed("node") {
		if err := keys.ValidateNode(c.node); err != nil {
			return command.WrongUsage(cmd, "--node: %w", err)
		}
	}
	describes := c.list || c.describe != ""
	switch {
	case c.inFleet() && c.socket == "" && !strings.Contains(args[0], "/"):
		return command.WrongUsage(cmd, "a fleet knows no launched plugins by their names: write TYPE/NAME instead of %q", args[0])
	case c.socket != "" && c.inFleet():
		return command.WrongUsage(cmd, "--socket needs no fleet: leave --fleet, --node and --label out")
	case c.node != "" && len(c.labels) > 0:
		return command.WrongUsage(cmd, "--node and --label exclude each other: one node is enough")
	case c.list && changed("describe"):
		return command.WrongUsage(cmd, "--list and --describe exclude each other")
	case changed("describe") && c.describe == "":
		return command.WrongUsage(cmd, "--describe needs the name of a service or method")
	case describes && len(rest) > 0:
		return command.WrongUsage(cmd, "unexpected argument %q: --list and --describe call no method", rest[0])
	case describes && changed("data"):
		return command.WrongUsage(cmd, "--list and --describe send no --data")
	case !describes && len(rest) == 0:
		return command.WrongUsage(cmd, "no method is named: write SERVICE/METHOD, or --list to see all methods")
	case len(rest) > 2:
		return command.WrongUsage(cmd, "unexpected argument %q: quote the request as one argument", rest[2])
	case len(rest) == 2 && changed("data"):
		return command.WrongUsage(cmd, "the request is given twice, as an argument and with --data")
	case changed("timeout"):
		return command.Above0(cmd, c.timeout)
	}
	return nil
}

// inFleet reports whether the plugin may be on another node.
func (c *callCommand) inFleet() bool { return c.fleet || c.node != "" || len(c.labels) > 0 }

func (c *callCommand) run(cmd *cobra.Command, args []string) error {
	headers, err := parseHeaders(c.headers)
	if err != nil {
		return command.WrongUsage(cmd, "flag --header: %w", err)
	}
	ctx, cancel := command.Limited(metadata.NewOutgoingContext(cmd.Context(), headers), c.timeout)
	defer cancel()
	return c.connected(ctx, cmd, args, func(conn grpc.ClientConnInterface, p *patchbayv1.Plugin, rest []string) error {
		selector := "" // to list or describe: a type may be in any file
		if len(rest) > 0 {
			selector = rest[0]
		}
		schema, err := c.schema(ctx, conn, selector, p)
		if err != nil {
			return err
		}
		switch {
		case c.list:
			return runList(cmd, schema)
		case c.describe != "":
			text, err := schema.Describe(c.describe)
			if err != nil {
				return err
			}
			return command.WriteLines(cmd.OutOrStdout(), strings.Split(strings.TrimSuffix(text, "\n"), "\n"))
		}
		return c.runCall(ctx, cmd, conn, schema, rest)
	})
}

// connected connects to the plugin that the flags or the first argument name, and calls use with the connection and the other arguments.
func (c *callCommand) connected(
	ctx context.Context, cmd *cobra.Command, args []string,
	use func(conn grpc.ClientConnInterface, p *patchbayv1.Plugin, rest []string) error,
) error {
	if c.socket != "" {
		conn, err := dyncall.Dial(ctx, c.socket)
		if err != nil {
			return err
		}
		defer conn.Close()
		return use(conn, nil, args)
	}
	return c.control.Ask(0, func(_ context.Context, daemon *client.Client, cmd *cobra.Command, args []string) error {
		ptype, name := command.PluginOf(args[0])
		p := &patchbayv1.Plugin{Type: ptype}
		var conn *grpc.ClientConn
		var err error
		switch {
		case len(c.labels) > 0:
			conn, err = daemon.FleetConnByLabels(ptype, name, c.labels)
		case c.inFleet():
			conn, err = daemon.FleetConn(ptype, name, c.node)
		default:
			known, unknown := daemon.Get(ctx, ptype, name)
			if unknown != nil {
				return unknown
			}
			p = known[0]
			p.Type = cmp.Or(ptype, p.Type) // it may be a role, which has fewer services
			conn, err = daemon.Conn(p.Type, p.Name)
		}
		if err != nil {
			return err
		}
		defer conn.Close()
		err = use(conn, p, args[1:])
		if status.Code(err) != grpccodes.Unavailable {
			return err
		}
		// If no daemon answers, return the error of this call, because it has a remedy.
		ctx, cancel := command.AnswerInTime(cmd.Context())
		defer cancel()
		if _, gone := daemon.Version(ctx); gone != nil {
			return gone
		}
		return err
	})(cmd, args)
}

// schema returns the services of the plugin, from the given files or from the plugin's reflection.
func (c *callCommand) schema(
	ctx context.Context, conn grpc.ClientConnInterface, selector string, p *patchbayv1.Plugin,
) (*dyncall.Schema, error) {
	if !c.files.Empty() {
		return c.files.Load(ctx)
	}
	if !c.list && c.describe == "" {
		ctx = metadata.AppendToOutgoingContext(ctx, proxy.WillCallKey, "1")
	}
	return learn(ctx, conn, selector, p)
}

func learn(ctx context.Context, conn grpc.ClientConnInterface, selector string, p *patchbayv1.Plugin) (*dyncall.Schema, error) {
	inTime, cancel := command.AnswerInTime(ctx)
	defer cancel()
	schema, err := dyncall.Load(inTime, conn, selector, p)
	if err == nil {
		return schema, nil
	}
	answer, isStatus := status.FromError(err)
	switch {
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, ctx.Err()
	case dyncall.Late(ctx, err):
		answer = status.New(grpccodes.DeadlineExceeded, "the call has timed out; set a longer --timeout")
	case !isStatus:
		return nil, fmt.Errorf("cannot list the plugin's services: %w", err)
	}
	text := fmt.Sprintf("cannot list the plugin's services: %v: %s", answer.Code(), answer.Message())
	return nil, &dyncall.StatusError{Text: text, Err: answer.Err()}
}

func runList(cmd *cobra.Command, schema *dyncall.Schema) error {
	if schema.Source == dyncall.BuiltIn {
		fmt.Fprintln(cmd.ErrOrStderr(), "note: the plugin has no reflection; these are the built-in services that plugins of its type may have; "+
			"--proto and --protoset read others from files")
	}
	lines := dyncall.MethodPaths(schema.Services)
	for _, service := range schema.Services {
		if service.Methods().Len() == 0 {
			lines = append(lines, string(service.FullName())+" (no methods)")
		}
	}
	for _, name := range schema.Undescribed {
		lines = append(lines, string(name)+" (methods unknown)")
	}
	slices.Sort(lines)
	return command.WriteLines(cmd.OutOrStdout(), lines)
}

func (c *callCommand) runCall(
	ctx context.Context, cmd *cobra.Command, conn grpc.ClientConnInterface, schema *dyncall.Schema, args []string,
) error {
	method, err := schema.Method(args[0])
	if err != nil && schema.Source == dyncall.BuiltIn {
		return fmt.Errorf("%w; --proto and --protoset read its services from files", err)
	}
	if err != nil {
		return err
	}
	if c.timeout == 0 && !method.IsStreamingClient() && !method.IsStreamingServer() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	data, given := c.data, cmd.Flags().Changed("data")
	if len(args) == 2 {
		data, given = args[1], true
	}
	input, err := openInput(cmd, data)
	if err != nil {
		return err
	}
	defer input.Close()
	requests := input.requests(ctx, schema, method, given)
	if !method.IsStreamingClient() {
		request, err := requests(ctx)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		requests = func(context.Context) (proto.Message, error) { return request, nil }
	}
	stdout := cmd.OutOrStdout()
	err = schema.Call(ctx, conn, method, requests, func(answer []byte) error { return c.print(stdout, answer) })
	if dyncall.Late(ctx, err) {
		return fmt.Errorf("%w; set a longer --timeout", err)
	}
	return err
}

func (c *callCommand) complete(cmd *cobra.Command, args []string, word string) (methods []cobra.Completion, _ cobra.ShellCompDirective) {
	if c.socket == "" && len(args) == 0 {
		return command.CompletePlugins(c.control)(cmd, args, word)
	}
	if c.socket != "" && len(args) > 0 || c.socket == "" && command.OnePlugin(cmd, args) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := command.AnswerInTime(cmd.Context())
	defer cancel()
	// Without a connection there are no completions.
	_ = c.connected(ctx, cmd, args, func(conn grpc.ClientConnInterface, p *patchbayv1.Plugin, _ []string) error {
		schema, err := c.schema(ctx, conn, "", p)
		if err == nil {
			methods = dyncall.MethodPaths(schema.Services)
		}
		return err
	})
	return methods, cobra.ShellCompDirectiveNoFileComp
}
