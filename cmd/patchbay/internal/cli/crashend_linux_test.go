package cli_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
)

// ours says whether a process runs the program that is tested, under any of its names.
func (c *crash) ours(pid int) bool {
	program, err := os.Stat(c.program)
	exe, gone := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return errors.Join(err, gone) == nil && os.SameFile(program, exe)
}

// awaitNoOrphan waits until nothing is left of a daemon that has ended but the plugins that the test started itself.
func (c *crash) awaitNoOrphan() {
	c.t.Helper()
	own := map[int]bool{os.Getpid(): true}
	for _, p := range c.serving {
		if p, ok := p.(*processPlugin); ok {
			own[p.cmd.Process.Pid] = true
		}
	}
	var left []int
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			c.t.Fatal(err)
		}
		left = nil
		for _, e := range entries {
			if pid, err := strconv.Atoi(e.Name()); err == nil && !own[pid] && c.ours(pid) {
				left = append(left, pid)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	c.counts.orphans += len(left)
	for _, pid := range left {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		c.t.Errorf("process %d is left: %q", pid, cmdline)
	}
}

// finish runs a daemon that ends in order, and checks that everything is there before, and nothing after it.
func (c *crash) finish() {
	c.t.Helper()
	began := time.Now()
	daemon := c.start()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	cl := client.New(filepath.Join(c.dir, "control.sock"))
	defer cl.Close()
	c.checkFirst(c.firstList(ctx, cl), time.Now())
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { c.follow(ctx, cl, began) })
	defer func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	}()
	for i := range crashLaunched {
		if _, err := cl.Wait(ctx, "ExamplePlugin", fmt.Sprint("l", i), client.GoalRegistered); err != nil {
			c.t.Error(err)
		}
	}
	// Its stable socket may come a moment after it is registered.
	if err := c.call(ctx, grpc.WaitForReady(true)); err != nil {
		c.t.Error(err)
	}
	c.stopAll()
	listing, err := cl.List(ctx)
	if err != nil {
		c.t.Error(err)
	}
	for _, p := range listing.Plugins {
		if p.Type == crashType {
			if _, err := cl.Wait(ctx, p.Type, p.Name, client.GoalDeregistered); err != nil {
				c.t.Error(err)
			}
		}
	}
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		c.t.Error(err)
	}
	if err := daemon.Wait(); err != nil {
		c.t.Error(err)
	}
	c.checkTold()
	c.awaitNoOrphan()
	c.checkLeftovers()
}

// checkLeftovers looks at the files that are there after the last daemon, and into its state.
func (c *crash) checkLeftovers() {
	c.t.Helper()
	var left []string
	err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || strings.HasPrefix(path, filepath.Join(c.dir, "tmp")+"/")) {
			left = append(left, strings.TrimPrefix(path, c.dir+"/"))
		}
		return err
	})
	if err != nil {
		c.t.Error(err)
	}
	left = slices.DeleteFunc(left, func(path string) bool {
		return path == "patchbay.yaml" || path == "state.db" || path == "state.db.events" || path == "state.db.events.1"
	})
	store, err := boltstate.Open(filepath.Join(c.dir, "state.db"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer store.Close()
	state, err := store.GetDynamicPluginRegistryState()
	if err != nil {
		c.t.Fatal(err)
	}
	for name := range state.Plugins[crashType] {
		left = append(left, name+" in the state")
	}
	c.counts.leftovers = len(left)
	if len(left) > 0 {
		c.t.Errorf("%d things are left: %.40q", len(left), left)
	}
}
