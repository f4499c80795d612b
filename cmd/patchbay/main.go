// Patchbay runs the Patchbay daemon and looks at a running one. "patchbay help" describes its commands. All of it is in
// internal/command/cli; this package only ends the process with the right exit code.
package main

import (
	"os"

	"github.com/patchbay-dev/patchbay/internal/command/cli"
)

func main() { os.Exit(cli.Main()) }
