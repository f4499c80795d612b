package pluginwatcher

import "github.com/patchbay-dev/patchbay/internal/discover/pipeline"

// Pipeline is what a Watcher runs, with the methods that a runtime has.
func (w *Watcher) Pipeline() *pipeline.Watcher { return w.pipeline }

// WithConfig returns a Watcher with more than NewWatcher configures. Its paths are absolute.
func WithConfig(cfg pipeline.Config) *Watcher { return &Watcher{pipeline: pipeline.New(cfg)} }
