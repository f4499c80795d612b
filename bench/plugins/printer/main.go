// Printer is a program that prints when it is told to. Its arguments are the control socket, on which it gets a launch.Order and answers
// with a launch.Printed, and a line for standard output, if there is to be one.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// Both lines have 100 bytes, with the newline.
const (
	textLine = "volume pvc-0123456789 was published on node worker-0123456789.example.com for pod web-012345678, ok\n"
	jsonLine = `{"@level":"info","@message":"volume published","@timestamp":"2026-01-02T15:04:05.123456Z","id":424}` + "\n"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "printer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 1 {
		fmt.Println(args[1])
	}
	control, err := new(net.Dialer).DialContext(context.Background(), "unix", args[0])
	if err != nil {
		return err
	}
	var order launch.Order
	if err := json.NewDecoder(control).Decode(&order); err != nil {
		return err
	}
	printed, err := printLines(order)
	if err != nil {
		return err
	}
	return json.NewEncoder(control).Encode(printed)
}

func printLines(order launch.Order) (launch.Printed, error) {
	line := textLine
	if order.JSON {
		line = jsonLine
	}
	// A write that finds the pipe full has to be told from one that was not scheduled.
	if err := unix.SetNonblock(2, true); err != nil {
		return launch.Printed{}, err
	}
	file := os.NewFile(2, "stderr")
	conn, err := file.SyscallConn()
	if err != nil {
		return launch.Printed{}, err
	}
	began, err := proc.Now()
	w := &writer{conn: conn, data: []byte(strings.Repeat(line, order.PerWrite)), printed: launch.Printed{Began: began}}
	start := time.Now()
	for written := 0; written < order.Lines && err == nil; written += order.PerWrite {
		err = w.write()
		if order.PerMillisecond > 0 {
			w.wait(start.Add(time.Duration(written/order.PerMillisecond) * time.Millisecond))
		}
	}
	runtime.KeepAlive(file)
	return w.printed, err
}

type writer struct {
	conn    syscall.RawConn
	data    []byte
	now     time.Time // after the last write
	printed launch.Printed
}

// write writes the data, with one call if the pipe has room.
func (w *writer) write() error {
	before, full := time.Now(), false
	left, failed := w.data, error(nil)
	err := w.conn.Write(func(fd uintptr) bool {
		for len(left) > 0 && failed == nil {
			n, err := unix.Write(int(fd), left)
			switch {
			case err == nil:
				left = left[n:]
			case errors.Is(err, unix.EAGAIN):
				full = true
				return false
			case !errors.Is(err, unix.EINTR):
				failed = err
			}
		}
		return true
	})
	w.now = time.Now()
	took := w.now.Sub(before).Nanoseconds()
	w.printed.Worst = max(w.printed.Worst, took)
	if full {
		w.printed.Full++
		w.printed.WorstFull = max(w.printed.WorstFull, took)
	}
	return errors.Join(err, failed)
}

// wait waits for a time if it is so far away that a timer can tell.
func (w *writer) wait(due time.Time) {
	if ahead := due.Sub(w.now); ahead > time.Millisecond {
		<-time.After(ahead) //nolint:forbidigo // it prints at a given pace
	}
}
