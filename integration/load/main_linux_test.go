package load

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

// patience bounds every wait for what has to happen, however busy the machine is.
const patience = 2 * time.Minute

var (
	sockets     = flag.Int("sockets", 150, "how many plugins there are in TestChurn")
	rate        = flag.Int("rate", 50, "how many of them are replaced each second")
	length      = flag.Duration("for", 3*time.Second, "how long")
	window      = flag.Duration("window", time.Second, "over how long figures are taken together")
	subscribers = flag.Int("subscribers", 500, "how many subscribers of the library there are in TestSubscribers")
	streams     = flag.Int("streams", 100, "how many streams of events over the control API there are in TestStreams")
	sequence    = flag.Int("sequence", 5, "how many processes follow each other in TestSequence")
	atOnce      = flag.Int("at-once", 5, "how many launched plugins there are in TestAtOnce")
)

// bin has patchbay and the plugin.
var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if bin, err = os.MkdirTemp("", "pb"); err == nil {
		err = rig.Build(context.Background(), bin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot build what is to be tested:", errors.Join(err, os.RemoveAll(bin)))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(exitCode int) {
		if err := os.RemoveAll(bin); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(exitCode)
	}))
}

// pluginType has a handler in every daemon here.
const pluginType = "Load"

// newDaemon starts a daemon, with at most so many open files if that is not 0. It ends, in order, with the test.
func newDaemon(t *testing.T, files int, more string) *rig.Daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d, err := rig.NewDaemon(filepath.Join(bin, "patchbay"), dir)
	if err != nil {
		t.Fatal(err)
	}
	d.Files = files
	if err := d.Configure("handlers: {" + pluginType + ": accept}\n" + more); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := d.Stop(ctx); err != nil {
			t.Error(err)
		}
		for _, text := range d.Errors() {
			t.Errorf("the daemon wrote: %s", text)
		}
	})
	return d
}

func use(t *testing.T, d *rig.Daemon) rig.Usage {
	t.Helper()
	u, err := d.Usage(t.Context())
	if err != nil {
		t.Error(err)
	}
	return u
}

// serve starts a plugin, which ends with the test at the latest.
func serve(t *testing.T, dir, name string) *rig.Plugin {
	t.Helper()
	p, err := rig.Serve(pluginType, name, "1.0.0", filepath.Join(dir, name+".sock"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// told waits until a plugin has been told that it is registered.
func told(t *testing.T, p *rig.Plugin) time.Time {
	t.Helper()
	select {
	case at := <-p.Told:
		return at
	case <-time.After(patience):
		t.Fatalf("%s was not told within %v that it is registered", p.Name, patience)
		return time.Time{}
	}
}

// stop ends plugins.
func stop(t *testing.T, plugins []*rig.Plugin) {
	t.Helper()
	for _, p := range plugins {
		if err := p.Stop(false); err != nil {
			t.Error(err)
		}
	}
}

// eventually waits until nothing is wrong.
func eventually(t *testing.T, what string, wrong func() string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		why := wrong()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s: %s", patience, what, why)
		}
	}
}
