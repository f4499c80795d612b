package telemetry

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

var updateMetrics = flag.Bool("update", false, "write docs/reference/metrics.md")

const metricsPage = "../../../docs/reference/metrics.md"

// described is how a description of a metric is written: name, help and labels.
var described = regexp.MustCompile(`^Desc\{fqName: "(.*?)", help: "(.*?)", (?:unit: ".*?", )?constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

// TestMetricsReference: docs/reference/metrics.md lists what the daemon counts and measures.
func TestMetricsReference(t *testing.T) {
	descriptions := make(chan *prometheus.Desc, 1000)
	newTestMetrics(t).registry.Describe(descriptions)
	fleetCollector{}.Describe(descriptions)
	close(descriptions)
	var rows []string
	for d := range descriptions {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("the description of a metric has another form: %s", d)
		}
		if strings.HasPrefix(m[1], "patchbay_") {
			labels := strings.ReplaceAll(m[3], ",", ", ")
			rows = append(rows, "| `"+m[1]+"` | "+labels+" | "+strings.ReplaceAll(m[2], "|", "\\|")+" |\n")
		}
	}
	if len(rows) < 15 {
		t.Fatalf("%d metrics were found: the test is broken", len(rows))
	}
	slices.Sort(rows)
	var page strings.Builder
	page.WriteString("<!-- Generated from the metrics: go test ./internal/daemon/telemetry -run TestMetricsReference -update -->\n\n# Metrics\n\n" +
		"What `GET /metrics` returns, besides the metrics of the Go runtime (`go_…`) and of the process (`process_…`).\n" +
		"[Operate the daemon](../how-to/operate.md#metrics) says how to use them. Only a node of a fleet has those of the fleet.\n\n| metric | labels | meaning |\n|---|---|---|\n" + strings.Join(rows, ""))
	if *updateMetrics {
		if err := os.WriteFile(metricsPage, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(metricsPage); err != nil || string(got) != page.String() {
		t.Errorf("docs/reference/metrics.md is not current (%v): run this test with -update", err)
	}
}
