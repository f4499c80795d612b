package plugin

import (
	"strings"
	"testing"
	"time"
)

// TestHealth: every state has its health, and a plugin that fails needs attention whatever it does at the moment.
func TestHealth(t *testing.T) {
	began, failed := time.Unix(100, 0), time.Unix(50, 0)
	for name, test := range map[string]struct {
		status Status
		want   HealthState
		since  time.Time
		remedy string
	}{
		"registered":                {Status{State: StateRegistered}, HealthHealthy, began, ""},
		"superseded":                {Status{State: StateSuperseded}, HealthHealthy, began, ""},
		"ignored":                   {Status{State: StateIgnored}, HealthHealthy, began, ""},
		"idle":                      {Status{State: StateIdle}, HealthHealthy, began, ""},
		"restored":                  {Status{State: StateRestored}, HealthProgressing, began, ""},
		"registering":               {Status{State: StateRegistering}, HealthProgressing, began, ""},
		"another attempt":           {Status{State: StateConnecting, LastError: "late", FailingSince: failed}, HealthAttention, failed, "retried"},
		"backoff":                   {Status{State: StateBackoff, LastError: "late", FailingSince: failed}, HealthAttention, failed, "retried"},
		"refused":                   {Status{State: StateRefused, LastError: "no", NextRetry: began}, HealthAttention, began, "retried"},
		"without a handler":         {Status{State: StateRefused, Type: "T", LastError: "no"}, HealthAttention, began, "--accept-type T"},
		"unlinked":                  {Status{State: StateUnlinked}, HealthAttention, began, "new socket"},
		"unreachable":               {Status{State: StateUnreachable}, HealthAttention, began, "remove its socket"},
		"launched":                  {Status{State: StateRegistered, Type: "T", Launch: &LaunchStatus{State: StateRunning}}, HealthHealthy, began, ""},
		"its process fails":         {Status{State: StateRegistered, Type: "T", Launch: &LaunchStatus{State: StateBackoff, FailingSince: failed}}, HealthAttention, failed, "log"},
		"it starts again":           {Status{State: StateBackoff, Launch: &LaunchStatus{State: StateBackoff}}, HealthProgressing, began, ""},
		"its registration fails":    {Status{State: StateRefused, Type: "T", NextRetry: began, Launch: &LaunchStatus{State: StateRunning}}, HealthAttention, began, "cause"},
		"runs again":                {Status{Launch: &LaunchStatus{State: StateRunning, FailingSince: failed, HealthyFrom: began}}, HealthAttention, failed, "log"},
		"its replacement failed":    {Status{Launch: &LaunchStatus{State: StateRunning, ReplacementError: "no", ReplacementFailed: failed}}, HealthAttention, failed, "log"},
		"it starts":                 {Status{Launch: &LaunchStatus{State: StateStarting}}, HealthProgressing, began, ""},
		"it was stopped on request": {Status{Launch: &LaunchStatus{State: StateStopped}}, HealthHealthy, began, ""},
	} {
		test.status.Since = began
		if l := test.status.Launch; l != nil {
			l.Since = began
		}
		h := test.status.Health()
		if h.State != test.want || !h.Since.Equal(test.since) || (h.Reason == "") != (test.want != HealthAttention) ||
			(h.Remedy == "") != (test.remedy == "") || !strings.Contains(h.Remedy, test.remedy) {
			t.Errorf("%s: %+v", name, h)
		}
	}
}
