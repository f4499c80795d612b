package bench

import (
	"encoding/json"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// printing is what one contestant did with what a program printed.
type printing struct {
	read, handedOn []float64 // lines in a second, from the first write until all is read and handed on
	worst          launch.Printed
}

// BenchmarkP13 measures how a host reads lines of 100 bytes from standard error of a program: one line with each write, text and JSON, of
// which all are to be handed on; in blocks of 64 kB with the host's limit, which is what a flood costs; and how long a write takes at
// 100 MB/s.
func BenchmarkP13(b *testing.B) {
	rounds, lines, flood, span := 5, 1_000_000, 5_000_000, 5*time.Second
	if testing.Short() {
		rounds, lines, flood, span = 1, 20_000, 200_000, 100*time.Millisecond
	}
	const (
		goalText, goalJSON, goalFlood = 0.8e6, 0.5e6, 300e6
		bytesPerLine, linesPerBlock   = 100, 655
		goalWrite                     = 10 * time.Millisecond
	)
	contestants := open(b, "bare", "host", goPlugin)
	for _, json := range []bool{false, true} {
		kind, goal := "text", goalText
		if json {
			kind, goal = "json", goalJSON
		}
		results := printAll(b, contestants, rounds, false, launch.Order{JSON: json, Lines: lines, PerWrite: 1})
		for _, l := range contestants {
			r := results[l.name]
			handedOn := quantile(r.handedOn, 0.5)
			report(b, kind+"/"+l.name, metrics{
				"read-Mlines/s", quantile(r.read, 0.5) / 1e6, "handed-on-Mlines/s", handedOn / 1e6,
			}.goals(l.name, "goal/rate", goal/handedOn))
		}
	}
	results := printAll(b, contestants, rounds, true, launch.Order{Lines: flood / linesPerBlock * linesPerBlock, PerWrite: linesPerBlock})
	for _, l := range contestants {
		rate := quantile(results[l.name].read, 0.5) * bytesPerLine
		report(b, "flood/"+l.name, metrics{"MB/s", rate / 1e6}.goals(l.name, "goal/rate", goalFlood/rate))
	}
	// With one line in each write a program is not that fast.
	const perMillisecond, perWrite = 1000, 4
	order := launch.Order{Lines: int(span.Milliseconds()) * perMillisecond, PerWrite: perWrite, PerMillisecond: perMillisecond}
	results = printAll(b, contestants, 1, true, order)
	for _, l := range contestants {
		r := results[l.name]
		worst := time.Duration(r.worst.WorstFull)
		report(b, "100MB/"+l.name, metrics{
			"MB/s", quantile(r.read, 0.5) * bytesPerLine / 1e6, "write-max-ms", float64(r.worst.Worst) / 1e6,
			"full", float64(r.worst.Full), "full-max-ms", worst.Seconds() * 1e3,
		}.goals(l.name, "full-max/goal", worst.Seconds()/goalWrite.Seconds()))
	}
	endAll(contestants)
}

// printAll has each contestant read the same.
func printAll(b *testing.B, contestants []launching, rounds int, limited bool, order launch.Order) map[string]*printing {
	b.Helper()
	results := map[string]*printing{}
	for _, l := range contestants {
		results[l.name] = &printing{}
	}
	warm := min(1, rounds/2)
	for round := range warm + rounds {
		turns(contestants, round, func(l launching) {
			printed, drained := l.print(limited, order)
			if round < warm {
				return
			}
			r := results[l.name]
			seconds := float64(drained.At-printed.Began) / 1e9
			r.read, r.handedOn = append(r.read, float64(order.Lines)/seconds), append(r.handedOn, float64(drained.HandedOn)/seconds)
			r.worst.Full += printed.Full
			r.worst.Worst, r.worst.WorstFull = max(r.worst.Worst, printed.Worst), max(r.worst.WorstFull, printed.WorstFull)
		})
	}
	return results
}

// print has the contestant start a program that prints, and returns when all is read.
func (l launching) print(limited bool, order launch.Order) (printed launch.Printed, drained launch.Drained) {
	l.b.Helper()
	control := filepath.Join(l.b.TempDir(), "control.sock")
	listener, err := new(net.ListenConfig).Listen(l.b.Context(), "unix", control)
	if err != nil {
		l.b.Fatal(err)
	}
	defer listener.Close()
	l.call("Launcher.Print", launch.Printing{Program: build(l.b, "plugins/printer"), Control: control, Limited: limited}, new(proc.None))
	conn, err := listener.Accept()
	if err != nil {
		l.b.Fatal(err)
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(order); err != nil {
		l.b.Fatal(err)
	}
	if err := json.NewDecoder(conn).Decode(&printed); err != nil {
		l.b.Fatalf("%s: the program that prints has not said what it did: %v", l.name, err)
	}
	l.call("Launcher.Drain", int64(order.Lines), &drained)
	return printed, drained
}
