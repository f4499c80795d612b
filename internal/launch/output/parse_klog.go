package output

import (
	"log/slog"
	"strings"
)

// isKlog says whether line begins with the header of klog: "I0102 15:04:05.000000    1234 file.go:56] ".
func isKlog[S string | []byte](line S) bool {
	return len(line) > len("I0102 15:04:05.000000 ") && (line[0] == 'I' || line[0] == 'W' || line[0] == 'E' || line[0] == 'F') &&
		digits(line[1:5]) && line[5] == ' ' && digits(line[6:8]) && line[8] == ':' && digits(line[9:11]) && line[11] == ':' &&
		digits(line[12:14]) && line[14] == '.' && digits(line[15:21]) && line[21] == ' '
}

// parseKlog takes a line of klog apart, which may be structured: `"message" key="value"`. It has no year and no zone, so the time of
// arrival stays.
func parseKlog(line string, r *Record) bool {
	if !isKlog(line) {
		return false
	}
	head, message, ok := strings.Cut(line, "] ")
	if !ok {
		return false
	}
	switch line[0] {
	case 'W':
		r.Level = slog.LevelWarn
	case 'E':
		r.Level = slog.LevelError
	case 'F':
		r.Level = levelFatal
	default:
		r.Level = slog.LevelInfo
	}
	r.Attrs = append(r.Attrs, slog.String("caller", clean(head[strings.LastIndexByte(head, ' ')+1:])))
	if quoted, rest, ok := token(message); ok && message != "" && message[0] == '"' {
		attrs, ok := logfmt(strings.TrimPrefix(rest, " "))
		if ok || rest == "" {
			r.Message = quoted
			r.Attrs = append(r.Attrs, attrs...)
			return true
		}
	}
	r.Message = clean(message)
	return true
}
