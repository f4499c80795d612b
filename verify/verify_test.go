//go:build linux

package verify

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		target  Target
		options Options
		want    string
	}{
		{Target{}, Options{}, "name a socket or a command"},
		{Target{Command: []string{""}}, Options{}, "the command is empty"},
		{Target{Socket: "s", Dir: "d"}, Options{}, "need a command"},
		{Target{Socket: "s", Dir: "d", Command: []string{"x"}}, Options{}, "not both"},
		{Target{Socket: strings.Repeat("s", 200), Command: []string{"x"}}, Options{}, "a socket's path may have"},
		{Target{Socket: "s"}, Options{Rules: []string{"REG999"}}, `no rule or family "REG999"`},
		{Target{Socket: "s"}, Options{Rules: []string{"REG001"}, Skip: []string{"reg"}}, "no rule is left"},
		{Target{Socket: "s"}, Options{Timeout: -1}, "negative"},
		{Target{Socket: "s"}, Options{Claims: []string{"a//c"}}, "NAMESPACE/NAME/UID"},
		{Target{Socket: "s", Driver: []string{"d"}}, Options{}, "need a command"},
	} {
		_, err := Run(t.Context(), tc.target, tc.options)
		if !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.target, err, tc.want)
		}
	}
	for want, target := range map[string]Target{
		"cannot find the plugin's program /no/such/program: no such file or directory": {Command: []string{"/no/such/program"}},
		"cannot find the driver /no/such/driver: no such file or directory": {
			Command: []string{"/bin/true"}, Driver: []string{"/no/such/driver"}},
	} {
		if _, err := Run(t.Context(), target, Options{}); err == nil || errors.Is(err, ErrUsage) || err.Error() != want {
			t.Errorf("%+v: got %v, want %s", target, err, want)
		}
	}
}

func TestRulesAreWellFormed(t *testing.T) {
	id := regexp.MustCompile(`^[A-Z]{3}\d{3}$`)
	seen := map[string]bool{}
	for _, r := range Rules() {
		if !id.MatchString(r.ID) || seen[r.ID] || !strings.Contains(rulesText, "\n### "+r.family()+": ") {
			t.Errorf("%q is no good identifier", r.ID)
		}
		seen[r.ID] = true
		if r.Title == "" || r.Why == "" || r.Remedy == "" || r.check == nil || strings.HasSuffix(r.Remedy, ".") || strings.HasSuffix(r.Title, ".") {
			t.Errorf("%s lacks something: %+v", r.ID, r)
		}
	}
	if n := strings.Count(rulesText, "\n#### "); n != len(seen) {
		t.Errorf("rules.md has %d rules, and %d are checked", n, len(seen))
	}
}

// TestUnreachable: only the first selected rule fails, and the others do not apply.
func TestUnreachable(t *testing.T) {
	absent := filepath.Join(shortDir(t), "absent.sock")
	for _, only := range [][]string{nil, {"CSI"}, {"REG005", "CON"}} {
		report, err := Run(t.Context(), Target{Socket: absent}, Options{Rules: only, CallTimeout: time.Second})
		if err != nil || report.Count(Failed) != 1 || report.OK(false) {
			t.Errorf("%v: %v\n%s", only, err, describe(report))
		}
		report = verifyProcess(t, "PRC001", Options{Rules: only, Skip: []string{"PRC001"}})
		if report.Count(Failed) != 1 {
			t.Errorf("%v: a command that fails:\n%s", only, describe(report))
		}
	}
}

// TestHostile verifies malicious servers. The report is complete in time, and its size is bounded.
func TestHostile(t *testing.T) {
	t.Parallel()
	for name, behave := range map[string]func(net.Conn){
		"says nothing": func(c net.Conn) { _, _ = c.Read(make([]byte, 1<<16)); <-time.After(time.Minute) },
		"hangs up":     func(c net.Conn) { _ = c.Close() },
		"floods": func(c net.Conn) {
			for junk := bytes.Repeat([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}, 1000); ; {
				if _, err := c.Write(junk); err != nil {
					return
				}
			}
		},
		"raves": func(c net.Conn) { _, _ = c.Write(bytes.Repeat([]byte("\x1b[31m\xff"), 10_000)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "p.sock")
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
			if err != nil {
				t.Fatal(err)
			}
			var open sync.Map
			accepted := make(chan struct{})
			go func() {
				defer close(accepted)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					open.Store(c, nil)
					if name != "says nothing" {
						go behave(c)
					}
				}
			}()
			report := unhindered(t, Target{Socket: path}, Options{CallTimeout: 200 * time.Millisecond, Timeout: 20 * time.Second})
			if report.OK(false) {
				t.Error(describe(report))
			}
			for _, r := range report.Results {
				if n := len(r.Reason) + len(r.Sent) + len(r.Received); n > 16<<10 {
					t.Errorf("%s has %d bytes of text", r.Rule, n)
				}
			}
			_ = l.Close()
			<-accepted
			open.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
		})
	}
}

