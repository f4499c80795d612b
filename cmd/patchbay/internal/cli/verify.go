package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/internal/daemon"
	"github.com/patchbay-dev/patchbay/verify"
)

// The errors of a verification: a rule failed or warned, a rule could not be judged, no rule applied.
var (
	errNonconforming  = errors.New("the plugin breaks rules: see the results that are marked")
	errInconclusive   = errors.New("the machine was too busy to judge the plugin by all rules: verify again when it is less busy")
	errNothingChecked = errors.New("nothing was checked: none of the chosen rules applies to this plugin; the list has the reasons")
)

// verifyFlags are the flags of verify.
type verifyFlags struct {
	target  verify.Target
	options verify.Options
	strict  bool
	list    bool
	log     string
	driver  string
	change  string
	output  *command.Choice
}

func newVerifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify SOCKET | verify [--socket PATH] -- COMMAND...",
		Short: "Check a plugin against the conformance rules",
		Long: `Play the host of one plugin and check the plugin against rules with stable identifiers: registration, connections, the
services of its type and, for a COMMAND, how it starts, handles a refusal, is killed and shuts down. It needs no daemon and no kubelet.
verify/rules.md explains each rule.

A plugin given as SOCKET is left running; rules that would start, refuse or stop it do not apply. A COMMAND is started as often as the rules
require, and no process of it is left behind. It learns where to serve from {socket}, {dir} and {tmp} in its arguments, from the
environment variables PATCHBAY_SOCKET, PATCHBAY_PLUGIN_DIR and PATCHBAY_TMP_DIR, or, with Patchbay's sdk, from the handshake on standard
input. {instance} is a number that differs between concurrent instances. If another program registers the driver, pass that program as the
COMMAND and the driver with --driver; the two are verified as one plugin. For a device plugin that calls Register on kubelet.sock instead of
creating a registration socket, use --kubelet-sock.

Name the program itself, not "go run" or a script that does not exec it: signals go to the process that is started.

The exit code is 1 if a rule failed, could not be judged because the machine was busy or, with --strict, warned, and if no rule applied.`,
		Example: `  patchbay verify /run/patchbay/plugins/hello.sock
  patchbay verify -- ./my-plugin {socket}
  patchbay verify -o junit --skip PRC007 -- ./dra-driver --registrar-dir {dir} --data-dir {tmp} > verify.xml
  patchbay verify --kubelet-sock -- ./device-plugin --socket-dir {dir}

  # A CSI driver and its registrar, and a DRA driver with a claim that it can prepare.
  patchbay verify --driver './csi-driver --endpoint={tmp}/csi.sock' -- ./registrar --csi-address={tmp}/csi.sock --registrar-dir={dir}
  patchbay verify --claim default/one/UID -- ./dra-driver --registrar-dir {dir} --data-dir {tmp} --pod-uid {instance}

  # What is checked?
  patchbay verify --list-rules`,
		Args: cobra.ArbitraryArgs, // run checks them
	}
	var f verifyFlags
	flags := cmd.Flags()
	flags.StringVar(&f.target.Socket, "socket", "", "path at which the command creates its socket")
	flags.StringVar(&f.target.Dir, "dir", "", "plugin directory for the command (default: a temporary one)")
	flags.StringArrayVar(&f.target.Env, "env", nil, "additional environment variable for the command, KEY=VALUE (repeatable)")
	flags.BoolVar(&f.target.NoHandshake, "no-handshake", false, "start the command without the sdk's handshake")
	flags.BoolVar(&f.target.KubeletSock, "kubelet-sock", false, "play the kubelet for a device plugin that registers on {dir}/kubelet.sock")
	flags.StringVar(&f.driver, "driver", "", "program that the command registers, with its arguments, split at spaces; started first")
	flags.StringArrayVar(&f.options.Claims, "claim", nil,
		"claim for the DRA driver to prepare: NAMESPACE/NAME/UID (repeatable)")
	flags.StringVar(&f.change, "change", "", "program that changes the device plugin's devices, with its arguments, split at spaces")
	flags.DurationVar(&f.options.Timeout, "timeout", 2*time.Minute, "time limit for the whole run")
	flags.DurationVar(&f.options.CallTimeout, "call-timeout", 5*time.Second, "time limit for one call")
	flags.DurationVar(&f.options.StartTimeout, "start-timeout", 10*time.Second, "time limit for the command to answer after it starts")
	flags.DurationVar(&f.options.ExitTimeout, "exit-timeout", 5*time.Second, "time limit for the command to end after SIGTERM")
	flags.StringSliceVar(&f.options.Rules, "rule", nil, "check only this rule or family, such as REG001 or REG (repeatable)")
	flags.StringSliceVar(&f.options.Skip, "skip", nil, "skip this rule or family (repeatable)")
	flags.BoolVar(&f.strict, "strict", false, "fail if a rule warned, too")
	flags.BoolVar(&f.list, "list-rules", false, "list the rules and exit")
	flags.StringVar(&f.log, "plugin-log", "", "file for the command's output")
	f.output = command.AddOutput(cmd, "table", "junit")
	cmd.RunE = f.run
	return cmd
}

