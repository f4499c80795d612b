package verify

import (
	"encoding/xml"
	"fmt"
	"io"
	"time"
)

// The elements of JUnit's XML that build servers read.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Skipped  int          `xml:"skipped,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name      string      `xml:"name,attr"`
		Tests     int         `xml:"tests,attr"`
		Failures  int         `xml:"failures,attr"`
		Errors    int         `xml:"errors,attr"`
		Skipped   int         `xml:"skipped,attr"`
		Time      string      `xml:"time,attr"`
		Timestamp string      `xml:"timestamp,attr"`
		Cases     []junitCase `xml:"testcase"`
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

// WriteJUnit writes the report as JUnit XML: one suite, with one case a rule. A rule that does not apply is skipped; one that warned
// is a failure if strict, and else has its text in system-out. An incomplete report has one
// more case, which is an error. Characters that XML cannot hold are replaced.
func (r Report) WriteJUnit(w io.Writer, strict bool) error {
	suite := junitSuite{
		Name: "patchbay verify " + r.Target, Tests: len(r.Results), Skipped: r.Count(NotApplicable), Failures: r.Count(Failed),
		Time: junitTime(r.Seconds), Timestamp: r.Started.Format(time.RFC3339),
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
	err := encoder.Encode(junitSuites{
		Tests: suite.Tests, Failures: suite.Failures, Errors: suite.Errors, Skipped: suite.Skipped, Time: suite.Time,
		Suites: []junitSuite{suite},
	})
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, "\n")
	return err
}

func junitTime(seconds float64) string { return fmt.Sprintf("%.3f", seconds) }
