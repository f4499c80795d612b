// Admission is an admission plugin that admits everything.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk/admission"
)

func main() {
	err := admission.Serve(context.Background(), func(context.Context, plugin.Pin, admission.Metadata) error { return nil })
	if err != nil {
		fmt.Fprintln(os.Stderr, "admission:", err)
		os.Exit(1)
	}
}
