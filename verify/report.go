package verify

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Status is the result of checking a rule.
type Status string

// The statuses of a rule.
const (
	Passed        Status = "passed"
	Failed        Status = "failed"
	Warned        Status = "warned"       // the plugin works, but not with every host or at every moment
	Inconclusive  Status = "inconclusive" // it failed, maybe only because the machine was busy
	NotApplicable Status = "not-applicable"
)

// Result is the result of one rule. Its texts may quote the plugin, in bounded length; escape them before you print them.
type Result struct {
	Rule     string  `json:"rule"`
	Title    string  `json:"title"`
	Status   Status  `json:"status"`
	Reason   string  `json:"reason"`             // the observation, or why the rule does not apply
	Sent     string  `json:"sent,omitempty"`     // the requests to the plugin, unless it passed
	Received string  `json:"received,omitempty"` // the answers, unless it passed
	Remedy   string  `json:"remedy,omitempty"`   // what to change, unless it passed
	Seconds  float64 `json:"seconds"`
}

// Report is the result of a verification.
type Report struct {
	// Target is the socket, or the command in one line.
	Target string `json:"target"`
	// Socket is the path of the registration socket; empty if none was found.
	Socket string `json:"socket,omitempty"`
	// Type, Name, Endpoint and Versions are the plugin's answer to GetInfo; empty without one.
	Type     string   `json:"type,omitempty"`
	Name     string   `json:"name,omitempty"`
	Endpoint string   `json:"endpoint,omitempty"`
	Versions []string `json:"versions,omitempty"`
	// VendorVersion is the vendor_version of a CSI driver.
	VendorVersion string `json:"vendorVersion,omitempty"`
	// Programs are the command and the driver; for a socket, the program that listens on it. Programs that cannot be read are missing.
	Programs []Program `json:"programs,omitempty"`
	// Verifier is the version of the verifying program. Run does not set it.
	Verifier string    `json:"verifier,omitempty"`
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	// Incomplete means that ctx ended before all rules were checked.
	Incomplete bool `json:"incomplete,omitempty"`
	// Results are in the order in which the rules were checked.
	Results []Result `json:"results"`
}

// Program is an executable file and its SHA-256 digest in hexadecimal digits.
type Program struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
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

// OK reports whether all rules were checked and none failed, was inconclusive or, if strict, warned.
func (r Report) OK(strict bool) bool {
	return !r.Incomplete && !slices.ContainsFunc(r.Results, func(result Result) bool {
		return result.Status == Failed || result.Status == Inconclusive || strict && result.Status == Warned
	})
}

// The elements of JUnit's XML that build servers read.
type (
	junitSuites struct {
		XMLName xml.Name `xml:"testsuites"`
		junitCounts
		Suites []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name string `xml:"name,attr"`
		junitCounts
		Timestamp string `xml:"timestamp,attr"`
		// Properties describe the verified plugin; nil for no element.
		Properties *[]junitProperty `xml:"properties>property"`
		Cases      []junitCase      `xml:"testcase"`
	}
	junitCounts struct {
		Tests    int    `xml:"tests,attr"`
		Failures int    `xml:"failures,attr"`
		Errors   int    `xml:"errors,attr"`
		Skipped  int    `xml:"skipped,attr"`
		Time     string `xml:"time,attr"`
	}
	junitProperty struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	junitCase struct {
		Name      string        `xml:"name,attr"`
		ClassName string        `xml:"classname,attr"`
		Time      string        `xml:"time,attr"`
		Failure   *junitMessage `xml:"failure,omitempty"`
		Error     *junitMessage `xml:"error,omitempty"`
		Skipped   *junitMessage `xml:"skipped,omitempty"`
		SystemOut string        `xml:"system-out,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// properties returns the properties of the verified plugin; nil if there are none.
func (r Report) properties() *[]junitProperty {
	var all []junitProperty
	add := func(name, value string) {
		if value != "" {
			all = append(all, junitProperty{name, value})
		}
	}
	add("verifier", r.Verifier)
	add("type", r.Type)
	add("name", r.Name)
	add("versions", strings.Join(r.Versions, " "))
	add("vendorVersion", r.VendorVersion)
	for _, program := range r.Programs {
		add("program", program.Path)
		add("sha256", program.SHA256)
	}
	if all == nil {
		return nil
	}
	return &all
}

// WriteJUnit writes the report as JUnit XML: one suite with one case for each rule. A rule that does not apply is skipped, and an
// inconclusive one is an error. A warning is a failure if strict, and otherwise a text in system-out. An incomplete report has one more
// case, which is an error. Characters that XML does not allow are replaced.
func (r Report) WriteJUnit(w io.Writer, strict bool) error {
	suite := junitSuite{
		Name: "patchbay verify " + r.Target, Timestamp: r.Started.Format(time.RFC3339), Properties: r.properties(),
		junitCounts: junitCounts{
			Tests: len(r.Results), Skipped: r.Count(NotApplicable), Failures: r.Count(Failed), Errors: r.Count(Inconclusive),
			Time: junitTime(r.Seconds),
		},
	}
	if strict {
		suite.Failures += r.Count(Warned)
	}
	for _, result := range r.Results {
		c := junitCase{Name: result.Rule + " " + result.Title, ClassName: "verify." + result.Rule[:3], Time: junitTime(result.Seconds)}
		text := fmt.Sprintf("%s\nsent: %s\nreceived: %s\nchange: %s\n", result.Reason, result.Sent, result.Received, result.Remedy)
		switch {
		case result.Status == NotApplicable:
			c.Skipped = &junitMessage{Message: result.Reason}
		case result.Status == Failed, result.Status == Warned && strict:
			c.Failure = &junitMessage{Message: result.Reason, Type: string(result.Status), Text: text}
		case result.Status == Inconclusive:
			c.Error = &junitMessage{Message: result.Reason, Type: string(result.Status), Text: text}
		case result.Status == Warned:
			c.SystemOut = "warned: " + text
		}
		suite.Cases = append(suite.Cases, c)
	}
	if r.Incomplete {
		suite.Tests++
		suite.Errors++
		suite.Cases = append(suite.Cases, junitCase{
			Name: "All rules are checked", ClassName: "verify", Time: junitTime(0),
			Error: &junitMessage{Message: "the verification was ended before all rules were checked"},
		})
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(junitSuites{junitCounts: suite.junitCounts, Suites: []junitSuite{suite}}); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func junitTime(seconds float64) string { return fmt.Sprintf("%.3f", seconds) }
