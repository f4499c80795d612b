//go:build linux

package hostile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fares is how the daemon and the neighbours fare in a scene. It is safe for concurrent use.
type fares struct {
	mu sync.Mutex
	figures
}

// figures are what is compared. Memory is that which is resident, in KiB, the peak is that under the attack.
type figures struct {
	Memory, PeakMemory           int
	Descriptors, PeakDescriptors int
	Calls                        int
	Registered                   []time.Duration
	// CallFailed, RegisterFailed and Died say that a call to a neighbour failed, that another plugin did not register, and that the daemon
	// ended.
	CallFailed, RegisterFailed, Died bool
}

func (f *fares) called(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.CallFailed = f.CallFailed || err != nil; err == nil {
		f.Calls++
	}
}

func (f *fares) registered(after time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.RegisterFailed = f.RegisterFailed || err != nil; err == nil {
		f.Registered = append(f.Registered, after)
	}
}

// look looks at the daemon. The kernel says of a process that has ended that it has no memory.
func (f *fares) look(s *scene) {
	status, err := os.ReadFile(s.proc("status"))
	_, peak, alive := strings.Cut(string(status), "VmHWM:")
	fds, listErr := os.ReadDir(s.proc("fd"))
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil || listErr != nil || !alive {
		f.Died = true
		return
	}
	_, _ = fmt.Sscan(peak, &f.PeakMemory)
	f.PeakDescriptors = max(f.PeakDescriptors, len(fds))
}

// watch looks at the daemon until the test ends, and then logs how it fared.
func (s *scene) watch() {
	s.Helper()
	s.resetPeak()
	s.fares.look(s)
	s.fares.Memory, s.fares.Descriptors = s.fares.PeakMemory, s.fares.PeakDescriptors
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				s.fares.look(s)
			case <-stop:
				return
			}
		}
	}()
	s.Cleanup(func() {
		close(stop)
		<-stopped
		s.fares.look(s)
		text, err := json.Marshal(s.fares.figures)
		if err != nil {
			s.Fatal(err)
		}
		s.Logf("%s%s", figuresMark, text)
	})
}

const figuresMark = "figures: "

// compared are the attacks that once succeeded, by the row of PAINS.
var compared = []struct{ pain, name, test string }{
	{"42", "takes-names-over", ""},
	{"62", "borrows-rights", ""},
	{"62", "borrows-rights-later", ""},
	{"62", "borrows-rights-of-a-handler", ""},
	{"63", "hoards-connections", ""},
	{"64", "call-large", ""},
	{"64", "1,000 callers × 100 MiB, 256 MB, stable socket", "^TestLargeAnswers$/^stable$"},
	{"64", "1,000 callers × 100 MiB, 256 MB, control socket", "^TestLargeAnswers$/^control$"},
	{"65", "drowns-the-audit", ""},
	{"66", "2,000 plugins that announce 57 KB", "^TestMuchIsAnnounced$"},
	{"67", "crowds-with-directories", ""},
	{"67", "digs-directories", ""},
	{"69", "5,000 silent sockets of another user", "^TestSilentCrowd$"},
	{"70", "a directory that is removed and made again 1,000 times", "^TestRemadeDirectory$/^inside$"},
	{"70", "a plugin directory that is removed and made again 100 times", "^TestRemadeDirectory$/^plugin-directory$"},
}

var (
	beforeFlag = flag.String("before", "", "the program of a daemon to compare with, for TestCompare")
	measured   = flag.Bool("measured", false, "judge times too, on a machine that does nothing else")
	afterFlag  = flag.String("after", "", "the program of the daemon that is compared with it; empty for one that is built")
)

const comparedFile = "testdata/compared.md"

// TestCompare attacks a daemon of before and the one of now, and writes what it sees to comparedFile, of which the documentation is made. See
// "make hostile-compare".
func TestCompare(t *testing.T) {
	if *beforeFlag == "" {
		t.Skip("there is no daemon to compare with; see make hostile-compare")
	}
	var b bytes.Buffer
	b.WriteString("| row | attack | daemon | resident memory, MiB | descriptors | neighbours called | others register in | outcome |\n|---|---|---|---|---|---|---|---|\n")
	for _, c := range compared {
		test := cmp.Or(c.test, "^TestHostilePlugins$/^"+c.name+"$")
		for _, d := range []struct{ name, program string }{{"before", *beforeFlag}, {"now", cmp.Or(*afterFlag, filepath.Join(bin, "patchbay"))}} {
			line := compare(t, test, d.program)
			t.Logf("%s, %s: %s", c.name, d.name, line)
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.pain, c.name, d.name, line)
		}
	}
	if err := os.WriteFile(comparedFile, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// compare runs a test against a daemon and returns the cells of a line.
func compare(t *testing.T, test, program string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", test, "-test.v", "-test.timeout", "10m", "-remakes", "1000", "-measured")
	cmd.Env = append(os.Environ(), daemonEnv+"="+program)
	output, err := cmd.CombinedOutput()
	var f figures
	_, text, found := strings.Cut(string(output), figuresMark)
	if !found || json.Unmarshal([]byte(strings.SplitN(text, "\n", 2)[0]), &f) != nil {
		t.Logf("%s", output)
		return "– | – | – | – | the daemon does not know what the scene configures"
	}
	outcome := "holds"
	if err != nil {
		outcome = "succeeds"
		for line := range strings.Lines(string(output)) {
			if found := failureLine.FindStringSubmatch(line); found != nil && !strings.Contains(line, figuresMark) {
				outcome += ": " + strings.ReplaceAll(shorten(strings.Replace(found[1], "it is not so:", "missing:", 1)), "|", `\|`)
				break
			}
		}
	}
	if f.Died {
		outcome = "the daemon ends"
	}
	calls := "–"
	if f.Calls > 0 || f.CallFailed {
		calls = strconv.Itoa(f.Calls)
	}
	if f.CallFailed {
		calls += ", then none"
	}
	registered := "–"
	if n := len(f.Registered); n > 0 {
		slices.Sort(f.Registered)
		registered = fmt.Sprintf("%v, at most %v", f.Registered[n/2].Round(time.Millisecond), f.Registered[n-1].Round(time.Millisecond))
	}
	if f.RegisterFailed {
		registered = "none does"
	}
	return fmt.Sprintf("%d to %d | %d to %d | %s | %s | %s", f.Memory>>10, f.PeakMemory>>10, f.Descriptors, f.PeakDescriptors, calls, registered, outcome)
}

// failureLine is what a test logs.
var failureLine = regexp.MustCompile(`^\s+\w+_test\.go:\d+: (.*)`)

func shorten(text string) string {
	if r := []rune(text); len(r) > 120 {
		return string(r[:120]) + "…"
	}
	return text
}
