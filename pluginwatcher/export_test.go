package pluginwatcher

import "github.com/patchbay-dev/patchbay/internal/discover/pipeline"

// Pipeline is what a Watcher runs, with the methods that a runtime has.
func (w *Watcher) Pipeline() *pipeline.Watcher { return w.pipeline }

// With returns a Watcher that runs a pipeline, whose paths are absolute.
func With(p *pipeline.Watcher) *Watcher { return &Watcher{pipeline: p} }
