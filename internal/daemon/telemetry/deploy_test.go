package telemetry

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	describedMetric = regexp.MustCompile(`fqName: "([^"]+)".*constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)
	usedMetric      = regexp.MustCompile(`\b((?:patchbay|process|go)_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	usedGrouping    = regexp.MustCompile(`\bby \(([^)]*)\)`)
	usedLabel       = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	histogramSuffix = regexp.MustCompile(`_(bucket|count|sum)$`)
)

// describedMetrics returns the labels of all metrics that the daemon has, by name.
func describedMetrics(t *testing.T) map[string][]string {
	t.Helper()
	m := NewMetrics("", "", handlerTypes{})
	m.Watch(nil, nil, "")
	descs := make(chan *prometheus.Desc)
	go func() {
		m.registry.Describe(descs)
		close(descs)
	}()
	metrics := map[string][]string{}
	for desc := range descs {
		match := describedMetric.FindStringSubmatch(desc.String())
		if match == nil {
			t.Fatalf("cannot read %s", desc)
		}
		metrics[match[1]] = append([]string{"instance", "job", "le"}, strings.Split(match[3], ",")...)
	}
	return metrics
}

// checkExpression fails the test if a query names a metric or a label that the daemon does not have. The labels of a grouping have to be
// those of each metric in the query.
func checkExpression(t *testing.T, metrics map[string][]string, where, expression string) (used int) {
	t.Helper()
	var grouped []string
	for _, match := range usedGrouping.FindAllStringSubmatch(expression, -1) {
		for label := range strings.SplitSeq(match[1], ",") {
			grouped = append(grouped, strings.TrimSpace(label))
		}
	}
	for _, match := range usedMetric.FindAllStringSubmatch(expression, -1) {
		labels, ok := metrics[match[1]]
		if !ok {
			labels, ok = metrics[histogramSuffix.ReplaceAllString(match[1], "")]
		}
		if !ok {
			t.Errorf("%s: the daemon has no metric %s: %s", where, match[1], expression)
			continue
		}
		used++
		wanted := slices.Clone(grouped)
		for _, label := range usedLabel.FindAllStringSubmatch(match[2], -1) {
			wanted = append(wanted, label[1])
		}
		for _, label := range wanted {
			if !slices.Contains(labels, label) {
				t.Errorf("%s: the metric %s has no label %s: %s", where, match[1], label, expression)
			}
		}
	}
	return used
}

func TestDashboardShowsMetricsThatExist(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "grafana", "patchbay.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	metrics := describedMetrics(t)
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("the panel %q shows nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			if checkExpression(t, metrics, panel.Title, target.Expr) == 0 {
				t.Errorf("the panel %q shows no metric of the daemon: %s", panel.Title, target.Expr)
			}
		}
	}
	for name := range metrics {
		if strings.HasPrefix(name, "patchbay_") && !strings.Contains(string(content), name) {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

func TestAlertsAreAboutMetricsThatExist(t *testing.T) {
	path := filepath.Join("..", "..", "..", "deploy", "prometheus", "patchbay.rules.yaml")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	metrics := describedMetrics(t)
	// Each rule begins with its name, and the expression ends where "for" or "labels" begins.
	rules := strings.Split(string(content), "- alert: ")[1:]
	if len(rules) == 0 {
		t.Fatal("there are no rules")
	}
	for _, rule := range rules {
		name, rest, _ := strings.Cut(rule, "\n")
		_, expression, _ := strings.Cut(rest, "expr:")
		expression = regexp.MustCompile(`(?m)^\s+(for|labels):`).Split(expression, 2)[0]
		if checkExpression(t, metrics, name, expression) == 0 && !strings.Contains(expression, "up{") {
			t.Errorf("the rule %s is about no metric of the daemon: %s", name, expression)
		}
	}
	promtool, err := exec.LookPath("promtool")
	if errors.Is(err, exec.ErrNotFound) {
		t.Log("promtool is not there: the syntax of the rules is not checked")
		return
	}
	if output, err := exec.CommandContext(t.Context(), promtool, "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
