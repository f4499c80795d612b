// Fleet measures what a fleet of many nodes costs one etcd, and how late its readers learn of it.
//
// The nodes are simulated: each is a [fleet.Publisher] with a connection of its own over TCP, and all of them run in this process. So does
// each reader: a [fleet.Reader] with its own connection, list and watch. Etcd is a process of its own, with its data on the disk and every
// write synced. The times of publishers are those that are shipped. Run with small sizes it shows only that it works.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

// sizes says how much is simulated.
type sizes struct {
	nodes, plugins, watchers int
	// changes is how many changes are timed; rounds how often every node changes a plugin.
	changes, rounds int
	rest            time.Duration
	dir             string
	// callers says that only the cost of callers is measured.
	callers bool
}

func main() {
	if isEtcd() {
		exit(serveEtcd())
	}
	var s sizes
	flag.IntVar(&s.nodes, "nodes", 50, "simulated nodes, each with one connection: two descriptors on this machine")
	flag.IntVar(&s.plugins, "plugins", 20, "plugins of each node")
	flag.IntVar(&s.watchers, "watchers", 5, "readers that watch a change; each keeps the whole fleet in memory")
	flag.IntVar(&s.changes, "changes", 5, "changes whose way to the readers is timed")
	flag.IntVar(&s.rounds, "rounds", 2, "how often every node changes one of its plugins")
	flag.DurationVar(&s.rest, "rest", 5*time.Second, "how long the fleet is watched at rest")
	flag.StringVar(&s.dir, "dir", os.TempDir(), "directory on the disk for etcd")
	flag.BoolVar(&s.callers, "callers", false, "measure what callers cost and nothing else")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exit(run(ctx, s, os.Stdout))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// step is one part of a run.
type step struct {
	title string
	do    func(context.Context) error
}

// run measures everything and prints it.
func run(ctx context.Context, s sizes, out io.Writer) (err error) {
	if s.nodes < 1 || s.plugins < 1 || s.watchers < 1 || s.changes < 1 || s.rounds < 1 {
		return errors.New("every size must be at least 1")
	}
	m := &measure{sizes: s, out: out, meter: newMeter()}
	defer func() { err = errors.Join(err, m.close()) }()
	if err := m.begin(ctx); err != nil {
		return err
	}
	steps := []step{
		{"all nodes start at once", m.publish},
		{"what a caller costs", m.callers},
		{"a reader starts", m.list},
		{"the fleet at rest", m.idle},
		{"from a change to the readers", m.delays},
		{"every node changes a plugin, again and again", m.churn},
		{"all nodes are restarted at once", m.restartNodes},
		{"etcd is killed and started again", m.restartEtcd},
	}
	if s.callers {
		steps = steps[:2]
	}
	for _, step := range steps {
		fmt.Fprintf(out, "\n%s\n", step.title)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	return nil
}
