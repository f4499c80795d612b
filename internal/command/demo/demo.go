// Package demo shows the whole life of two plugins, with real processes, in a temporary directory: it is the command "patchbay demo".
//
// The program runs itself several times more: as a daemon ([Host]) and as plugins ([Plugin]). The first process ([Run]) starts and kills
// the others, like an operator would, follows the daemon's events and calls the plugins through it, and tells what happens. All children
// end when their standard input does, so none survives the first process whatever becomes of it.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// The commands of this program that run [Host], with the arguments PLUGIN-DIR STATE CONTROL-SOCKET, and [Plugin], with its own.
const (
	HostCommand   = "demo-host"
	PluginCommand = "demo-plugin"
)

// timeout bounds the demo. Nothing in it takes long unless it has failed.
const timeout = 9 * time.Second

// Run shows the demo and writes what happens to out. It ends early, with an error, if ctx ends or a step fails. When it returns, no
// process that it started runs and no file that it made exists.
func Run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "patchbay-demo-")
	if err == nil {
		dir, err = filepath.Abs(dir) // TMPDIR may be relative, and plugins announce where they serve
	}
	if err != nil {
		return fmt.Errorf("cannot make a directory for the demo: %w", err)
	}
	s := &show{out: out, began: time.Now(), dir: dir, plugins: filepath.Join(dir, "plugins")}
	defer func() {
		for _, p := range s.children {
			p.kill()
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err := os.Mkdir(s.plugins, 0o750); err != nil {
		return fmt.Errorf("cannot make a plugin directory for the demo: %w", err)
	}
	s.say("demo", "everything happens in %s, with real processes", dir)
	stepCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, step := range []func(context.Context) error{
		s.startDaemon, s.startPlugins, s.callPlugins, s.upgrade, s.killPlugin, s.restartDaemon,
	} {
		err := step(stepCtx)
		if ctx.Err() != nil {
			return errors.New("interrupted; all processes and files of the demo are gone")
		}
		if err != nil {
			return fmt.Errorf("the demo failed: %w%s", err, s.complaints())
		}
	}
	return s.summary()
}

// show is a demo under way.
type show struct {
	out      io.Writer
	began    time.Time
	dir      string
	plugins  string // the plugin directory
	children []*process

	daemon        *daemon
	alpha, beta   *process
	alphaInstance string
	upgradeCalls  int
	upgradeTook   time.Duration
	deathTook     time.Duration
	restartTook   time.Duration
}

// say writes one line. That nobody reads it is no reason to stop: the end is clean either way.
func (s *show) say(who, format string, args ...any) {
	fmt.Fprintf(s.out, "%6.3f s  %-7s %s\n", time.Since(s.began).Seconds(), who, fmt.Sprintf(format, args...))
}

func (s *show) startDaemon(ctx context.Context) error {
	d, err := startDaemon(ctx, s.dir, s.plugins)
	if d != nil {
		s.daemon = d
		s.children = append(s.children, d.process)
	}
	if err != nil {
		return err
	}
	s.say("daemon", "started, pid %d", d.pid())
	return nil
}

func (s *show) startPlugin(name, file, versions string) (*process, error) {
	p, err := startProcess(s.dir, io.Discard, PluginCommand, name, filepath.Join(s.plugins, file), versions)
	if err != nil {
		return nil, err
	}
	s.children = append(s.children, p)
	s.say(name, "started, pid %d, offers %s on %s", p.pid(), versions, file)
	return p, nil
}

// complaints is what children that have ended said last.
func (s *show) complaints() string {
	var all strings.Builder
	for _, p := range s.children {
		select {
		case <-p.ended:
			if text := strings.TrimSpace(p.stderr.String()); text != "" {
				fmt.Fprintf(&all, "; process %d said: %s", p.pid(), text)
			}
		default:
		}
	}
	return all.String()
}

// registered waits until a plugin is registered and says so.
func (s *show) registered(ctx context.Context, name string) (instance string, err error) {
	e, err := s.daemon.event(ctx, "registered", name)
	if err != nil {
		return "", err
	}
	s.say("daemon", "registered %s/%s, instance %s", PluginType, name, e.Instance)
	return e.Instance, nil
}

func (s *show) startPlugins(ctx context.Context) (err error) {
	if s.alpha, err = s.startPlugin("alpha", "alpha.sock", "v1beta1"); err != nil {
		return err
	}
	if s.beta, err = s.startPlugin("beta", "beta.sock", "v1beta2"); err != nil {
		return err
	}
	if _, err = s.registered(ctx, "alpha"); err != nil {
		return err
	}
	_, err = s.registered(ctx, "beta")
	return err
}

// call calls a plugin through the daemon.
func (s *show) call(ctx context.Context, name, version string) error {
	conn, err := s.daemon.client.Conn(PluginType, name)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := callExample(ctx, conn, version); err != nil {
		return fmt.Errorf("cannot call %s: %w", name, err)
	}
	s.say("demo", "reached %s through the daemon and called %s GetExampleInfo: answered", name, version)
	return nil
}

func (s *show) callPlugins(ctx context.Context) error {
	return errors.Join(s.call(ctx, "alpha", "v1beta1"), s.call(ctx, "beta", "v1beta2"))
}

// upgrade replaces alpha by a second instance while it is called without pause.
func (s *show) upgrade(ctx context.Context) error {
	conn, err := s.daemon.client.Conn(PluginType, "alpha")
	if err != nil {
		return err
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
	err = s.replaceAlpha(ctx)
	stop()
	caller.Wait()
	if err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d calls failed during the upgrade: %w", failed, s.upgradeCalls, last)
	}
	s.say("demo", "made %d calls during the upgrade, %d failed", s.upgradeCalls, failed)
	return nil
}

func (s *show) replaceAlpha(ctx context.Context) error {
	old := s.alpha
	began := time.Now()
	var err error
	if s.alpha, err = s.startPlugin("alpha", "alpha-2.sock", "v1beta1,v1beta2"); err != nil {
		return err
	}
	if s.alphaInstance, err = s.registered(ctx, "alpha"); err != nil {
		return err
	}
	superseded, err := s.daemon.event(ctx, "superseded", "alpha")
	if err != nil {
		return err
	}
	s.say("daemon", "superseded instance %s of alpha: new calls go to the new one", superseded.Instance)
	if err := old.stop(ctx); err != nil {
		return err
	}
	if _, err := s.daemon.event(ctx, "deregistered", "alpha"); err != nil {
		return err
	}
	s.say("alpha", "the old process, pid %d, has ended", old.pid())
	s.upgradeTook = time.Since(began)
	return nil
}

func (s *show) killPlugin(ctx context.Context) error {
	began := time.Now()
	s.beta.kill()
	s.say("beta", "killed with SIGKILL; its socket is still there")
	if _, err := s.daemon.event(ctx, "unreachable", "beta"); err != nil {
		return err
	}
	s.deathTook = time.Since(began)
	if _, err := s.daemon.event(ctx, "deregistered", "beta"); err != nil {
		return err
	}
	s.say("daemon", "noticed that nobody accepts on the socket of beta, and deregistered it")
	return nil
}

// restartDaemon kills the daemon and starts another one on the same state.
func (s *show) restartDaemon(ctx context.Context) error {
	began := time.Now()
	s.daemon.kill()
	s.say("daemon", "killed with SIGKILL; alpha does not notice")
	if err := s.startDaemon(ctx); err != nil {
		return err
	}
	restored, err := s.daemon.event(ctx, "restored", "alpha")
	if err != nil {
		return err
	}
	s.say("daemon", "remembers alpha, instance %s, and checks whether it lives", restored.Instance)
	instance, err := s.registered(ctx, "alpha")
	if err != nil {
		return err
	}
	if restored.Instance != s.alphaInstance || instance != s.alphaInstance {
		return fmt.Errorf("alpha was instance %s before the restart, restored as %s and registered as %s",
			s.alphaInstance, restored.Instance, instance)
	}
	s.restartTook = time.Since(began)
	return s.call(ctx, "alpha", "v1beta2")
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
