package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// fast are the managers that take turns where the kubelet would take the processor from the others or keep them waiting.
var fast = []string{"floor", "watcher", "runtime"}

// floorRaw has plugins of its own kind.
const floorRaw = "floor-raw"

// kubelet looks at what it has found once in this period, and then waits that long.
const (
	kubelet       = "kubelet"
	kubeletPeriod = time.Second
)

// contender is a contestant with plugins of its own.
type contender struct {
	*process
	name    string
	plugins *process
	sockets Sockets
}

// prepare makes a contender that is not started yet.
func prepare(b testing.TB, name string) *contender {
	b.Helper()
	root := b.TempDir()
	c := &contender{name: name, sockets: Sockets{
		Dir: filepath.Join(root, "plugins"), Staging: filepath.Join(root, "staging"), Raw: name == floorRaw,
	}}
	for _, dir := range []string{c.sockets.Dir, c.sockets.Staging} {
		if err := os.Mkdir(dir, 0o750); err != nil {
			b.Fatal(err)
		}
	}
	c.plugins = start(b, rolePlugins, "")
	return c
}

// start starts the contestant and returns when plugins that appear are found.
func (c *contender) start() {
	c.plugins.b.Helper()
	c.process = start(c.plugins.b, c.name, c.sockets.Dir)
	ask[proc.None](c.process, "Manager.Ready")
}

// contend starts a contestant with n plugins that are there already, and returns when all of them are registered.
func contend(b testing.TB, name string, n int) *contender {
	b.Helper()
	c := prepare(b, name)
	there := names("there", n)
	c.plugins.call("Plugins.Prepare", c.there(there), new(proc.None))
	c.start()
	c.plugins.call("Plugins.Told", there, new(int64))
	c.call("Manager.Settled", n, new(proc.None))
	return c
}

// stop ends the contestant and its plugins.
func (c *contender) stop() {
	c.b.Helper()
	c.process.stop()
	c.plugins.stop()
}

// pause waits until a contestant that looks once in a while may be at any point of its period.
func (c *contender) pause() {
	if c.name == kubelet {
		<-time.After(rand.N(kubeletPeriod))
	}
}

// named returns the sockets of the contender with other names.
func (c *contender) named(staged bool, names ...string) Sockets {
	s := c.sockets
	s.Staged, s.Names = staged, names
	return s
}

// there returns sockets that are in the plugin directory from the start.
func (c *contender) there(names []string) Sockets {
	return Sockets{Staging: c.sockets.Dir, Names: names, Raw: c.sockets.Raw}
}

// names returns n names.
func names(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return names
}

// turns calls do for each contestant, of which another one goes first in each round.
func turns[T any](contestants []T, round int, do func(T)) {
	for turn := range contestants {
		do(contestants[(round+turn)%len(contestants)])
	}
}
