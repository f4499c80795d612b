// Package doctor looks for what is wrong on this machine for a Patchbay daemon: permissions, limits, kernel features, stale sockets, other
// daemons, programs and services that it needs. It looks without changing anything, beside a running daemon too, and says of each finding
// what to do. It is not the daemon's health: what a running daemon finds wrong with itself are its conditions.
package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/trust"
)

// Status says how bad a finding is.
type Status string

// The statuses of a finding, from good to bad.
const (
	OK Status = "ok"
	// Warn: it works, with something missing.
	Warn Status = "warn"
	// Fail: something that was configured does not work.
	Fail Status = "fail"
)

// Finding is what one check found.
type Finding struct {
	// Check names the check, for example "state".
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Message says what is so, in one line.
	Message string `json:"message"`
	// Remedy says what to do; empty if the status is OK.
	Remedy string `json:"remedy,omitempty"`
}

// Subject is the configuration to look at.
type Subject struct {
	// PluginDirs are all plugin directories.
	PluginDirs []string
	// Trust says whose directories and sockets the daemon uses; nil: those of root and of its user.
	Trust *trust.Judge
	// StatePath and ControlSocket are those of the daemon.
	StatePath, ControlSocket string
	// Daemon asks the daemon at the control socket for its process, in which it need not be the one that listens: the service manager may.
	// Nil if it cannot be asked.
	Daemon func(ctx context.Context) (pid int, err error)
	// Plugins are those of the catalogue.
	Plugins []catalogue.Plugin
	// Fleet tries the members of etcd in which the fleet is kept; nil if there is no fleet. It blocks until ctx ends at most.
	Fleet func(ctx context.Context) []fleet.Member
}

// check is one question. It returns at least one finding, without their names, or none if there is nothing to look at.
type check struct {
	name string
	look func(ctx context.Context, s Subject) []Finding
}

// Examine asks every question and returns the findings in a fixed order. It blocks for as long as sockets take to accept or refuse, and
// as etcd takes to answer, at most until ctx ends.
func Examine(ctx context.Context, s Subject) []Finding {
	if s.Trust == nil {
		s.Trust = trust.Default()
	}
	var findings []Finding
	for _, c := range checks() {
		for _, f := range c.look(ctx, s) {
			f.Check = c.name
			findings = append(findings, f)
		}
	}
	return findings
}

func ok(message string) Finding { return Finding{Status: OK, Message: message} }

// orOK returns the findings or, if there are none, one that all is well.
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

// Watchers returns the processes other than this one that watch a directory, as far as they can be seen from here. It reads what all
// processes watch. If that fails it returns none.
func Watchers(ctx context.Context, dir string) (names []string) {
	pids, _ := process.Watchers(ctx, dir)
	for _, pid := range pids {
		names = append(names, processName(pid))
	}
	return names
}

func processName(pid int) string {
	if pid == 0 {
		return "a process that cannot be seen from here"
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name)))
}
