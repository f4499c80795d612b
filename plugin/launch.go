package plugin

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"
)

// The errors of launching a plugin that callers may have to distinguish.
var (
	// ErrDigest: the program does not have the expected digest.
	ErrDigest = errors.New("the program has another digest")
	// ErrReplacement: a new process did not become ready. The old process keeps running, unless it had to be stopped first.
	ErrReplacement = errors.New("the replacement did not become ready")
)

// RestartPolicy determines when a launched plugin is restarted after its process has exited. Zero fields mean the defaults.
type RestartPolicy struct {
	// Policy says after which exits the process is restarted: after those with an error or a signal (the default), after all, or
	// never.
	Policy Restart `json:"policy" enum:"on-failure,always,never"`
	// Backoff is the pause before a restart. It doubles with each restart, and starts over after a window without one.
	Backoff Backoff `json:"backoff"`
	// Limit is the number of restarts within a window after which the plugin counts as failed, until somebody restarts it (default 10;
	// negative for no limit).
	Limit int `json:"limit"`
	// Window is the period over which restarts are counted, and for which a plugin that has failed must not fail to be healthy (default
	// 10 min).
	Window time.Duration `json:"window"`
	// Unresponsive also restarts the plugin when it stops answering health checks (grpc.health.v1).
	Unresponsive bool `json:"unresponsive"`
}

// Restart is the set of exits after which a launched plugin is restarted.
type Restart string

// The values of Restart.
const (
	// RestartOnFailure: after an exit with an error or a signal. It is the default.
	RestartOnFailure Restart = "on-failure"
	// RestartAlways: after every exit.
	RestartAlways Restart = "always"
	// RestartNever: the plugin is started on request only.
	RestartNever Restart = "never"
)

// Backoff bounds the pause before a restart.
type Backoff struct {
	// Min is the first pause (default 500 ms).
	Min time.Duration `json:"min"`
	// Max is the longest pause (default 1 min).
	Max time.Duration `json:"max"`
}

// Upgrade is the way in which a new process of a launched plugin replaces an old one.
type Upgrade string

// The values of Upgrade. A plugin that does not serve is always recreated.
const (
	// UpgradeSideBySide: the old process is stopped when the new one is ready, so callers notice nothing. It is the default.
	UpgradeSideBySide Upgrade = "side-by-side"
	// UpgradeHandover: as side by side, and the socket at which callers find the plugin stays: the host answers there and forwards calls, so
	// connections outlast the upgrade.
	UpgradeHandover Upgrade = "handover"
	// UpgradeRecreate: the new process is started when the old one has exited. Use it for plugins that need exclusive access to a resource.
	UpgradeRecreate Upgrade = "recreate"
)

// HealthCheck configures the health checks of a launched plugin that offers grpc.health.v1. Zero fields mean the defaults. A plugin that is
// busy with a call of its host is not unresponsive, and an answer to a call counts as an answer to a check. When many plugins miss checks
// at the same time, the machine is slow, and a plugin is unresponsive after ten times as many.
type HealthCheck struct {
	// Interval is the time between two checks (default 1 s).
	Interval time.Duration `json:"interval"`
	// Timeout is how long an answer to a check may take (default 500 ms).
	Timeout time.Duration `json:"timeout"`
	// Misses is after how many checks in a row without an answer the plugin is unresponsive (default 3).
	Misses int `json:"misses"`
}

// Limits bound the resources of the process of a launched plugin and its descendants. Zero means no limit.
type Limits struct {
	// Memory is how many bytes they may use together. If they need more, the kernel kills one.
	Memory int64
	// CPU is how much processor time they may use together, in thousandths of one processor.
	CPU int64
	// Processes is how many processes and threads may exist at a time.
	Processes int
	// OpenFiles is how many descriptors each process may have open.
	OpenFiles int
}

// Log holds the newest output of a launched plugin. Its methods are safe for concurrent use.
type Log interface {
	// Tail returns the newest n records, oldest first; all records if n is not positive.
	Tail(n int) []LogRecord
	// Follow yields the newest n records at the beginning of the iteration, all of them if n is negative, and then new ones, until ctx ends
	// or the log is closed. If records are lost because the reader is too slow, a record with the source "host" has their number.
	Follow(ctx context.Context, n int) iter.Seq[LogRecord]
	// Stats returns the counters.
	Stats() LogStats
}

// LogStats has the counters of a [Log]. Lines includes kept, dropped and blank lines, and those not yet kept or dropped.
type LogStats struct {
	Lines   uint64 // lines that ended, and records that the plugin logged
	Bytes   uint64 // bytes of them
	Dropped uint64 // lines above the rate limit
	Cut     uint64 // lines and records that were kept, but not with all their bytes
}

// LogRecord is one line that a launched plugin printed, or one record that it logged through its host. Its text has no control characters
// except tabs, and is valid UTF-8.
type LogRecord struct {
	// Seq is 1 for the first record of a [Log] and grows by 1 with each record.
	Seq uint64
	// Time is the time in the record, if it has one with a time zone, and otherwise the time of arrival.
	Time    time.Time
	Level   slog.Level
	Message string
	Attrs   []slog.Attr
	// Source is the origin of the record: "stdout", "stderr", "log" for a call of the host's Log method, or "host" for a record of the host
	// about lost records.
	Source string
}

// LaunchStatus describes a launched plugin.
type LaunchStatus struct {
	// Name is the name under which the plugin was launched.
	Name string
	// State is the state of the plugin, and Since is when it began.
	State         State
	Since         time.Time
	ServingStatus ServingStatus
	// PID is the process ID; zero without a process.
	PID int
	// Socket is where callers find the plugin; empty if it does not serve.
	Socket string
	// Restarts counts the restarts since the plugin was last started or replaced on request.
	Restarts int
	// NextStart is when the plugin is started again; zero if that is not planned.
	NextStart time.Time
	// LastError is the last failure since FailingSince; otherwise how the last process exited. It has the last lines that the process wrote to
	// standard error.
	LastError string
	// FailingSince is when the plugin failed first, and HealthyFrom when it counts as healthy again if it does not fail. FailingSince is zero
	// if the plugin is healthy or was started on request since, HealthyFrom if the plugin is not ready either.
	FailingSince, HealthyFrom time.Time
	// Replacing is true while another process is being started to replace this one.
	Replacing bool
	// ReplacementError is why the last replacement failed, and ReplacementFailed when, until another one succeeds or the plugin is started on
	// request.
	ReplacementError  string
	ReplacementFailed time.Time
}
