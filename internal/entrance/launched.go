package entrance

import (
	"context"
	"math"
	"os"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// Launched is what was launched, as the pipeline sees it.
type Launched struct {
	Host     *host.Host
	Launcher *launcher.Launcher
	// Admission is what was asked; nil if everything may run.
	Admission plugin.AdmissionPlugin
}

// Source implements [reconciler.Config].Source.
func (l *Launched) Source(socketPath string) reconciler.Source {
	// It may serve before its start has returned here.
	if p := l.Host.PluginAt(socketPath); p != nil && p.PluginSocket() == socketPath {
		return reconciler.SourceLaunched
	}
	if _, is := l.Launcher.FrontAt(socketPath); is {
		return reconciler.SourceLaunched
	}
	return reconciler.SourceDiscovered
}

// At implements [pipeline.Config].Launched.
func (l *Launched) At(path string) pipeline.Launch {
	if p := l.Host.PluginAt(path); p != nil {
		return process{p}
	}
	if p, is := l.Launcher.FrontAt(path); is {
		return front{p}
	}
	return nil
}

// front is a launched plugin for which this process answers, as discovery sees it.
type front struct{ launcher.Plugin }

// Owns implements [pipeline.Launch].
func (front) Owns(_ context.Context, pid int) bool { return pid == os.Getpid() }

// Name implements [pipeline.Launch].
func (f front) Name() string { return f.Plugin.Name }

// User implements [pipeline.Launch]: what the plugin says of itself counts as its user's word.
func (f front) User() (uid, gid uint32, is bool) {
	if f.Plugin.User == "" {
		return 0, 0, false
	}
	uid, gid, err := host.AccountID(f.Plugin.User, f.Group)
	if err != nil {
		return math.MaxUint32, math.MaxUint32, true // nobody's
	}
	return uid, gid, true
}

// Introduction implements [pipeline.Launch]: the front is asked, and says what it knows.
func (front) Introduction() []byte { return nil }

// process is a launched plugin as discovery sees it.
type process struct{ *host.PluginProcess }

// User implements [pipeline.Launch].
func (p process) User() (uid, gid uint32, is bool) { return p.RegisteredFor() }

// Owns implements [pipeline.Launch].
func (p process) Owns(ctx context.Context, pid int) bool {
	select {
	case <-p.Started():
		_, _, registered := p.RegisteredFor()
		return p.PluginProcess.Owns(pid) || registered && pid == os.Getpid()
	case <-ctx.Done():
		return false
	}
}

// Behind has the statuses of registered plugins say which are idle.
func (l *Launched) Behind(statuses []reconciler.Status) {
	for i, s := range statuses {
		if s.Source == reconciler.SourceLaunched && s.State == reconciler.StateRegistered &&
			l.Launcher.BehindFront(s.SocketPath) == launcher.StateIdle {
			statuses[i].State = reconciler.StateIdle
		}
	}
}

// Statuses describes the launched plugins that the pipeline does not know: those that do not serve, or not yet, or not any more.
func (l *Launched) Statuses(known []reconciler.Status) []reconciler.Status {
	var statuses []reconciler.Status
	for _, p := range l.Launcher.Plugins() {
		serves := func(s reconciler.Status) bool { return p.Socket != "" && s.SocketPath == p.Socket }
		if slices.ContainsFunc(known, serves) {
			continue
		}
		statuses = append(statuses, reconciler.Status{
			Name: p.Name, State: reconciler.State(p.State), Source: reconciler.SourceLaunched, SocketPath: p.Socket,
			FirstSeen: p.Since, Since: p.Since, Attempts: p.Restarts, NextRetry: p.NextStart, LastError: p.LastError,
		})
	}
	return statuses
}

// closeTimeout is how long launched plugins that nobody supervises may take to end.
const closeTimeout = 10 * time.Second

// Close ends all that was launched. It blocks until that has ended.
func (l *Launched) Close() {
	l.Launcher.Close()
	ending, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if l.Admission != nil {
		l.Admission.Close(ending)
	}
	l.Host.Close(ending)
}
