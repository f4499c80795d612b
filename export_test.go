package patchbay

import "github.com/patchbay-dev/patchbay/internal/pluginruntime"

// Internal returns the runtime behind r.
func (r *Runtime) Internal() *pluginruntime.Runtime { return r.rt }
