// Package doctor looks for what is wrong on this machine for a Patchbay daemon: permissions, limits, kernel features, stale sockets. It
// looks without changing anything, beside a running daemon too, and says of each finding what to do. It is not the daemon's health: what a
// running daemon finds wrong with itself are its conditions.
package doctor

import "context"

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
	// StatePath and ControlSocket are those of the daemon.
	StatePath, ControlSocket string
}

// check is one question. It returns at least one finding, without their names.
type check struct {
	name string
	look func(ctx context.Context, s Subject) []Finding
}

// Examine asks every question and returns the findings in a fixed order. It blocks for as long as sockets take to accept or refuse, at
// most until ctx ends.
func Examine(ctx context.Context, s Subject) []Finding {
	var findings []Finding
	for _, c := range checks() {
		for _, f := range c.look(ctx, s) {
			f.Check = c.name
			findings = append(findings, f)
		}
	}
	return findings
}

// Worst returns the worst status among the findings.
func Worst(findings []Finding) Status {
	worst := OK
	for _, f := range findings {
		if f.Status == Fail || f.Status == Warn && worst == OK {
			worst = f.Status
		}
	}
	return worst
}

func ok(message string) Finding { return Finding{Status: OK, Message: message} }

func warn(message, remedy string) Finding {
	return Finding{Status: Warn, Message: message, Remedy: remedy}
}

func fail(message, remedy string) Finding {
	return Finding{Status: Fail, Message: message, Remedy: remedy}
}
