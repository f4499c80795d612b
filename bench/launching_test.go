package bench

import (
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// launching is a contestant that launches plugins of a program.
type launching struct {
	*process
	name, program string
}

// open starts contestants that launch plugins, and builds what they launch.
func open(b testing.TB, names ...string) []launching {
	b.Helper()
	contestants := make([]launching, len(names))
	for i, name := range names {
		contestants[i] = launching{start(b, name, b.TempDir()), name, build(b, pluginOf[name])}
	}
	return contestants
}

func build(b testing.TB, folder string) string {
	b.Helper()
	path, err := program(folder)
	if err != nil {
		b.Fatal(err)
	}
	return path
}

// launch launches plugins that stay.
func (l launching) launch(n int) {
	l.b.Helper()
	l.call("Launcher.Launch", launch.Many{Program: l.program, N: n}, new(proc.None))
}

// endAll ends contestants with their plugins.
func endAll(contestants []launching) {
	for _, l := range contestants {
		l.stop()
	}
}
