package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/integration/internal/rig/etcd"
)

func main() {
	if is, err := etcd.Role(); is {
		exit(err)
	}
	o := options{out: os.Stdout}
	flag.DurationVar(&o.length, "for", 20*time.Minute, "how long to disturb the daemon; an interrupt ends it early")
	flag.DurationVar(&o.every, "settle", 20*time.Second, "how long to disturb it before each time that everything is compared")
	flag.DurationVar(&o.bound, "bound", time.Minute, "how long the daemon may take, after the disturbances, until everything is right")
	flag.Uint64Var(&o.seed, "seed", rand.Uint64(), "the seed of everything that is random here")
	flag.IntVar(&o.names, "names", 20, "how many plugins of each type come and go")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run builds what is needed, soaks, and removes everything.
func run(ctx context.Context, o options) (err error) {
	// Sockets have short paths.
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := rig.Build(ctx, dir); err != nil {
		return err
	}
	s, err := newSoak(dir, o)
	if err != nil {
		return err
	}
	return s.run(ctx)
}
