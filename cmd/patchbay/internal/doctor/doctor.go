// Package doctor finds problems on this machine that affect a Patchbay daemon: permissions, limits, kernel features, stale sockets, other
// daemons, missing programs and services. Each finding has a remedy. The checks change nothing, so they can run while a daemon is running.
// Problems that a daemon finds in itself are its conditions; this package does not read them.
package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
)

// Status is the severity of a finding.
type Status string

// The statuses of findings.
const (
	OK   Status = "ok"
	Warn Status = "warn" // the daemon works, with restrictions
	Fail Status = "fail" // a configured feature does not work
)

// Finding is a result of one check.
type Finding struct {
	// Check names the check, for example "state".
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Message describes the finding in one line.
	Message string `json:"message"`
	// Remedy is the advice to the user; empty if the status is OK.
	Remedy string `json:"remedy,omitempty"`
}

// Subject is the configuration to check.
type Subject struct {
	// PluginDirs are all plugin directories.
	PluginDirs []string
	// Trust decides whose directories and sockets the daemon uses; nil for those of root and the daemon's user.
	Trust *trustjudge.Judge
	// StatePath and ControlSocket are those of the daemon.
	StatePath, ControlSocket string
	// Daemon returns the process of the daemon at the control socket; nil if the daemon cannot be asked. The listening process may be
	// another one, such as the service manager.
	Daemon func(ctx context.Context) (pid int, err error)
	// Plugins is the catalogue.
	Plugins []catalogue.Plugin
	// Fleet checks the members of the fleet's etcd; nil if there is no fleet. It returns when ctx is done at the latest.
	Fleet func(ctx context.Context) []fleet.Member
}

// check is a function that returns findings without their names; none if there is nothing to check.
type check struct {
	name string
	run  func(ctx context.Context, s Subject) []Finding
}

// Examine runs all checks and returns the findings in a fixed order. It blocks while sockets and etcd do not answer, until ctx is done at
// the latest.
func Examine(ctx context.Context, s Subject) []Finding {
	if s.Trust == nil {
		s.Trust = trustjudge.Default()
	}
	var findings []Finding
	for _, c := range checks() {
		for _, f := range c.run(ctx, s) {
			f.Check = c.name
			findings = append(findings, f)
		}
	}
	return findings
}

func ok(message string) Finding { return Finding{Status: OK, Message: message} }

// orOK returns the findings or, if there are none, an OK finding.
func orOK(findings []Finding, message string) []Finding {
	if len(findings) == 0 {
		return []Finding{ok(message)}
	}
	return findings
}

func warn(message, remedy string) Finding {
	return Finding{Status: Warn, Message: message, Remedy: remedy}
}

func fail(message, remedy string) Finding {
	return Finding{Status: Fail, Message: message, Remedy: remedy}
}

// Watchers returns the names of other processes that watch a directory, as far as they are visible in /proc.
func Watchers(ctx context.Context, dir string) (names []string) {
	pids, _ := process.Watchers(ctx, dir)
	for _, pid := range pids {
		names = append(names, processName(pid))
	}
	return names
}

func processName(pid int) string {
	if pid == 0 {
		return "a process that is not visible from here"
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name)))
}
