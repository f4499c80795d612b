// Package output turns what a launched plugin prints, and what it logs through its host, into structured log records: bounded in
// memory and in rate, and without ever making the plugin wait.
//
// The goroutine that drains a pipe frames lines and copies them into a ring of bytes, and does nothing else. A line is taken apart when
// somebody reads it from there: Tail, Follow, or the goroutine that hands records to the log of the host and that exists only while there
// are some to hand over. So neither a slow log nor a line that is costly to read delays the plugin. Who cannot keep up with the ring loses
// records and is told how many. Lines above the rate limit are only counted, except the very last ones before the end of the
// output: why a plugin died stands there.
//
// Recognised are JSON lines with the keys of slog, zap, zerolog, logrus and hclog, the text of hclog and of slog (logfmt), the headers of
// klog, the prefix of Go's log package, and the dumps of the Go runtime. Everything else is a message as it stands. Unless a line says
// otherwise its level is Info on both streams, as journald has it (systemd.exec, SyslogLevel=): Go's log package, klog and most others
// write all that they have to say to standard error, so the stream says nothing about how serious a line is. Control characters and
// invalid UTF-8 are escaped wherever they are.
//
// It starts no processes and writes no files: the pipes are those of package host, and where records end up is for the slog.Handler to
// say.
package output
