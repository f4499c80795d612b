package cli

import (
	"io"
	"log/slog"
	"math"
	"os"

	"golang.org/x/term"

	"github.com/patchbay-dev/patchbay/daemon"
)

var levels = map[string]slog.Level{
	"debug": slog.LevelDebug,
	"info":  slog.LevelInfo,
	"warn":  slog.LevelWarn,
	"error": slog.LevelError,
}

// silent is a level that no record has.
const silent = slog.Level(math.MaxInt)

// newLogger returns a logger, and a function that sets its level and format, for all loggers that were made of it too.
func newLogger(w io.Writer, as daemon.Log) (log *slog.Logger, set func(daemon.Log)) {
	text, json := new(slog.LevelVar), new(slog.LevelVar)
	set = func(as daemon.Log) {
		used, unused := json, text
		if as.Format == "text" || as.Format == "auto" && isTerminal(w) {
			used, unused = text, json
		}
		unused.Set(silent)
		used.Set(levels[as.Level])
	}
	set(as)
	return slog.New(slog.NewMultiHandler(
		slog.NewTextHandler(w, &slog.HandlerOptions{Level: text}), slog.NewJSONHandler(w, &slog.HandlerOptions{Level: json}),
	)), set
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
