package host

import (
	"context"
	"log/slog"
)

type loggerKey struct{}

// WithLogger returns a context that carries the logger for the records of plugins: what they print and what they log through
// their host. It is meant for [Host].PluginsContext and for the contexts of LaunchPlugin and NewAdmissionPlugin. A nil logger is
// that of no log.
func WithLogger(ctx context.Context, logger *slog.Logger) context.Context {
	return context.WithValue(ctx, loggerKey{}, logger)
}

// handlerOf returns the handler of the logger in the first context that carries one; nil if none does.
func handlerOf(contexts ...context.Context) slog.Handler {
	for _, ctx := range contexts {
		if ctx == nil {
			continue
		}
		if logger, ok := ctx.Value(loggerKey{}).(*slog.Logger); ok {
			if logger == nil {
				return nil
			}
			return logger.Handler()
		}
	}
	return nil
}
