package output

import (
	"log/slog"
	"time"
)

// Source says how a record came.
type Source string

// The sources of records.
const (
	Stdout Source = "stdout"
	Stderr Source = "stderr"
	RPC    Source = "log"  // through the Log call of the host's gRPC service
	Host   Source = "host" // a record of this package, about others that are missing
)

// Record is one line of output, or one record that the plugin logged through its host. Its strings hold neither control characters but
// tabs nor invalid UTF-8.
type Record struct {
	Seq     uint64    // 1 for the first record of a Log, and one more for each that follows
	Time    time.Time // when it was made, if the line says so and names its zone; else when it arrived
	Level   slog.Level
	Message string
	Attrs   []slog.Attr
	Source  Source
}

// The attributes that every forwarded record has: the plugin's name, and how it came.
const pluginKey, streamKey = "plugin", "stream"

// Config says whose output it is, where it goes, and how much of it. Zero values stand for the defaults.
type Config struct {
	Name    string       // the plugin's name, which every forwarded record carries as the attribute "plugin"
	Handler slog.Handler // where records are forwarded to; nil: nowhere
	MaxLine int          // bytes of a line that are kept; default 64 KiB
	Rate    int          // lines per second that are kept and forwarded; default 1,000, negative: no limit. A line counts once per begun KiB
	Burst   int          // lines that may come at once; default 2,000, at least a tenth of Rate
	Keep    int          // bytes that are held for Tail, Follow and the Handler; default 256 KiB. They are allocated as they are needed
}

const (
	defaultMaxLine = 64 << 10
	defaultRate    = 1000
	defaultBurst   = 2000 // lines of 100 bytes that fill the default of Keep
	defaultKeep    = 256 << 10
)

func (c Config) withDefaults() Config {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&c.MaxLine, defaultMaxLine)
	set(&c.Rate, defaultRate)
	set(&c.Burst, defaultBurst)
	set(&c.Keep, defaultKeep)
	return c
}

// Stats counts since the Log was made. Lines is the sum of those that were kept, those that were dropped, blank lines, and those for which
// that is not decided yet.
type Stats struct {
	Lines   uint64 // lines that ended, and logged records
	Bytes   uint64 // bytes of them
	Dropped uint64 // lines above the rate limit, which nobody sees
	Cut     uint64 // lines and records that were kept, but not with all their bytes
	Missed  uint64 // records for which the Handler was too slow
}
