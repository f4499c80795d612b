// Package demo implements the command "patchbay demo": a daemon and two plugins, as real processes in a temporary directory.
//
// [Run] starts this program again as the daemon and as the plugins ([Plugin]). It starts and kills them as an operator would, follows the
// daemon's events, calls the plugins through the daemon and prints what happens. All children exit when their standard input is closed, so
// they do not outlive the first process.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// The hidden commands that run a daemon, with the arguments PLUGIN-DIR STATE CONTROL-SOCKET, and [Plugin], with the arguments of that
// function. Both commands exit when their standard input is closed.
const (
	HostCommand   = "demo-host"
	PluginCommand = "demo-plugin"
)

// timeout bounds the demo, which takes about a second, or ten times as long on a slow machine.
const timeout = time.Minute

// Run runs the demo and writes what happens to out. It returns an error if ctx is done or a step fails. When it returns, all processes that
// it started have exited and all files that it created are removed.
func Run(ctx context.Context, out io.Writer) (err error) {
	const room = 64 // for the longest path of a socket below dir
	dir, err := os.MkdirTemp(sock.TempDir(room), "patchbay-demo-")
	if err == nil {
		dir, err = filepath.Abs(dir) // TMPDIR may be relative, but plugins announce absolute paths
	}
	if err != nil {
		return fmt.Errorf("cannot create a directory for the demo: %w", err)
	}
	s := &show{out: out, began: time.Now(), dir: dir, plugins: filepath.Join(dir, "plugins"), unfollow: func() {}}
	s.client = client.New(filepath.Join(dir, "control.sock"))
	defer func() {
		s.unfollow()
		s.client.Close()
		for _, p := range s.children {
			p.kill()
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err := os.Mkdir(s.plugins, 0o750); err != nil {
		return fmt.Errorf("cannot create a plugin directory for the demo: %w", err)
	}
	s.say("demo", "everything happens in %s, with real processes", dir)
	stepCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, step := range []func(context.Context){s.startAll, s.upgrade, s.killBeta, s.restartDaemon} {
		if s.err == nil {
			step(stepCtx)
		}
	}
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted; all processes and files of the demo are gone")
	case s.err != nil:
		return fmt.Errorf("the demo failed: %w%s", s.err, s.childErrors())
	}
	return s.summary()
}

// show is a running demo. After an error, its methods do nothing.
type show struct {
	out      io.Writer
	began    time.Time
	dir      string
	plugins  string // the plugin directory
	children []*process
	err      error

	client   *client.Client
	next     func() (*patchbayv1.Event, error, bool) // of the present daemon
	unfollow func()
	events   []*patchbayv1.Event // not returned by event yet

	daemon, alpha, beta *process

	alphaInstance string
	upgradeCalls  int
	upgradeTook   time.Duration
	deathTook     time.Duration
	restartTook   time.Duration
}

// say writes one line. It ignores errors of the write.
func (s *show) say(who, format string, args ...any) {
	if s.err == nil {
		fmt.Fprintf(s.out, "%6.3f s  %-7s %s\n", time.Since(s.began).Seconds(), who, fmt.Sprintf(format, args...))
	}
}

// pollPause is the time between two attempts to connect to a daemon that is starting.
const pollPause = 5 * time.Millisecond

// startDaemon starts a daemon, waits until it answers, and follows its events until ctx is done.
func (s *show) startDaemon(ctx context.Context) {
	if s.err != nil {
		return
	}
	began := time.Now()
	s.daemon, s.err = startProcess(s.dir, HostCommand, s.plugins, filepath.Join(s.dir, "state.db"), filepath.Join(s.dir, "control.sock"))
	if s.err != nil {
		return
	}
	s.children = append(s.children, s.daemon)
	s.say("daemon", "started, pid %d", s.daemon.pid())
	s.next, s.unfollow = iter.Pull2(s.client.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true, Since: timestamppb.New(began)}))
	for {
		if _, s.err = s.client.Version(ctx); !errors.Is(s.err, client.ErrNotRunning) {
			return
		}
		select {
		case <-s.daemon.ended:
			s.err = errors.New("the daemon has exited")
			return
		default:
		}
		if !backoff.Pause(ctx, pollPause) {
			return
		}
	}
}

// startPlugin starts a plugin. It returns nil after an error.
func (s *show) startPlugin(name, file, versions string) (p *process) {
	if s.err != nil {
		return nil
	}
	p, s.err = startProcess(s.dir, PluginCommand, name, filepath.Join(s.plugins, file), versions)
	if s.err == nil {
		s.children = append(s.children, p)
		s.say(name, "started, pid %d, offers %s on %s", p.pid(), versions, file)
	}
	return p
}

// event waits for an event of a plugin that it has not returned before, and returns the plugin's instance.
func (s *show) event(kind, name string) (instance string) {
	for i := 0; s.err == nil; i++ {
		if i == len(s.events) {
			e, err, _ := s.next() // the sequence ends only with an error
			if err != nil {
				s.err = fmt.Errorf("waited for the event %q of %s: %w", kind, name, err)
				break
			}
			s.events = append(s.events, e)
		}
		if e := s.events[i]; e.Kind == kind && e.Name == name {
			s.events = slices.Delete(s.events, i, i+1)
			return e.Instance
		}
	}
	return ""
}

