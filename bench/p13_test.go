package bench

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// printing is what one contestant did with what a program printed.
type printing struct {
	read, handedOn float64 // lines in a second, from the first write until all is read and handed on
	launch.Printed
}

// benchP13 measures how a host reads lines of 100 bytes from standard error of a program: one line with each write, text and JSON, of
// which all are to be handed on; in blocks of 64 kB with the host's limit, which is what a flood costs; and how long a write takes at
// 100 MB/s.
func benchP13(b testing.TB) {
	rounds, lines, flood, span := 10, 500_000, 3_000_000, 5*time.Second
	if small(b) {
		rounds, lines, flood, span = 1, 20_000, 200_000, 100*time.Millisecond
	}
	const bytesPerLine, linesPerBlock = 100, 655
	contestants := open(b, "bare", "host", goPlugin)
	for _, json := range []bool{false, true} {
		kind := "text"
		if json {
			kind = "json"
		}
		order := launch.Order{JSON: json, Lines: lines, PerWrite: 1}
		printAll(b, contestants, rounds, false, order, func(l launching, r printing) {
			record(b, fmt.Sprintf("P13/lines=%s/%s", kind, l.name), lines,
				metrics{"read-Mlines/s", r.read / 1e6, "handed-on-Mlines/s", r.handedOn / 1e6})
		})
	}
	order := launch.Order{Lines: flood / linesPerBlock * linesPerBlock, PerWrite: linesPerBlock}
	printAll(b, contestants, rounds, true, order, func(l launching, r printing) {
		record(b, "P13/lines=flood/"+l.name, flood, metrics{"MB-read/s", r.read * bytesPerLine / 1e6})
	})
	// With one line in each write a program is not that fast.
	const perMillisecond, perWrite = 1000, 4
	order = launch.Order{Lines: int(span.Milliseconds()) * perMillisecond, PerWrite: perWrite, PerMillisecond: perMillisecond}
	printAll(b, contestants, rounds, true, order, func(l launching, r printing) {
		record(b, "P13/lines=100MB/"+l.name, order.Lines, metrics{
			"MB-read/s", r.read * bytesPerLine / 1e6, "write-max-ms", float64(r.Worst) / 1e6,
			"full", float64(r.Full), "full-max-ms", float64(r.WorstFull) / 1e6,
		})
	})
	endAll(contestants)
}

// printAll has each contestant read the same, and hands on what each round showed.
func printAll(
	b testing.TB, contestants []launching, rounds int, limited bool, order launch.Order, show func(launching, printing),
) {
	b.Helper()
	warm := min(1, rounds/2)
	for round := range warm + rounds {
		turns(contestants, round, func(l launching) {
			printed, drained := l.print(limited, order)
			if round >= warm {
				seconds := float64(drained.At-printed.Began) / 1e9
				show(l, printing{float64(order.Lines) / seconds, float64(drained.HandedOn) / seconds, printed})
			}
		})
	}
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
