package cli_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

var kills = flag.Int("kills", 20, "how often TestKillNineLosesNothing kills the daemon")

const (
	crashType     = "T"
	crashLaunched = 2 // plugins that the daemon launches
)

// TestKillNineLosesNothing kills a daemon again and again, at random instants, and its plugins too, while plugins come, go, and supersede each
// other, and launched ones are restarted. What it had said was registered, to the plugin or in its events, the next daemon knows at once,
// from before, and as the same instance, once. Nothing is left in the end. That a handler is not called twice for one registration cannot be
// seen from here; the model test of package reconciler shows it.
func TestKillNineLosesNothing(t *testing.T) {
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c := newCrash(t, dir)
	defer c.stopAll()
	for range *kills {
		c.round()
	}
	c.finish()
	n := &c.counts
	t.Logf("\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d",
		"daemons killed", *kills, "plugins killed", n.pluginKills, "registrations acknowledged", n.acknowledged,
		"found again after a kill", n.found, "superseded", n.superseded, "launched plugins registered", n.launches,
		"generations asked for", n.generations, "orphans", n.orphans, "leftovers", n.leftovers)
	if n.found == 0 || n.superseded == 0 || n.launches == 0 || n.pluginKills == 0 {
		t.Error("something of that never happened: the test shows too little")
	}
}

// crash is a daemon that is killed, with what surrounds it. One goroutine uses it; what mu guards is shared with those that follow events.
type crash struct {
	t       *testing.T
	dir     string
	program string
	serving map[string]crashPlugin // by socket
	next    int
	told    map[string]bool // by socket: the plugin itself was told that it is registered, and was not stopped

	mu           sync.Mutex
	counts       counts // those of events; the others are the one goroutine's
	stopped      map[string]bool
	acknowledged map[string]string // instance by socket, of those that were not stopped
}

type counts struct {
	pluginKills, acknowledged, found, superseded, launches, generations, orphans, leftovers int
}

// crashPlugin is a plugin that appears by itself.
type crashPlugin interface {
	Stop() error
	// Statuses has what the plugin was told.
	Statuses() <-chan *registerapi.RegistrationStatus
}

func newCrash(t *testing.T, dir string) *crash {
	t.Helper()
	program, err := exec.LookPath("patchbay")
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		t.Fatal(err)
	}
	var config strings.Builder
	fmt.Fprintf(&config, `apiVersion: patchbay.dev/v1alpha1
kind: Config
pluginDirs: [%[1]s/plugins]
state: %[1]s/state.db
controlSocket: %[1]s/control.sock
dispenseDir: %[1]s/stable
handlers: {%[2]s: accept, ExamplePlugin: accept}
log: {level: error}
plugins:
`, dir, crashType)
	for i := range crashLaunched {
		fmt.Fprintf(&config, "- {name: l%[1]d, command: [hello], env: {HELLO_NAME: l%[1]d}, "+
			"restart: {limit: 1000000, backoff: {min: 1ms, max: 10ms}}}\n", i)
	}
	if err := os.WriteFile(filepath.Join(dir, "patchbay.yaml"), []byte(config.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	return &crash{
		t: t, dir: dir, program: program, serving: map[string]crashPlugin{}, told: map[string]bool{},
		stopped: map[string]bool{}, acknowledged: map[string]string{},
	}
}

// start starts a daemon.
func (c *crash) start() *exec.Cmd {
	c.t.Helper()
	daemon := exec.Command("patchbay", "run", "--config", filepath.Join(c.dir, "patchbay.yaml"))
	daemon.Env = append(os.Environ(), "TMPDIR="+filepath.Join(c.dir, "tmp"))
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		c.t.Fatal(err)
	}
	return daemon
}

// round runs one daemon from its start to its violent end.
func (c *crash) round() {
	c.t.Helper()
	began := time.Now()
	daemon := c.start()
	var running sync.WaitGroup // what talks to the daemon
	ctx, cancel := context.WithCancel(c.t.Context())
	defer func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
		running.Wait()
		cancel()
	}()
	cl := client.New(filepath.Join(c.dir, "control.sock"))
	defer cl.Close()
	c.checkFirst(c.firstList(ctx, cl), began)
	running.Go(func() { c.follow(ctx, cl) })
	for end := time.Now().Add(rand.N(400 * time.Millisecond)); time.Now().Before(end); {
		c.churn(ctx, cl, &running)
	}
	_ = daemon.Process.Kill()
	_ = daemon.Wait()
	running.Wait()
	c.hear()
	if rand.N(2) == 0 { // else the next daemon meets those that are just ending
		c.awaitNoOrphan()
	}
}