// registered waits until a plugin is registered.
func (s *show) registered(name string) (instance string) {
	instance = s.event("registered", name)
	s.say("daemon", "registered %s/%s, instance %s", PluginType, name, instance)
	return instance
}

func (s *show) call(ctx context.Context, name, version string) {
	if s.err != nil {
		return
	}
	conn, err := s.client.Conn(PluginType, name)
	if err == nil {
		err = errors.Join(callExample(ctx, conn, version), conn.Close())
	}
	if err != nil {
		s.err = fmt.Errorf("cannot call %s: %w", name, err)
	}
	s.say("demo", "reached %s through the daemon and called %s GetExampleInfo: answered", name, version)
}

// childErrors returns what children that have exited wrote to standard error.
func (s *show) childErrors() string {
	var all strings.Builder
	for _, p := range s.children {
		select {
		case <-p.ended:
			if text := strings.TrimSpace(p.stderr.String()); text != "" {
				fmt.Fprintf(&all, "; process %d: %s", p.pid(), text)
			}
		default:
		}
	}
	return all.String()
}

func (s *show) startAll(ctx context.Context) {
	s.startDaemon(ctx)
	s.alpha = s.startPlugin("alpha", "alpha.sock", "v1beta1")
	s.beta = s.startPlugin("beta", "beta.sock", "v1beta2")
	s.registered("alpha")
	s.registered("beta")
	s.call(ctx, "alpha", "v1beta1")
	s.call(ctx, "beta", "v1beta2")
}

// upgrade replaces alpha by a second instance while it calls alpha continuously.
func (s *show) upgrade(ctx context.Context) {
	conn, err := s.client.Conn(PluginType, "alpha")
	if err != nil {
		s.err = err
		return
	}
	defer conn.Close()
	calling, stop := context.WithCancel(ctx)
	var caller sync.WaitGroup
	var failed int
	var last error
	caller.Go(func() {
		for calling.Err() == nil {
			err := callExample(calling, conn, "v1beta1")
			if calling.Err() != nil {
				return
			}
			s.upgradeCalls++
			if err != nil {
				failed, last = failed+1, err
			}
		}
	})
	s.say("demo", "calls alpha over and over")
	s.replaceAlpha(ctx)
	stop()
	caller.Wait()
	if s.err == nil && failed > 0 {
		s.err = fmt.Errorf("%d of %d calls failed during the upgrade: %w", failed, s.upgradeCalls, last)
	}
	s.say("demo", "made %d calls during the upgrade, %d failed", s.upgradeCalls, failed)
}

func (s *show) replaceAlpha(ctx context.Context) {
	began, old := time.Now(), s.alpha
	s.alpha = s.startPlugin("alpha", "alpha-2.sock", "v1beta1,v1beta2")
	s.alphaInstance = s.registered("alpha")
	superseded := s.event("superseded", "alpha")
	s.say("daemon", "superseded instance %s of alpha: new calls go to the new one", superseded)
	if s.err == nil {
		s.err = old.stop(ctx)
	}
	s.event("deregistered", "alpha")
	s.say("alpha", "the old process, pid %d, has ended", old.pid())
	s.upgradeTook = time.Since(began)
}

func (s *show) killBeta(context.Context) {
	began := time.Now()
	s.beta.kill()
	s.say("beta", "killed with SIGKILL; its socket is still there")
	s.event("unreachable", "beta")
	s.deathTook = time.Since(began)
	s.event("deregistered", "beta")
	s.say("daemon", "noticed that no process accepts on the socket of beta, and deregistered it")
}

// restartDaemon kills the daemon and starts another one on the same state.
func (s *show) restartDaemon(ctx context.Context) {
	began := time.Now()
	s.daemon.kill()
	s.unfollow()
	s.events = nil
	s.say("daemon", "killed with SIGKILL; alpha does not notice")
	s.startDaemon(ctx)
	restored := s.event("restored", "alpha")
	s.say("daemon", "remembers alpha, instance %s, and checks whether it is alive", restored)
	if instance := s.registered("alpha"); s.err == nil && (restored != s.alphaInstance || instance != s.alphaInstance) {
		s.err = fmt.Errorf("alpha was instance %s before the restart, restored as %s and registered as %s",
			s.alphaInstance, restored, instance)
	}
	s.restartTook = time.Since(began)
	s.call(ctx, "alpha", "v1beta2")
}

func (s *show) summary() error {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
	fmt.Fprintln(s.out)
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "plugins found, registered and called\t2\n")
	fmt.Fprintf(w, "upgrade without a gap\t%d calls, 0 failed, %s from the start of the new process to the end of the old\n",
		s.upgradeCalls, ms(s.upgradeTook))
	fmt.Fprintf(w, "death by SIGKILL noticed\tafter %s\n", ms(s.deathTook))
	fmt.Fprintf(w, "daemon killed and restarted\tthe same instance registered again after %s\n", ms(s.restartTook))
	return w.Flush()
}
