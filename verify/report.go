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

// element is an element of the JUnit XML that build servers read.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []element
}

// newElement returns an element. attrs are the names of its attributes, each followed by the value.
func newElement(name, text string, attrs ...any) element {
	e := element{XMLName: xml.Name{Local: name}, Text: text}
	for attr := range slices.Chunk(attrs, 2) {
		e.Attrs = append(e.Attrs, xml.Attr{Name: xml.Name{Local: fmt.Sprint(attr[0])}, Value: fmt.Sprint(attr[1])})
	}
	return e
}

// properties returns the properties of the verified plugin.
func (r Report) properties() element {
	properties := newElement("properties", "")
	add := func(name, value string) {
		if value != "" {
			properties.Children = append(properties.Children, newElement("property", "", "name", name, "value", value))
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
	return properties
}

// testcase returns the element of a rule.
func (r Result) testcase(strict bool) element {
	c := newElement("testcase", "", "name", r.Rule+" "+r.Title, "classname", "verify."+r.Rule[:3], "time", junitTime(r.Seconds))
	text := fmt.Sprintf("%s\nsent: %s\nreceived: %s\nchange: %s\n", r.Reason, r.Sent, r.Received, r.Remedy)
	verdict := newElement("failure", text, "message", r.Reason, "type", r.Status)
	switch r.Status {
	case Passed:
		return c
	case NotApplicable:
		verdict = newElement("skipped", "", "message", r.Reason)
	case Inconclusive:
		verdict.XMLName.Local = "error"
	case Warned:
		if !strict {
			verdict = newElement("system-out", "warned: "+text)
		}
	case Failed:
	}
	c.Children = []element{verdict}
	return c
}

// WriteJUnit writes the report as JUnit XML: one suite with one case for each rule. A rule that does not apply is skipped, and an
// inconclusive one is an error. A warning is a failure if strict, and otherwise a text in system-out. An incomplete report has one more
// case, which is an error. Characters that XML does not allow are replaced.
func (r Report) WriteJUnit(w io.Writer, strict bool) error {
	var children []element
	if properties := r.properties(); properties.Children != nil {
		children = append(children, properties)
	}
	for _, result := range r.Results {
		children = append(children, result.testcase(strict))
	}
	tests, failures, errs := len(r.Results), r.Count(Failed), r.Count(Inconclusive)
	if strict {
		failures += r.Count(Warned)
	}
	if r.Incomplete {
		tests++
		errs++
		c := newElement("testcase", "", "name", "All rules are checked", "classname", "verify", "time", junitTime(0))
		c.Children = []element{newElement("error", "", "message", "the verification was ended before all rules were checked")}
		children = append(children, c)
	}
	suites := newElement("testsuites", "",
		"tests", tests, "failures", failures, "errors", errs, "skipped", r.Count(NotApplicable), "time", junitTime(r.Seconds))
	suite := newElement("testsuite", "", "name", "patchbay verify "+r.Target)
	suite.Attrs = append(suite.Attrs, suites.Attrs...)
	suite.Attrs = append(suite.Attrs, newElement("", "", "timestamp", r.Started.Format(time.RFC3339)).Attrs...)
	suite.Children = children
	suites.Children = []element{suite}
	text, err := xml.MarshalIndent(suites, "", "  ")
	if err == nil {
		_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, text)
	}
	return err
}

func junitTime(seconds float64) string { return fmt.Sprintf("%.3f", seconds) }
