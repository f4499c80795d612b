package verify

import (
	"slices"
	"time"
)

// Status is what came out of a rule.
type Status string

// The statuses of a rule.
const (
	Passed        Status = "passed"
	Failed        Status = "failed"
	Warned        Status = "warned" // it works, and some host or moment will find it wanting
	NotApplicable Status = "not-applicable"
)

// Result is what one rule found. Its texts may quote the plugin, in bounded length; whoever shows them escapes them.
type Result struct {
	Rule     string  `json:"rule"`
	Title    string  `json:"title"`
	Status   Status  `json:"status"`
	Reason   string  `json:"reason"`             // what was seen, or why the rule does not apply
	Sent     string  `json:"sent,omitempty"`     // what the plugin was sent or made to do, if it failed or warned
	Received string  `json:"received,omitempty"` // what came back, if it failed or warned
	Remedy   string  `json:"remedy,omitempty"`   // what to change, if it failed or warned
	Seconds  float64 `json:"seconds"`
}

// Report is the whole of a verification.
type Report struct {
	// Target is the socket, or the command in one line.
	Target string `json:"target"`
	// Socket is the path of the registration socket; empty if none was found.
	Socket string `json:"socket,omitempty"`
	// Type, Name, Endpoint and Versions are what the plugin announced, as far as it did.
	Type     string    `json:"type,omitempty"`
	Name     string    `json:"name,omitempty"`
	Endpoint string    `json:"endpoint,omitempty"`
	Versions []string  `json:"versions,omitempty"`
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	// Incomplete says that the verification was ended before it had checked all rules.
	Incomplete bool `json:"incomplete,omitempty"`
	// Results are in the order in which the rules were checked.
	Results []Result `json:"results"`
}

// Count returns how many rules have the status.
func (r Report) Count(status Status) int {
	n := 0
	for _, result := range r.Results {
		if result.Status == status {
			n++
		}
	}
	return n
}

// OK reports whether all rules were checked and none failed nor, if strict, warned.
func (r Report) OK(strict bool) bool {
	return !r.Incomplete && !slices.ContainsFunc(r.Results, func(result Result) bool {
		return result.Status == Failed || strict && result.Status == Warned
	})
}
