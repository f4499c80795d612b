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

	"github.com/patchbay-dev/patchbay/daemon"
	"github.com/patchbay-dev/patchbay/verify"
)

// errNonconforming ends a verify command that found a broken rule.
var errNonconforming = errors.New("the plugin breaks rules: see the results that are marked")

// verifyFlags are those of verify.
type verifyFlags struct {
	target  verify.Target
	options verify.Options
	strict  bool
	list    bool
	log     string
	driver  string
	output  *choice
}

func newVerifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify SOCKET | verify [--socket PATH] -- COMMAND...",
		Short: "Check whether a plugin behaves as hosts expect it.",
		Long: `Play the host of one plugin and check it against rules with stable identifiers: registration, connections, the services of its type
and, if it is a command, how it starts, is refused, is killed and ends. No daemon and no kubelet is needed.
docs/reference/verify.md explains each rule.

A plugin that is given as SOCKET is left running: rules that would refuse, end or start it do not apply. A COMMAND is started as often as
the rules need it, and no process of it is left. It finds its place by any of these: {socket}, {dir} and {tmp} in its arguments, the
environment variables PATCHBAY_SOCKET, PATCHBAY_PLUGIN_DIR and PATCHBAY_TMP_DIR, or, if it is made with Patchbay's sdk, the handshake on its
standard input. {instance} is a number that differs between instances that run side by side. A driver that is registered by another program
is named with --driver, and that program is the COMMAND; the two are verified as one plugin. A device plugin that makes no registration
socket, but calls Register on kubelet.sock, is verified with --kubelet-sock.
Name the program itself, not "go run" or a script that does not exec it: signals go to the process that is started.

The exit code is 1 if a rule failed or, with --strict, warned.`,
		Example: `  patchbay verify /run/patchbay/plugins/hello.sock
  patchbay verify -- ./my-plugin {socket}
  patchbay verify -o junit --skip PRC007 -- ./dra-driver --registrar-dir {dir} --data-dir {tmp} > verify.xml
  patchbay verify --kubelet-sock -- ./device-plugin --socket-dir {dir}

  # A CSI driver and its registrar, and a DRA driver with a claim that it can prepare.
  patchbay verify --driver './csi-driver --endpoint={tmp}/csi.sock' -- ./registrar --csi-address={tmp}/csi.sock --registrar-dir={dir}
  patchbay verify --claim default/one/UID -- ./dra-driver --registrar-dir {dir} --data-dir {tmp} --pod-uid {instance}

  # What is checked?
  patchbay verify --list-rules`,
		Args: cobra.ArbitraryArgs, // what they mean depends on the flags
	}
	var f verifyFlags
	flags := cmd.Flags()
	flags.StringVar(&f.target.Socket, "socket", "", "path at which the command makes its socket")
	flags.StringVar(&f.target.Dir, "dir", "", "plugin directory for the command (default a temporary one)")
	flags.StringArrayVar(&f.target.Env, "env", nil, "additional environment variable for the command, KEY=VALUE (repeatable)")
	flags.BoolVar(&f.target.NoHandshake, "no-handshake", false, "start the command as by hand, without the handshake of the sdk")
	flags.BoolVar(&f.target.KubeletSock, "kubelet-sock", false, "be a kubelet to a device plugin that registers on {dir}/kubelet.sock")
	flags.StringVar(&f.driver, "driver", "", "program that the command registers, with its arguments, split at blanks; started before it")
	flags.StringArrayVar(&f.options.Claims, "claim", nil, "claim that the DRA driver can prepare, or cannot: NAMESPACE/NAME/UID (repeatable)")
	flags.DurationVar(&f.options.Timeout, "timeout", 2*time.Minute, "how long all of it may take")
	flags.DurationVar(&f.options.CallTimeout, "call-timeout", 5*time.Second, "how long one call may take")
	flags.DurationVar(&f.options.StartTimeout, "start-timeout", 10*time.Second, "how long the command may take until it answers")
	flags.DurationVar(&f.options.ExitTimeout, "exit-timeout", 5*time.Second, "how long the command may take to end after SIGTERM")
	flags.StringSliceVar(&f.options.Rules, "rule", nil, "check only this rule or family, such as REG001 or REG (repeatable)")
	flags.StringSliceVar(&f.options.Skip, "skip", nil, "leave this rule or family out (repeatable)")
	flags.BoolVar(&f.strict, "strict", false, "fail also if a rule warned")
	flags.BoolVar(&f.list, "list-rules", false, "list the rules, and check nothing")
	flags.StringVar(&f.log, "plugin-log", "", "file to which goes what the command prints")
	f.output = addOutput(cmd, "table", "junit")
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
		return wrongUsage(cmd, `%q takes one socket, or "--" and a command`, cmd.CommandPath())
	}
	f.target.Driver = strings.Fields(f.driver)
	for _, timeout := range []time.Duration{f.options.Timeout, f.options.CallTimeout, f.options.StartTimeout, f.options.ExitTimeout} {
		if timeout <= 0 {
			return wrongUsage(cmd, "a timeout of %v leaves no time", timeout)
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
		return wrongUsage(cmd, "%w", err)
	}
	if err == nil || len(report.Results) > 0 {
		if werr := f.print(cmd, report); werr != nil {
			return werr
		}
	}
	if err == nil && !report.OK(f.strict) {
		err = errNonconforming
	}
	return err
}

