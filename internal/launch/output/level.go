package output

import (
	"log/slog"
	"strconv"
)

// Levels beyond those of package slog, at its distance.
const (
	levelTrace = slog.LevelDebug - 4
	levelFatal = slog.LevelError + 4
)

// levelOf returns the level that name means in one of the libraries whose lines are recognised, in upper or lower case.
func levelOf(name string) (slog.Level, bool) {
	var buf [len("critical")]byte
	if len(name) > len(buf) {
		return slogLevel(name)
	}
	for i := range len(name) {
		buf[i] = name[i]
		if c := name[i]; c >= 'A' && c <= 'Z' {
			buf[i] += 'a' - 'A'
		}
	}
	switch string(buf[:len(name)]) {
	case "trace":
		return levelTrace, true
	case "debug":
		return slog.LevelDebug, true
	case "info", "notice":
		return slog.LevelInfo, true
	case "warn", "warning":
		return slog.LevelWarn, true
	case "error", "err":
		return slog.LevelError, true
	case "fatal", "panic", "dpanic", "critical", "alert", "emerg":
		return levelFatal, true
	}
	return slogLevel(name)
}

// slogLevel returns the level that package slog writes as name: INFO, or ERROR+2.
func slogLevel(name string) (slog.Level, bool) {
	var level slog.Level
	n := 4
	switch {
	case len(name) < n:
		return 0, false
	case name[:n] == "INFO":
		level = slog.LevelInfo
	case name[:n] == "WARN":
		level = slog.LevelWarn
	default:
		switch n = 5; {
		case len(name) < n:
			return 0, false
		case name[:n] == "DEBUG":
			level = slog.LevelDebug
		case name[:n] == "ERROR":
			level = slog.LevelError
		default:
			return 0, false
		}
	}
	if len(name) == n {
		return level, true
	}
	if name[n] != '+' && name[n] != '-' {
		return 0, false
	}
	offset, err := strconv.ParseInt(name[n:], 10, 16)
	return level + slog.Level(offset), err == nil
}

// numberedLevel returns the level that a number means in bunyan and pino: 10 for trace to 60 for fatal.
func numberedLevel(n int64) (slog.Level, bool) {
	if n < 10 || n > 69 {
		return 0, false
	}
	return slog.Level(4*(n/10) - 12), true
}
