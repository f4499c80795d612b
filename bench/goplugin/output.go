package main

import (
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
)

// handshakeLine is what go-plugin wants to read on standard output. It connects only when a client is asked for.
const handshakeLine = "1|1|unix|/nowhere|grpc"

// Print implements [launch.Host].
func (h host) Print(program, control string, _ bool) (launch.Output, error) {
	o := &output{}
	o.changed = sync.NewCond(&o.mu)
	o.client = h.client(logger{hclog.NewNullLogger(), o}, program, control, handshakeLine)
	_, err := o.client.Start()
	return o, err
}

// output counts what a program prints.
type output struct {
	client *plugin.Client

	mu      sync.Mutex
	changed *sync.Cond
	lines   int64
	wanted  int64 // lines that are waited for; zero if nobody waits
}

// Drain implements [launch.Output].
func (o *output) Drain(lines int64) (handedOn int64, err error) {
	o.mu.Lock()
	o.wanted = lines
	for o.lines < lines {
		o.changed.Wait()
	}
	o.mu.Unlock()
	o.client.Kill()
	return lines, nil
}

func (o *output) add() {
	o.mu.Lock()
	o.lines++
	if o.lines == o.wanted {
		o.changed.Broadcast()
	}
	o.mu.Unlock()
}

// logger is one of go-plugin itself, whose records go nowhere. The loggers that it names are those of programs.
type logger struct {
	hclog.Logger

	output *output
}

// GetLevel returns that of a host that keeps what its plugins print.
func (logger) GetLevel() hclog.Level { return hclog.Debug }

// Named returns the logger of a program.
func (l logger) Named(string) hclog.Logger { return programLogger(l) }

// programLogger counts the records of a program, and does nothing else with them.
type programLogger logger

// GetLevel returns that of a host that keeps what its plugins print.
func (programLogger) GetLevel() hclog.Level { return hclog.Debug }

// Debug counts a line that is not JSON.
func (l programLogger) Debug(string, ...any) { l.output.add() }

// Info counts a line whose level is info.
func (l programLogger) Info(string, ...any) { l.output.add() }