func (f *verifyFlags) run(cmd *cobra.Command, args []string) (err error) {
	if f.list {
		return f.listRules(cmd, args)
	}
	switch dash := cmd.ArgsLenAtDash(); {
	case dash == 0 && len(args) > 0:
		f.target.Command = args
	case dash < 0 && len(args) == 1 && f.target.Socket == "" && args[0] != "":
		f.target.Socket = args[0]
	default:
		return command.WrongUsage(cmd, `%q takes one socket, or "--" and a command`, cmd.CommandPath())
	}
	f.target.Driver, f.options.Change = strings.Fields(f.driver), strings.Fields(f.change)
	for _, timeout := range []time.Duration{f.options.Timeout, f.options.CallTimeout, f.options.StartTimeout, f.options.ExitTimeout} {
		if timeout <= 0 {
			return command.WrongUsage(cmd, "a timeout of %v leaves no time", timeout)
		}
	}
	if f.log != "" {
		file, openErr := os.OpenFile(f.log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if openErr != nil {
			return fmt.Errorf("cannot write the plugin's log: %w; name another file with --plugin-log", openErr)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		f.options.Output = file
	}
	report, err := verify.Run(cmd.Context(), f.target, f.options)
	report.Verifier = "patchbay " + daemon.ThisBuild().Version
	if errors.Is(err, verify.ErrUsage) {
		return command.WrongUsage(cmd, "%w", err)
	}
	if err == nil || len(report.Results) > 0 {
		if werr := f.print(cmd, report); werr != nil {
			return werr
		}
	}
	switch {
	case err != nil:
	case report.Count(verify.Inconclusive) > 0 && report.Count(verify.Failed) == 0 && (!f.strict || report.Count(verify.Warned) == 0):
		err = errInconclusive
	case !report.OK(f.strict):
		err = errNonconforming
	case report.Count(verify.NotApplicable) == len(report.Results):
		err = errNothingChecked
	}
	return err
}

func (f *verifyFlags) listRules(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return command.WrongUsage(cmd, "unexpected argument %q: --list-rules takes none", args[0])
	}
	if f.output.Value == "junit" {
		return command.WrongUsage(cmd, "rules have no JUnit form: use -o table, json or yaml")
	}
	return f.output.Print(cmd, verify.Rules(), func(w io.Writer) error {
		list := &console.Table{Terminal: console.TerminalOf(w), Head: []string{"RULE", "TYPE", "NEEDS", "TITLE"}, Cuts: []int{3}}
		for _, r := range verify.Rules() {
			needs := "socket"
			if r.Command {
				needs = "command"
			}
			list.Add(r.ID, cmp.Or(r.Type, "any"), needs, r.Title)
		}
		return list.Write(w)
	})
}

func (f *verifyFlags) print(cmd *cobra.Command, report verify.Report) error {
	return f.output.Print(cmd, report, func(w io.Writer) error {
		if f.output.Value != "junit" {
			return writeVerification(w, report)
		}
		var text bytes.Buffer
		if err := report.WriteJUnit(&text, f.strict); err != nil {
			return err
		}
		return console.Write(w, text.Bytes())
	})
}

// writeVerification writes a report as text: a table of all results, followed by the problems.
func writeVerification(w io.Writer, report verify.Report) error {
	var text bytes.Buffer
	list := &console.Table{Terminal: console.TerminalOf(w), Head: []string{"RULE", "RESULT", "TITLE", "FOUND"}, Cuts: []int{3},
		Tones: console.Tones{1: console.ToneOf}}
	for _, r := range report.Results {
		list.Add(r.Rule, string(r.Status), r.Title, console.Escape(r.Reason))
	}
	_ = list.Write(&text) // writes to a bytes.Buffer do not fail
	for _, r := range report.Results {
		if r.Status == verify.Passed || r.Status == verify.NotApplicable {
			continue
		}
		fmt.Fprintf(&text, "\n%s %s: %s\n", r.Rule, r.Status, r.Title)
		for _, line := range []struct{ label, text string }{
			{"found", r.Reason}, {"sent", r.Sent}, {"received", r.Received}, {"change", r.Remedy},
		} {
			if line.text != "" {
				fmt.Fprintf(&text, "  %-9s %s\n", line.label+":", console.Escape(line.text))
			}
		}
	}
	name := report.Target
	if report.Name != "" {
		name = report.Type + "/" + report.Name
	}
	fmt.Fprintf(&text, "\n%s: %d passed, %d failed, %d warned, %d not applicable", console.Escape(name), report.Count(verify.Passed),
		report.Count(verify.Failed), report.Count(verify.Warned), report.Count(verify.NotApplicable))
	if n := report.Count(verify.Inconclusive); n > 0 {
		fmt.Fprintf(&text, ", %d inconclusive", n)
	}
	if report.Incomplete {
		text.WriteString(", the others not checked")
	}
	text.WriteByte('\n')
	return console.Write(w, text.Bytes())
}
