package dirwatch

import (
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// TestRules has a script for each rule of discovery. The safety scan is out of reach, so that events alone have to do.
func TestRules(t *testing.T) {
	for name, script := range map[string]string{
		"found at start, by birth": `
			> mkdir r/b; mkdir r/a; sock r/z; tick; sock r/b/y; tick; sock r/a/x; start
			+r/z
			+r/b/y
			+r/a/x`,
		"found when they appear": `
			> mkdir r/sub; start; sock r/x
			+r/x
			> sock r/sub/y
			+r/sub/y`,
		"found in a new directory": `
			> mkdir r; start; mkdir r/a/b/c; sock r/a/b/c/x
			+r/a/b/c/x
			> sock r/a/y
			+r/a/y`,
		"removed": `
			> mkdir r; sock r/x; start
			+r/x
			> rm r/x
			-r/x
			> sock r/x
			+r/x`,
		"hidden names are ignored at start": `
			> mkdir r/.d; sock r/.d/x; sock r/.x; mkdir r/d/.e/f; sock r/d/.e/f/x; sock r/y; start
			+r/y`,
		"hidden names are ignored later": `
			> mkdir r; start; mkdir r/.d; sock r/.d/x; sock r/.x; mkdir r/d/.e; sock r/d/.e/x; sock r/y
			+r/y`,
		"other files are ignored": `
			> mkdir r; file r/f; start; file r/g; rm r/f; mv r/g r/h; symlink /dev/null r/n; sock r/x
			+r/x`,
		"symbolic links inside a root are not followed at start": `
			> mkdir r; mkdir out; sock out/x; symlink ../out r/dir; symlink ../out/x r/file; start`,
		"symbolic links inside a root are not followed later": `
			> mkdir r; mkdir out; sock out/x; start; symlink ../out r/dir; symlink ../out/x r/file; sock out/y`,
		"the root may be a symbolic link": `
			> mkdir real; symlink real r; sock real/x; start
			+r/x
			> sock real/y
			+r/y
			> rm real/x
			-r/x`,
		"renamed": `
			> mkdir r/a; mkdir r/b; sock r/a/x; start
			+r/a/x
			> mv r/a/x r/b/y
			+r/b/y<r/a/x
			> mv r/b/y r/z
			+r/z<r/b/y
			> rm r/z
			-r/z`,
		"renamed into a new directory": `
			> mkdir r; sock r/x; start
			+r/x
			> mkdir r/n/m; mv r/x r/n/m/x
			+r/n/m/x<r/x`,
		"renamed and replaced at once": `
			> mkdir r; sock r/x; start
			+r/x
			> mv r/x r/y; sock r/x
			+r/y<r/x
			+r/x`,
		"renamed out of the tree": `
			> mkdir r; mkdir out; sock r/x; start
			+r/x
			> mv r/x out/x
			-r/x
			> mv out/x r/x
			+r/x`,
		"renamed to a hidden name and back": `
			> mkdir r; sock r/x; start
			+r/x
			> mv r/x r/.x
			-r/x
			> mv r/.x r/x
			+r/x`,
		"renamed into the tree": `
			> mkdir r; start; sock x; mv x r/x
			+r/x`,
		"replaced by rename": `
			> mkdir r; sock r/x; start
			+r/x
			> sock r/.new; mv r/.new r/x
			*r/x`,
		"replaced by another one of the tree": `
			> mkdir r; sock r/x; sock r/y; start
			+r/x
			+r/y
			> mv r/y r/x
			+r/x<r/y
			> rm r/x
			-r/x`,
		"replaced by a file": `
			> mkdir r; sock r/x; start
			+r/x
			> file r/f; mv r/f r/x
			-r/x`,
		"chmod is no new appearance": `
			> mkdir r; sock r/x; chmod 700 r/x; start
			+r/x
			> chmod 600 r/x
			~r/x 0600`,
		"a hard link is a socket of its own path": `
			> mkdir r; sock r/x; start
			+r/x
			> ln r/x r/y
			+r/y
			> rm r/x
			-r/x
			> rm r/y
			-r/y`,
		"a directory is renamed": `
			> mkdir r/a/b; sock r/a/x; tick; sock r/a/b/y; start
			+r/a/x
			+r/a/b/y
			> mv r/a r/c
			+r/c/x<r/a/x
			+r/c/b/y<r/a/b/y
			> sock r/c/b/z
			+r/c/b/z
			> rm r/c/x
			-r/c/x
			> mkdir r/a/b; sock r/a/b/w
			+r/a/b/w`,
		"a directory is renamed out of the tree": `
			> mkdir r/a/b; sock r/a/b/x; start
			+r/a/b/x
			> mv r/a out
			-r/a/b/x
			> sock out/b/y; mv out r/a
			+r/a/b/x
			+r/a/b/y`,
		"a directory is hidden": `
			> mkdir r/a/b; sock r/a/b/x; start
			+r/a/b/x
			> mv r/a r/.a
			-r/a/b/x
			> sock r/.a/b/y; sock r/.a/z`,
		"a directory is removed and made again": `
			> mkdir r/a; sock r/a/x; start
			+r/a/x
			> rmall r/a
			-r/a/x
			> mkdir r/a; sock r/a/x
			+r/a/x
			> rm r/a/x
			-r/a/x`,
		"a directory is replaced": `
			> mkdir r/a; sock r/a/x; mkdir new; sock new/x; sock new/y; start
			+r/a/x
			> mv r/a r/.old; mv new r/a
			-*r/a/x
			+r/a/y
			> sock r/a/z
			+r/a/z`,
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "r")
			r.w.scanInterval = time.Hour
			r.w.pollInterval = time.Hour
			r.run(script)
			r.quiet()
		})
	}
}

func TestMain(m *testing.M) { leaktest.Main(m) }
