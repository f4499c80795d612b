package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestScripts runs the scripts in testdata, which list the effects and the phases after each input. "go test -rewrite" updates them.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		s.Entered = func(_ Ref, taken Transition) {
			if countRows(taken) != 1 {
				t.Errorf("%s → %s, %s: the table has no such row", taken.From, taken.To, taken.On)
			}
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
	})
}

// script is a machine with a clock that the script advances, and a random number that does not shorten pauses.
type script struct {
	Machine
	now  time.Time
	pids int
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	if d.HasArg("after") {
		var after string
		d.ScanArgs(t, "after", &after)
		passed, err := time.ParseDuration(after)
		if err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(passed)
	}
	var b strings.Builder
	for _, effect := range s.Step(Moment{Now: s.now}, s.input(t, d)) {
		fmt.Fprintln(&b, describe(effect))
	}
	var phases []string
	for _, g := range append(slices.Clone(s.leaving), s.current, s.next) {
		if g != nil {
			phases = append(phases, fmt.Sprintf("%d %s", g.ref, g.phase))
		}
	}
	status := s.Status()
	fmt.Fprintf(&b, "= %s; %s", strings.Join(phases, ", "), status.State)
	if h := status.Health(); h.State == plugin.HealthAttention {
		fmt.Fprintf(&b, ", failing for %v", s.now.Sub(h.Since))
	}
	if status.LastError != "" {
		fmt.Fprintf(&b, ": %s", status.LastError)
	}
	if status.ReplacementError != "" {
		fmt.Fprintf(&b, "; %s", status.ReplacementError)
	}
	return b.String() + "\n"
}

// input parses an input.
func (s *script) input(t *testing.T, d *datadriven.TestData) Input {
	t.Helper()
	number := func(key string) (n uint64) {
		if d.HasArg(key) {
			d.ScanArgs(t, key, &n)
		}
		return n
	}
	word := func(key string) (word string) {
		if d.HasArg(key) {
			d.ScanArgs(t, key, &word)
		}
		return word
	}
	var err error
	if text := word("error"); text != "" {
		err = errors.New(strings.ReplaceAll(text, "-", " "))
	}
	if word("error") == "busy" {
		err = syscall.ETXTBSY
	}
	ref, r := Ref(number("of")), Request(number("for"))
	kinds := map[string]TimerKind{"pause": Pause, "settle": Settle, "start-by": StartBy, "recover": Recover}
	switch d.Cmd {
	case "configure":
		policy := plugin.RestartPolicy{
			Policy: plugin.Restart(word("restart")), Backoff: plugin.Backoff{Min: time.Second}, Limit: int(number("limit")),
			Unresponsive: d.HasArg("unresponsive"),
		}
		return Configure{Changed: d.HasArg("changed"), Description: Description{
			Identity: word("identity"), Serves: d.HasArg("serves"), Survives: d.HasArg("survives"), Restart: policy,
			Upgrade: plugin.Upgrade(word("upgrade")),
		}, Request: r}
	case "start":
		return Start{r}
	case "replace":
		return Replace{r}
	case "stop":
		return Stop{r}
	case "withdraw":
		return Withdraw{r, errors.New("nobody waits")}
	case "remove":
		return Remove{r}
	case "close":
		return Close{errors.New("the launcher is closed")}
	case "demand":
		return Demand{r}
	case "offer":
		return Offer{}
	case "unneeded":
		return Unneeded{ref}
	case "survivor":
		return Survivor{Process{Identity: word("identity"), PID: int(number("pid")), Socket: word("socket")}}
	case "launched":
		s.pids++
		return Launched{ref, Process{PID: s.pids, Socket: fmt.Sprintf("/s%d", s.pids)}, err, d.HasArg("blocked")}
	case "changed":
		return Changed{ref}
	case "registered":
		return Registered{ref}
	case "refused":
		return Refused{ref, err, d.HasArg("blocked")}
	case "exited":
		return Exited{ref, err}
	case "fired":
		return Fired{Timer{ref, kinds[word("timer")]}, d.HasArg("needed")}
	case "health":
		return HealthFound{ref, plugin.ServingStatus(word("state")), err}
	case "unfit":
		return Unfit{ref, err, d.HasArg("at-once")}
	case "socket-lost":
		return SocketLost{Socket: word("socket")}
	default:
		t.Fatalf("%s is no input", d.Cmd)
		return nil
	}
}

func describe(effect Effect) string {
	switch e := effect.(type) {
	case Emit:
		return fmt.Sprintf("event %s: %s", e.Kind, e.Message)
	case SetTimer:
		return fmt.Sprintf("set timer %d of %d to %v", e.Kind, e.Ref, e.After)
	case StopTimer:
		return fmt.Sprintf("stop timer %d of %d", e.Kind, e.Ref)
	case Answer:
		return fmt.Sprintf("answer %d: %v", e.Request, e.Err)
	default:
		name := strings.TrimPrefix(fmt.Sprintf("%T", effect), "machine.")
		return strings.ToLower(name) + strings.TrimSuffix(strings.ReplaceAll(fmt.Sprintf(" %v", effect), "{}", ""), " ")
	}
}
