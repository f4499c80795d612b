package cli_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

var kills = flag.Int("kills", 20, "how often TestKillNineLosesNothing kills the daemon")

// TestKillNineLosesNothing kills a daemon again and again, at random instants, while plugins come and go. What it had said was registered, to the
// plugin or in its events, the next daemon knows at once, from before, and as the same instance.
func TestKillNineLosesNothing(t *testing.T) {
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c := &crash{t: t, dir: dir, stopped: map[string]bool{}, acknowledged: map[string]string{}, serving: map[string]plugin{}, told: map[string]bool{}}
	defer c.stopAll()
	checked := 0
	for range *kills {
		checked += c.round()
	}
	t.Logf("%d kills, %d announced registrations found again", *kills, checked)
	if checked == 0 {
		t.Error("no registration was acknowledged before a kill: the test shows nothing")
	}
}

// plugin is an example plugin in this process.
type plugin interface {
	Stop() error
	Statuses() <-chan *registerapi.RegistrationStatus
}

type crash struct {
	t       *testing.T
	dir     string
	serving map[string]plugin
	next    int

	mu           sync.Mutex
	told         map[string]bool // the plugin itself was told so, and was not stopped
	stopped      map[string]bool
	acknowledged map[string]string // instance by name, of those that were not stopped
}

// round runs one daemon from its start to its violent end. It returns how many acknowledged registrations it was asked for.
func (c *crash) round() int {
	c.t.Helper()
	control := filepath.Join(c.dir, "control.sock")
	began := time.Now()
	daemon := exec.Command("patchbay", "run", "--plugin-dir", filepath.Join(c.dir, "plugins"), "--state", filepath.Join(c.dir, "state.db"),
		"--control-socket", control, "--accept-type", "T", "--log-level", "error")
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		c.t.Fatal(err)
	}
	var following sync.WaitGroup
	ctx, cancel := context.WithCancel(c.t.Context())
	defer func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
		following.Wait()
		cancel()
	}()

	cl := client.New(control)
	defer cl.Close()
	known, remembered := map[string]string{}, map[string]bool{}
	for _, p := range c.firstList(ctx, cl).Plugins {
		known[p.Instance] = p.State
		remembered[p.Name] = p.RegisteredAt != nil && p.RegisteredAt.Before(began)
	}
	for name := range c.told {
		if !remembered[name] {
			c.t.Errorf("%s was told that it is registered before the kill, and is not remembered after it", name)
		}
	}
	c.mu.Lock()
	checked := len(c.acknowledged)
	for name, instance := range c.acknowledged {
		if known[instance] == "" {
			c.t.Errorf("%s was registered as instance %s before the kill and is not known after it", name, instance)
		}
	}
	c.mu.Unlock()

	following.Go(func() {
		// It ends with an error: the daemon is killed.
		for e, err := range cl.Events(ctx, client.EventsOptions{Follow: true}) {
			if err != nil {
				return
			}
			c.mu.Lock()
			if e.Kind == "registered" && !c.stopped[e.Name] {
				c.acknowledged[e.Name] = e.Instance
			}
			c.mu.Unlock()
		}
	})
	for end := time.Now().Add(rand.N(100 * time.Millisecond)); time.Now().Before(end); {
		c.churn()
	}
	_ = daemon.Process.Kill()
	_ = daemon.Wait()
	for name, p := range c.serving {
		for told := true; told; {
			select {
			case status := <-p.Statuses():
				c.told[name] = status.PluginRegistered
			default:
				told = false
			}
		}
	}
	return checked
}

// firstList returns the first thing that a daemon that has just been started says.
func (c *crash) firstList(ctx context.Context, cl *client.Client) client.Listing {
	c.t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		listing, err := cl.List(ctx)
		if err == nil {
			return listing
		}
	}
	c.t.Fatal("the daemon does not answer")
	return client.Listing{}
}

// churn has one plugin come or go.
func (c *crash) churn() {
	c.t.Helper()
	if len(c.serving) > 20 {
		for name, p := range c.serving {
			c.mu.Lock()
			c.stopped[name] = true
			delete(c.acknowledged, name)
			c.mu.Unlock()
			delete(c.serving, name)
			delete(c.told, name)
			if err := p.Stop(); err != nil {
				c.t.Error(err)
			}
			return
		}
	}
	c.next++
	name := fmt.Sprint("p", c.next)
	p := pluginwatcher.NewTestExamplePlugin(name, "T", filepath.Join(c.dir, "plugins", name+".sock"), "v1beta1")
	if err := p.Serve("v1beta1"); err != nil {
		c.t.Fatal(err)
	}
	c.serving[name] = p
}

func (c *crash) stopAll() {
	for _, p := range c.serving {
		if err := p.Stop(); err != nil {
			c.t.Error(err)
		}
	}
}