// checkFirst checks what a daemon that has just been started knows.
func (c *crash) checkFirst(plugins []client.Plugin, began time.Time) {
	c.t.Helper()
	known, remembered := map[string]string{}, map[string]bool{}
	for _, p := range plugins {
		switch {
		case p.Instance == "":
		case known[p.Instance] != "":
			c.t.Errorf("instance %s of %s is there twice", p.Instance, p.Name)
		case remembered[p.SocketPath]:
			c.t.Errorf("socket %s is there as two instances", p.SocketPath)
		}
		known[p.Instance] = p.State
		remembered[p.SocketPath] = p.RegisteredAt != nil && p.RegisteredAt.Before(began)
	}
	for socket := range c.told {
		if !remembered[socket] {
			c.t.Errorf("%s was told that it is registered before the kill, and is not remembered after it", socket)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.found += len(c.acknowledged)
	for socket, instance := range c.acknowledged {
		if known[instance] == "" {
			c.t.Errorf("%s was registered as instance %s before the kill, which is not known after it", socket, instance)
		}
	}
}

// follow reads the events of one daemon until it has been killed.
func (c *crash) follow(ctx context.Context, cl *client.Client) {
	for e, err := range cl.Events(ctx, client.EventsOptions{Follow: true}) {
		if err != nil {
			return
		}
		c.mu.Lock()
		switch e.Kind {
		case "registered":
			c.counts.acknowledged++
			if e.Type != crashType {
				c.counts.launches++
			} else if !c.stopped[e.SocketPath] {
				c.acknowledged[e.SocketPath] = e.Instance
			}
		case "superseded":
			c.counts.superseded++
		}
		c.mu.Unlock()
	}
}

// hear takes over what the plugins were told.
func (c *crash) hear() {
	for socket, p := range c.serving {
		for told := true; told; {
			select {
			case status := <-p.Statuses():
				if delete(c.told, socket); status.PluginRegistered {
					c.told[socket] = true
				}
			default:
				told = false
			}
		}
	}
}

// firstList returns the first thing that a daemon that has just been started says.
func (c *crash) firstList(ctx context.Context, cl *client.Client) []client.Plugin {
	c.t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		listing, err := cl.List(ctx)
		if err == nil {
			return listing.Plugins
		}
	}
	c.t.Fatal("the daemon does not answer")
	return nil
}

// churn has one thing happen to one plugin.
func (c *crash) churn(ctx context.Context, cl *client.Client, running *sync.WaitGroup) {
	c.t.Helper()
	switch n := rand.N(40); {
	case n == 0:
		c.killLaunched(ctx, cl)
	case n == 1:
		c.counts.generations++
		// It may fail: the daemon is killed, or the plugin ends meanwhile.
		running.Go(func() { _, _ = cl.Restart(ctx, fmt.Sprint("l", rand.N(crashLaunched))) })
	case n == 2:
		c.serveProcess()
	case len(c.serving) > 20:
		c.stopOne()
	case n < 20:
		c.serve(fmt.Sprint("shared", rand.N(3)))
	default:
		c.serve(fmt.Sprint("p", c.next))
	}
}

func (c *crash) socket() string {
	c.next++
	return filepath.Join(c.dir, "plugins", fmt.Sprint(c.next, ".sock"))
}

// serve starts a plugin in this process.
func (c *crash) serve(name string) {
	c.t.Helper()
	socket := c.socket()
	p := pluginwatcher.NewTestExamplePlugin(name, crashType, socket, "v1beta1")
	if err := p.Serve("v1beta1"); err != nil {
		c.t.Fatal(err)
	}
	c.serving[socket] = p
}

// processPlugin is a plugin in a process of its own, whose end is a kill.
type processPlugin struct {
	cmd      *exec.Cmd
	socket   string
	statuses chan *registerapi.RegistrationStatus
	read     chan struct{}
}

func (p *processPlugin) Statuses() <-chan *registerapi.RegistrationStatus { return p.statuses }

func (p *processPlugin) Stop() error {
	_ = p.cmd.Process.Kill()
	<-p.read
	_ = p.cmd.Wait()
	return os.Remove(p.socket)
}

func (c *crash) serveProcess() {
	c.t.Helper()
	p := &processPlugin{socket: c.socket(), statuses: make(chan *registerapi.RegistrationStatus, 100), read: make(chan struct{})}
	p.cmd = exec.Command("plugin", p.socket, crashType, fmt.Sprint("p", c.next), "v1beta1")
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		c.t.Fatal("a plugin's process did not begin to serve")
	}
	go func() {
		defer close(p.read)
		for lines.Scan() {
			p.statuses <- &registerapi.RegistrationStatus{PluginRegistered: strings.HasPrefix(lines.Text(), "registered=true")}
		}
	}()
	c.serving[p.socket] = p
}

// stopOne stops a plugin, or kills it if it is a process.
func (c *crash) stopOne() {
	c.t.Helper()
	for socket, p := range c.serving {
		c.mu.Lock()
		c.stopped[socket] = true
		delete(c.acknowledged, socket)
		c.mu.Unlock()
		delete(c.serving, socket)
		delete(c.told, socket)
		if _, killed := p.(*processPlugin); killed {
			c.counts.pluginKills++
		}
		if err := p.Stop(); err != nil {
			c.t.Error(err)
		}
		return
	}
}

// killLaunched kills a launched plugin, if there is one.
func (c *crash) killLaunched(ctx context.Context, cl *client.Client) {
	c.t.Helper()
	plugins, err := cl.ListLaunched(ctx)
	if err != nil {
		c.t.Error(err)
		return
	}
	p := plugins[rand.N(len(plugins))]
	if p.PID == 0 {
		return
	}
	// The handle comes first: it stays with the process that is looked at.
	process, err := os.FindProcess(p.PID)
	if err != nil || !c.ours(p.PID) {
		return
	}
	defer func() { _ = process.Release() }()
	if process.Kill() == nil {
		c.counts.pluginKills++
	}
}

// ours says whether a process runs the program that is tested.
func (c *crash) ours(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && exe == c.program
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
	daemon := c.start()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	cl := client.New(filepath.Join(c.dir, "control.sock"))
	defer cl.Close()
	c.checkFirst(c.firstList(ctx, cl), time.Now())
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { c.follow(ctx, cl) })
	defer func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	}()
	for i := range crashLaunched {
		if _, err := cl.Wait(ctx, "ExamplePlugin", fmt.Sprint("l", i), client.GoalRegistered); err != nil {
			c.t.Error(err)
		}
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
	left = slices.DeleteFunc(left, func(path string) bool { return path == "patchbay.yaml" || path == "state.db" })
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
		c.t.Errorf("%d things are left: %.20q", len(left), left)
	}
}

func (c *crash) stopAll() {
	c.t.Helper()
	for len(c.serving) > 0 {
		c.stopOne()
	}
}
