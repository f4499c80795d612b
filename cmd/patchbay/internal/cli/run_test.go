package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
)

func TestLostTracesAreLogged(t *testing.T) {
	before := otel.GetErrorHandler()
	t.Cleanup(func() { otel.SetErrorHandler(before) })
	var log bytes.Buffer
	logLostTraces(slog.New(slog.NewTextHandler(&log, nil)))
	otel.Handle(errors.New("nobody there"))
	if got := log.String(); !strings.Contains(got, `level=WARN msg="traces are lost" error="nobody there"`) {
		t.Errorf("logged %q", got)
	}
}