// TestTimeIsUp: rules for which no time remains fail.
func TestTimeIsUp(t *testing.T) {
	f := newFake("Plain")
	f.slow = time.Hour
	report := verifyBroken(t, f, Options{Timeout: 300 * time.Millisecond}, false)
	last := report.Results[len(report.Results)-1]
	i := slices.IndexFunc(report.Results, func(r Result) bool { return r.Rule == "REG011" })
	if len(report.Results) != len(Rules()) || report.Results[i].Status != Failed || !strings.Contains(report.Results[i].Reason, "was up") {
		t.Errorf("the last result is %+v\n%s", last, describe(report))
	}
}

// TestInterrupted: after an interrupt no process and no file is left, whatever the plugin does.
func TestInterrupted(t *testing.T) {
	t.Setenv("TMPDIR", shortDir(t))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen := &notice{seen: cancel, text: "named-by-test"}
	started := time.Now()
	report, err := Run(ctx, Target{
		Command: []string{"/bin/sh", "-c", "echo named-by-test; exec " + self}, Env: []string{fakeEnv + "=PRC003"}, NoHandshake: true,
	}, Options{Output: seen})
	if !errors.Is(err, context.Canceled) || len(report.Results) == len(Rules()) || !report.Incomplete || report.OK(false) {
		t.Errorf("%v after %v\n%s", err, time.Since(started), describe(report))
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

type notice struct {
	seen func()
	text string
}

func (n *notice) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(n.text)) {
		n.seen()
	}
	return len(p), nil
}

// The elements of JUnit's XML, as build servers read them.
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

// TestIncompleteJUnit: the JUnit file itself shows that the report is incomplete.
func TestIncompleteJUnit(t *testing.T) {
	report := Report{Incomplete: true, Results: []Result{{Rule: "REG001", Title: "a", Status: Passed}}}
	var out bytes.Buffer
	var got junitSuites
	if err := errors.Join(report.WriteJUnit(&out, false), xml.Unmarshal(out.Bytes(), &got)); err != nil {
		t.Fatal(err)
	}
	if cases := got.Suites[0].Cases; got.Tests != 2 || got.Errors != 1 || len(cases) != 2 || cases[1].Error == nil {
		t.Errorf("%s", &out)
	}
}

func TestJUnit(t *testing.T) {
	report := Report{Target: "t\x1b", Started: time.Unix(0, 0).UTC(), Results: []Result{
		{Rule: "REG001", Title: "a", Status: Passed},
		{Rule: "REG002", Title: "b", Status: Failed, Reason: "<\x1b>&", Remedy: "x"},
		{Rule: "CSI001", Title: "c", Status: Warned, Reason: "w"},
		{Rule: "PRC001", Title: "d", Status: NotApplicable, Reason: "n"},
		{Rule: "PRC002", Title: "e", Status: Inconclusive, Reason: "i"},
	}}
	for strict, failures := range map[bool]int{false: 1, true: 2} {
		var out bytes.Buffer
		if err := report.WriteJUnit(&out, strict); err != nil {
			t.Fatal(err)
		}
		var got junitSuites
		if err := xml.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		cases := got.Suites[0].Cases
		if got.Tests != 5 || got.Failures != failures || got.Skipped != 1 || got.Errors != 1 || len(cases) != 5 || cases[4].Error == nil || cases[1].Failure == nil ||
			cases[3].Skipped == nil || (cases[2].Failure != nil) != strict || cases[1].ClassName != "verify.REG" {
			t.Errorf("strict %v:\n%s", strict, &out)
		}
	}
}

type writerFunc func()

func (w writerFunc) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

// TestRefuses checks what TestUsage does not: contexts that have ended, and an Output that does not return from Write.
func TestRefuses(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, target := range []Target{{Socket: "none"}, {Command: []string{"/bin/true"}}} {
		report, err := Run(ended, target, Options{})
		if !errors.Is(err, context.Canceled) || !report.Incomplete || len(report.Results) > 0 {
			t.Errorf("%v with a context that has ended: %+v, %v", target, report, err)
		}
	}
	for name, write := range map[string]writerFunc{"panics": func() { panic("oops") }, "ends its goroutine": runtime.Goexit} {
		report, err := Run(t.Context(), Target{Command: []string{"/bin/echo", "hello"}}, Options{Output: write, Rules: []string{"REG001"}})
		if err != nil || len(report.Results) != 1 || report.OK(false) {
			t.Errorf("an Output that %s: %+v, %v", name, report, err)
		}
	}
	if (Report{}).Count("none") != 0 || (Report{}).WriteJUnit(io.Discard, true) != nil {
		t.Error("the zero Report counts something, or cannot be written")
	}
}