func (f *verifyFlags) listRules(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return wrongUsage(cmd, "unexpected argument %q: --list-rules takes none", args[0])
	}
	if f.output.value == "junit" {
		return wrongUsage(cmd, "rules have no JUnit form: use -o table, json or yaml")
	}
	return f.output.print(cmd, verify.Rules(), func(w io.Writer) error {
		list := &table{terminal: terminalOf(w), head: []string{"RULE", "TYPE", "NEEDS", "TITLE"}, cuts: []int{3}}
		for _, r := range verify.Rules() {
			needs := "socket"
			if r.Command {
				needs = "command"
			}
			list.add(r.ID, cmp.Or(r.Type, "any"), needs, r.Title)
		}
		return list.write(w)
	})
}

func (f *verifyFlags) print(cmd *cobra.Command, report verify.Report) error {
	return f.output.print(cmd, report, func(w io.Writer) error {
		if f.output.value != "junit" {
			return writeVerification(w, report)
		}
		var text bytes.Buffer
		if err := report.WriteJUnit(&text, f.strict); err != nil {
			return err
		}
		return write(w, text.Bytes())
	})
}

// writeVerification writes a report for people: all results in a table, and then what has to be changed.
func writeVerification(w io.Writer, report verify.Report) error {
	var text bytes.Buffer
	list := &table{terminal: terminalOf(w), head: []string{"RULE", "RESULT", "TITLE", "FOUND"}, cuts: []int{3}, tones: tones{1: toneOf}}
	for _, r := range report.Results {
		list.add(r.Rule, string(r.Status), r.Title, escape(r.Reason))
	}
	for _, line := range list.lines() {
		fmt.Fprintln(&text, line)
	}
	for _, r := range report.Results {
		if r.Status != verify.Failed && r.Status != verify.Warned {
			continue
		}
		fmt.Fprintf(&text, "\n%s %s: %s\n", r.Rule, r.Status, r.Title)
		for _, line := range []struct{ label, text string }{
			{"found", r.Reason}, {"sent", r.Sent}, {"received", r.Received}, {"change", r.Remedy},
		} {
			if line.text != "" {
				fmt.Fprintf(&text, "  %-9s %s\n", line.label+":", escape(line.text))
			}
		}
	}
	name := report.Target
	if report.Name != "" {
		name = report.Type + "/" + report.Name
	}
	fmt.Fprintf(&text, "\n%s: %d passed, %d failed, %d warned, %d not applicable", escape(name), report.Count(verify.Passed),
		report.Count(verify.Failed), report.Count(verify.Warned), report.Count(verify.NotApplicable))
	if report.Incomplete {
		text.WriteString(", the others not checked")
	}
	text.WriteByte('\n')
	return write(w, text.Bytes())
}
