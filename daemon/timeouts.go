package daemon

import (
	"sync/atomic"
	"time"
)

// clientTimeouts are the timeouts for calls to plugins, by TYPE or TYPE/NAME. They can be replaced while they are read.
type clientTimeouts struct {
	byKey atomic.Pointer[map[string]time.Duration]
}

func (c *clientTimeouts) set(byKey map[string]time.Duration) { c.byKey.Store(&byKey) }

// of returns the timeout for one plugin, nil for none. It is the ClientTimeout of a patchbay.Config.
func (c *clientTimeouts) of(ptype, name string) *time.Duration {
	byKey := *c.byKey.Load()
	for _, key := range []string{ptype + "/" + name, ptype} {
		if timeout, ok := byKey[key]; ok {
			return &timeout
		}
	}
	return nil
}
