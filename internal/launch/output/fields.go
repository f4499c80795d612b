package output

import (
	"log/slog"
	"math"
	"time"
)

// role is what a key means in one of the libraries whose lines are recognised.
type role int

const (
	roleNone role = iota
	roleTime
	roleLevel
	roleMessage
)

func roleOf(key string) role {
	switch key {
	case "time", "ts", "timestamp", "@timestamp", "t":
		return roleTime
	case "level", "lvl", "severity", "@level":
		return roleLevel
	case "msg", "message", "@message":
		return roleMessage
	}
	return roleNone
}

// fields says which roles of a record are filled. The first key of a role fills it; another one is an attribute.
type fields struct{ time, level, message bool }

// take puts value into r if key has a role that is free and value fits.
func (f *fields) take(key string, value slog.Value, r *Record) bool {
	switch roleOf(key) {
	case roleNone:
	case roleTime:
		if at, ok := timeOf(value); ok && !f.time {
			r.Time, f.time = at, true
			return true
		}
	case roleLevel:
		level, ok := levelOfValue(value)
		if ok && !f.level {
			r.Level, f.level = level, true
			return true
		}
	case roleMessage:
		if value.Kind() == slog.KindString && !f.message {
			r.Message, f.message = value.String(), true
			return true
		}
	}
	return false
}

// recognised says whether enough is filled to take the line for a log record.
func (f *fields) recognised() bool { return f.level || f.message }

func levelOfValue(v slog.Value) (slog.Level, bool) {
	switch v.Kind() {
	case slog.KindString:
		return levelOf(v.String())
	case slog.KindInt64:
		return numberedLevel(v.Int64())
	default:
		return 0, false
	}
}

// timeOf reads a time as text or as a number since 1970: seconds (zap, zerolog), milliseconds (pino), microseconds or nanoseconds, which
// are told apart by their size.
func timeOf(v slog.Value) (time.Time, bool) {
	var number float64
	switch v.Kind() {
	case slog.KindString:
		return parseTime(v.String())
	case slog.KindInt64:
		number = float64(v.Int64())
	case slog.KindFloat64:
		number = v.Float64()
	default:
		return time.Time{}, false
	}
	if number <= 0 || number > math.MaxInt64 {
		return time.Time{}, false
	}
	scale := 1.0 // to seconds
	for number/scale > 1e11 {
		scale *= 1e3
	}
	if scale > 1e9 {
		return time.Time{}, false
	}
	if v.Kind() == slog.KindInt64 {
		return time.Unix(0, v.Int64()*int64(1e9/scale)), true
	}
	seconds, fraction := math.Modf(number / scale)
	return time.Unix(int64(seconds), int64(math.Round(fraction*1e6))*1e3), true
}
