// Package verify checks whether a plugin, of any type and in any language, behaves as hosts of the kubelet's plugin registration protocol
// expect. It plays the host itself, over the plugin's real socket, and needs no daemon, kubelet or cluster.
//
//	report, err := verify.Run(ctx, verify.Target{Command: []string{"./my-plugin", "{socket}"}}, verify.Options{})
//	if err == nil && !report.OK(false) { ... }
//
// It checks [Rules], each with a stable identifier: REG (registration), CON (connections), SVC (optional services), CSI, DEV and KUB
// (device plugins), DRA, PRC (the process) and ENV (the environment). rules.md explains each of them. A [Target] that is only a socket
// keeps running undisturbed: the rules that stop or refuse a plugin need a command.
//
// It does not test what the plugin's service does with real volumes, devices or claims, and is not a load test.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/verify/internal/runner"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// Target is the plugin to verify: one that serves on Socket, or one that Command starts.
type Target struct {
	// Socket is the path of the registration socket. With a Command, the plugin must create its socket there; if Socket is empty, the
	// plugin may create it anywhere in Dir.
	Socket string
	// Command is the program with its arguments. In them, {socket}, {dir} and {tmp} stand for a path for its socket, the plugin directory, and
	// a temporary directory for everything else; {instance} is a number that differs between instances that run side by side. Its environment
	// has the same values as PATCHBAY_SOCKET, PATCHBAY_PLUGIN_DIR, PATCHBAY_TMP_DIR and PATCHBAY_INSTANCE. A program without a slash is looked
	// up in PATH.
	Command []string
	// Driver is the program, with its arguments, of a driver that the Command registers, for example a CSI driver whose registrar is the
	// Command. It is started before the Command and stopped with it, and the two are verified as one plugin.
	Driver []string
	// Dir is the plugin directory for a Command; by default that of Socket, or else a temporary one.
	Dir string
	// Env is added to the environment of this process for the Command, as KEY=VALUE, with the same replacements as in its arguments.
	Env []string
	// NoHandshake starts the Command as if by hand, without the handshake on standard input that tells plugins built with Patchbay's sdk where
	// to serve.
	NoHandshake bool
	// KubeletSock is for a Command that is a device plugin and registers by itself: Run serves kubelet.sock in the plugin directory, and
	// waits for Register there.
	KubeletSock bool
}

func (t Target) String() string {
	if len(t.Command) > 0 {
		return strings.Join(t.Command, " ")
	}
	return t.Socket
}

// Options change the defaults of [Run]. The zero value has the timeouts of hosts.
type Options struct {
	// Timeout bounds the whole verification (default 2 min). Rules for which no time remains fail.
	Timeout time.Duration
	// CallTimeout bounds each call to the plugin (default 5 s).
	CallTimeout time.Duration
	// StartTimeout bounds how long a started plugin may take to answer on its socket (default 10 s).
	StartTimeout time.Duration
	// ExitTimeout bounds how long a plugin may take to exit after SIGTERM (default 5 s).
	ExitTimeout time.Duration
	// Rules are the rules to check, by identifier or family; empty for all. Skip excludes some of them.
	Rules, Skip []string
	// Claims are ResourceClaims, as NAMESPACE/NAME/UID, that a DRA driver can prepare on this machine, and perhaps one that it cannot.
	// Without them the rules that need them do not apply.
	Claims []string
	// Change is a program, with its arguments, that makes the devices of a device plugin change, for example by removing one. It may be run
	// several times. Without it the rule that needs it does not apply.
	Change []string
	// Output receives what a started plugin prints, unchanged. Writes are not concurrent, and their errors are ignored.
	Output io.Writer
}

func (o Options) withDefaults() Options {
	o.Timeout = cmp.Or(o.Timeout, 2*time.Minute)
	o.CallTimeout = cmp.Or(o.CallTimeout, 5*time.Second)
	o.StartTimeout = cmp.Or(o.StartTimeout, 10*time.Second)
	o.ExitTimeout = cmp.Or(o.ExitTimeout, 5*time.Second)
	if o.Output == nil {
		o.Output = io.Discard
	}
	return o
}

