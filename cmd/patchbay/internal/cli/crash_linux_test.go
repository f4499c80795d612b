package cli_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

var kills = flag.Int("kills", 20, "how often TestKillNineLosesNothing kills the daemon")

const (
	crashType = "T"
)

// crashLaunched are the plugins that the daemon launches, by what the catalogue says of their starts. The last is started on demand.
var crashLaunched = []string{"autostart: true", "upgrade: recreate", "upgrade: handover", "start: onDemand, idle: 20ms"}

// TestKillNineLosesNothing kills a daemon again and again, at random instants, and its plugins too, while plugins come, go, and supersede
// each other, and launched ones are restarted. What it had said was registered, to the plugin or in its events, the next daemon knows at
// once, from before, and as the same instance, once. No daemon tells a plugin twice that it is registered, unless that was over in between,
// or another one with its name came. Nothing is left in the end.
func TestKillNineLosesNothing(t *testing.T) {
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c := newCrash(t, dir)
	defer c.stopAll()
	if testing.Short() {
		*kills = min(*kills, 10)
	}
	for range *kills {
		c.round()
	}
	c.finish()
	n := &c.counts
	t.Logf("\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d\n%-28s %7d",
		"daemons killed", *kills, "plugins killed", n.pluginKills, "registrations acknowledged", n.acknowledged,
		"found again after a kill", n.found, "told so by each daemon", n.notices, "superseded", n.superseded, "launched plugins registered", n.launches,
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
	knows   map[string]bool // by socket: the plugin itself was told that it is registered, and was not stopped

	mu           sync.Mutex
	counts       counts // those of events; the others are the one goroutine's
	stopped      map[string]bool
	acknowledged map[string]string // instance by socket, of those that were not stopped
	asked, told  map[call]int      // how often a daemon asked plugins who they are, and told them that they are registered
	over         map[string]int    // by socket: how often a daemon said that a registration is over
}

// call is one of a daemon, a process, to a plugin.
type call struct {
	name, socket string
	by           int
}

type counts struct {
	pluginKills, acknowledged, found, notices, superseded, launches, generations, orphans, leftovers int
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
	for i, start := range crashLaunched {
		fmt.Fprintf(&config, "- {name: l%[1]d, command: [hello], env: {HELLO_NAME: l%[1]d}, %[2]s, "+
			"restart: {limit: 1000000, backoff: {min: 1ms, max: 10ms}}}\n", i, start)
	}
	if err := os.WriteFile(filepath.Join(dir, "patchbay.yaml"), []byte(config.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	return &crash{
		t: t, dir: dir, program: program, serving: map[string]crashPlugin{}, knows: map[string]bool{},
		stopped: map[string]bool{}, acknowledged: map[string]string{}, asked: map[call]int{}, told: map[call]int{},
		over: map[string]int{},
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
	running.Go(func() { c.follow(ctx, cl, began) })
	for end := time.Now().Add(rand.N(400 * time.Millisecond)); time.Now().Before(end); {
		c.churn(ctx, cl, &running)
	}
	_ = daemon.Process.Kill()
	_ = daemon.Wait()
	running.Wait()
	c.hear()
	c.checkTold()
	if rand.N(2) == 0 { // else the next daemon meets those that are just ending
		c.awaitNoOrphan()
	}
}

// checkFirst checks what a daemon that has just been started knows.
func (c *crash) checkFirst(plugins []*patchbayv1.Plugin, began time.Time) {
	c.t.Helper()
	known, remembered := map[string]string{}, map[string]bool{}
	for _, p := range plugins {
		switch {
		case p.Instance == "":
		case known[p.Instance] != "":
			c.t.Errorf("instance %s of %s is there twice", p.Instance, p.Name)
		case remembered[p.SocketPath] && p.Type == crashType: // at a launched plugin's path another one may serve by now
			c.t.Errorf("socket %s is there as two instances", p.SocketPath)
		}
		known[p.Instance] = p.State
		remembered[p.SocketPath] = p.RegisteredAt != nil && p.RegisteredAt.AsTime().Before(began)
	}
	for socket := range c.knows {
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
func (c *crash) follow(ctx context.Context, cl *client.Client, began time.Time) {
	for e, err := range cl.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true, Since: timestamppb.New(began)}) {
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
		case "failed", "deregistered":
			c.over[e.SocketPath]++
		}
		c.mu.Unlock()
	}
}

// hear takes over what the plugins were told.
func (c *crash) hear() {
	for socket, p := range c.serving {
		for told := true; told; {
			select {
			case said := <-p.Statuses():
				if delete(c.knows, socket); said.PluginRegistered {
					c.knows[socket] = true
				}
			default:
				told = false
			}
		}
	}
}

// checkTold checks that nobody was told too often by one daemon, and forgets what was.
func (c *crash) checkTold() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for of, n := range c.told {
		most := 1 + c.over[of.socket]
		for other, asked := range c.asked {
			if other.name == of.name && other.by == of.by && other.socket != of.socket {
				most += asked // it is told again when that one has gone
			}
		}
		if c.counts.notices++; n > most {
			c.t.Errorf("process %d told %s, %s, %d times that it is registered; at most %d are right", of.by, of.name, of.socket, n, most)
		}
	}
	clear(c.asked)
	clear(c.told)
	clear(c.over)
}

// firstList returns the first thing that a daemon that has just been started says.
func (c *crash) firstList(ctx context.Context, cl *client.Client) []*patchbayv1.Plugin {
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
		running.Go(func() { _, _ = cl.Restart(ctx, fmt.Sprint("l", rand.N(len(crashLaunched)))) })
	case n == 2:
		c.serveProcess()
	case n < 6:
		running.Go(func() { _ = c.call(ctx) }) // it may fail for the same reasons
	case len(c.serving) > 20:
		c.stopOne()
	case n < 20:
		c.serve(fmt.Sprint("shared", rand.N(3)))
	default:
		c.serve(fmt.Sprint("p", c.next))
	}
}

// call calls the plugin that is started on demand.
func (c *crash) call(ctx context.Context, options ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := grpc.NewClient("unix:"+filepath.Join(c.dir, "stable", "ExamplePlugin", fmt.Sprintf("l%d.sock", len(crashLaunched)-1)),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = v1beta1.NewExampleClient(conn).GetExampleInfo(ctx, &v1beta1.ExampleRequest{}, options...)
	if status.Code(err) == codes.Unimplemented && strings.Contains(err.Error(), "method GetExampleInfo not implemented") {
		return nil // says the plugin
	}
	return err
}

func (c *crash) socket() string {
	c.next++
	return filepath.Join(c.dir, "plugins", fmt.Sprint(c.next, ".sock"))
}

// serve starts a plugin in this process.
func (c *crash) serve(name string) {
	c.t.Helper()
	socket := c.socket()
	p, err := newCountedPlugin(name, socket, func(what word, by int) { c.note(what, call{name, socket, by}) })
	if err != nil {
		c.t.Fatal(err)
	}
	c.serving[socket] = p
}

// word is what a daemon did with a plugin.
type word string

const (
	asked      word = "asked"
	registered word = "registered" // told so
	refused    word = "refused"    // told that it is not registered
)

// note counts what a daemon did with a plugin.
func (c *crash) note(what word, by call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch what {
	case asked:
		c.asked[by]++
	case registered:
		c.told[by]++
	case refused: // which may come again
	}
}

func init() { programs["counted"] = serveCounted } //nolint:gochecknoinits // it is there on Linux only

// serving is the line of a plugin's process that serves. A daemon may be quicker: it is not always the first.
const serving = "serving"

// serveCounted is the program counted NAME SOCKET, a plugin that prints a line for what a daemon does with it: the word, and the process.
func serveCounted() {
	p, err := newCountedPlugin(os.Args[1], os.Args[2], func(what word, by int) { fmt.Println(what, by) })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(serving)
	p.served.Wait() // until it is killed
}

func (c *crash) serveProcess() {
	c.t.Helper()
	p := &processPlugin{socket: c.socket(), statuses: make(chan *registerapi.RegistrationStatus, 100), read: make(chan struct{})}
	name := fmt.Sprint("process", c.next)
	p.cmd = exec.Command("counted", name, p.socket)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	serves := make(chan struct{})
	go func() {
		defer close(p.read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == serving {
				close(serves)
				continue
			}
			var what word
			var by int
			if _, err := fmt.Sscan(lines.Text(), &what, &by); err != nil {
				c.t.Errorf("a plugin's process printed %q: %v", lines.Text(), err)
				continue
			}
			c.note(what, call{name, p.socket, by})
			if what != asked {
				p.statuses <- &registerapi.RegistrationStatus{PluginRegistered: what == registered}
			}
		}
	}()
	select {
	case <-serves:
	case <-p.read:
		c.t.Fatal("a plugin's process did not begin to serve")
	}
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
		delete(c.knows, socket)
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
	if p.Pid == 0 {
		return
	}
	// The handle comes first: it stays with the process that is looked at.
	process, err := os.FindProcess(int(p.Pid))
	if err != nil || !c.ours(int(p.Pid)) {
		return
	}
	defer func() { _ = process.Release() }()
	if process.Kill() == nil {
		c.counts.pluginKills++
	}
}

func (c *crash) stopAll() {
	c.t.Helper()
	for len(c.serving) > 0 {
		c.stopOne()
	}
}
