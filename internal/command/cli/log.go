package cli

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync/atomic"

	"golang.org/x/term"

	"github.com/patchbay-dev/patchbay/daemon"
)

var levels = map[string]slog.Level{
	"debug": slog.LevelDebug,
	"info":  slog.LevelInfo,
	"warn":  slog.LevelWarn,
	"error": slog.LevelError,
}

// newLogger returns a logger, and a function that sets its level and format, for all loggers that were made of it too.
func newLogger(w io.Writer, as daemon.Log) (log *slog.Logger, set func(daemon.Log)) {
	level, isText := new(slog.LevelVar), new(atomic.Bool)
	set = func(as daemon.Log) {
		level.Set(levels[as.Level])
		isText.Store(as.Format == "text" || as.Format == "auto" && isTerminal(w))
	}
	set(as)
	options := &slog.HandlerOptions{Level: level}
	return slog.New(twoFormats{slog.NewTextHandler(w, options), slog.NewJSONHandler(w, options), isText}), set
}

// twoFormats is a handler whose format can change.
type twoFormats struct {
	text, json slog.Handler
	isText     *atomic.Bool
}

// Enabled implements [slog.Handler]. Both formats have the same level.
func (t twoFormats) Enabled(ctx context.Context, level slog.Level) bool {
	return t.text.Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (t twoFormats) Handle(ctx context.Context, r slog.Record) error {
	if t.isText.Load() {
		return t.text.Handle(ctx, r)
	}
	return t.json.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (t twoFormats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return twoFormats{t.text.WithAttrs(attrs), t.json.WithAttrs(attrs), t.isText}
}

// WithGroup implements [slog.Handler].
func (t twoFormats) WithGroup(name string) slog.Handler {
	return twoFormats{t.text.WithGroup(name), t.json.WithGroup(name), t.isText}
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
