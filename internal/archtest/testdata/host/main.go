// Command host is the smallest program that uses the runtime. It prints the protobuf files that are linked into it.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/patchbay-dev/patchbay"
)

func main() {
	if _, err := patchbay.New(patchbay.Config{PluginDirs: []string{os.TempDir()}}); err != nil {
		slog.Error("cannot create a runtime", "error", err)
		os.Exit(1)
	}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		fmt.Println(file.Path(), file.Package())
		return true
	})
}