// ErrUsage is wrapped by the error of [Run] for an invalid target or invalid options.
var ErrUsage = errors.New("cannot verify")

// Run verifies a plugin. It blocks until all rules are checked, at most for about the timeout, and leaves no process of the plugin
// behind, nor goroutines or files of its own. Several plugins may be verified concurrently.
//
// A plugin that breaks rules is not an error; see [Report.OK]. Run returns an error if the target or the options are invalid, if it cannot
// set up or clean up the verification, or if ctx ends too early; the report then contains the results so far.
func Run(ctx context.Context, target Target, options Options) (Report, error) {
	report := Report{Target: target.String(), Started: time.Now().UTC(), Results: []Result{}}
	options = options.withDefaults()
	rules, rulesErr := selectRules(options.Rules, options.Skip)
	target, targetErr := target.complete()
	claims, claimsErr := parseClaims(options.Claims)
	err := cmp.Or(rulesErr, targetErr, options.check(), claimsErr)
	if err != nil {
		return report, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	s := &subject{target: target, options: options, claims: claims, path: target.Socket}
	if len(target.Command) > 0 {
		s.runner = &runner.Runner{
			Command: target.Command, Driver: target.Driver, Env: target.Env, Socket: target.Socket, Dir: target.Dir,
			NoHandshake: target.NoHandshake, KubeletSock: target.KubeletSock,
			StartTimeout: options.StartTimeout, CallTimeout: options.CallTimeout, Output: options.Output,
			Recognise: func(ctx context.Context, path string) string {
				what := s.recognise(ctx, path)
				if what == "" {
					return ""
				}
				return what + ", which must be registered: " + instead
			},
		}
		if err := s.runner.Open(); err != nil {
			return report, err
		}
	}
	report.Programs = s.programs(ctx)
	bounded, cancel := context.WithTimeout(ctx, options.Timeout)
	defer cancel()
	for _, rule := range rules {
		result := s.apply(bounded, rule)
		if ctx.Err() != nil {
			report.Incomplete = true
			break // the end of ctx may have caused the result
		}
		report.Results = append(report.Results, result)
	}
	s.describe(&report)
	if s.runner != nil {
		err = s.runner.Close()
	}
	report.Seconds = time.Since(report.Started).Seconds()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return report, err
}

func (o Options) check() error {
	if o.Timeout < 0 || o.CallTimeout < 0 || o.StartTimeout < 0 || o.ExitTimeout < 0 {
		return errors.New("a timeout is negative")
	}
	if len(o.Change) > 0 && o.Change[0] == "" {
		return errors.New("the command that changes devices is empty")
	}
	return nil
}

// complete checks a target and makes its paths absolute.
func (t Target) complete() (_ Target, err error) {
	switch {
	case t.Socket == "" && len(t.Command) == 0:
		return t, errors.New("name a socket or a command")
	case len(t.Command) > 0 && t.Command[0] == "":
		return t, errors.New("the command is empty")
	case len(t.Driver) > 0 && t.Driver[0] == "":
		return t, errors.New("the driver's command is empty")
	case len(t.Command) == 0 && (t.Dir != "" || len(t.Env) > 0 || len(t.Driver) > 0 || t.NoHandshake || t.KubeletSock):
		return t, errors.New("a plugin directory, an environment, a driver, a handshake and kubelet.sock need a command")
	case t.Socket != "" && t.Dir != "":
		return t, errors.New("name the socket or the plugin directory, not both")
	}
	if t.Socket != "" {
		if t.Socket, err = filepath.Abs(t.Socket); err != nil {
			return t, err
		}
		if len(t.Socket) > sock.MaxPath && len(t.Command) > 0 {
			return t, fmt.Errorf("socket path %s has %d bytes, and a socket's path may have %d; choose a shorter one", t.Socket, len(t.Socket),
				sock.MaxPath)
		}
	}
	if t.Dir != "" {
		t.Dir, err = filepath.Abs(t.Dir)
	}
	return t, err
}
