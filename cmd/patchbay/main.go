// Patchbay runs the Patchbay daemon and looks at a running one. "patchbay help" describes its commands. All of it is in
// cmd/patchbay/internal/cli; this package only ends the process with the right exit code.
package main

import (
	"os"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/cli"
)

func main() { os.Exit(cli.Main()) }
