package telemetry

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/stats"

	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
)

const (
	// exportTimeout bounds how long sending a batch to the collector may take. A daemon that stops waits for at most two batches.
	exportTimeout = 2 * time.Second
	// maxSpans is the maximum size of a batch and of the queue before it. Further spans are dropped.
	maxSpans = 2048
)

// ValidateTracing calls check with the errors of a configuration.
func ValidateTracing(t config.Tracing, check func(field string, err error)) {
	u, err := url.Parse(t.Endpoint)
	if t.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		check("tracing.endpoint", fmt.Errorf(
			"%q is no URL of a collector: write http://HOST:PORT or https://HOST:PORT, for example http://127.0.0.1:4317", t.Endpoint))
	}
	if t.Percent < 0 || t.Percent > 100 {
		check("tracing.percent", fmt.Errorf("%d is not a percentage of traces: write a number from 0 to 100", t.Percent))
	}
}

// StartTracing starts to send traces of registrations and of calls to plugins to a collector. Calls carry the trace context. A collector
// that does not respond delays neither. The caller must call stop.
func StartTracing(t config.Tracing, version string) (_ pluginruntime.Observer, stop func() error, err error) {
	if t.Endpoint == "" {
		return pluginruntime.Observer{}, func() error { return nil }, nil
	}
	options := []otlptracegrpc.Option{otlptracegrpc.WithEndpointURL(t.Endpoint)}
	if strings.HasPrefix(strings.ToLower(t.Endpoint), "https:") { // the option has priority over the scheme of the URL
		options = append(options, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13})))
	}
	exporter, err := otlptracegrpc.New(context.Background(), options...)
	if err != nil {
		return pluginruntime.Observer{}, nil, fmt.Errorf("cannot send traces to %s: %w", t.Endpoint, err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithExportTimeout(exportTimeout), sdktrace.WithMaxQueueSize(maxSpans),
			sdktrace.WithMaxExportBatchSize(maxSpans)),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(float64(t.Percent)/100))),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "patchbay"), attribute.String("service.version", version))),
	)
	observer := pluginruntime.Observer{
		Tracer: provider.Tracer("github.com/patchbay-dev/patchbay"),
		StatsHandlers: []stats.Handler{otelgrpc.NewClientHandler(
			otelgrpc.WithTracerProvider(provider),
			// Callers choose the names of methods. A name that is not UTF-8 would make the exporter drop its batch.
			otelgrpc.WithFilter(func(info *stats.RPCTagInfo) bool { return utf8.ValidString(info.FullMethodName) }),
			otelgrpc.WithPropagators(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})),
		)},
	}
	return observer, func() error {
		if err := provider.Shutdown(context.Background()); err != nil {
			return fmt.Errorf("cannot send the last traces to %s: %w", t.Endpoint, err)
		}
		return nil
	}, nil
}
