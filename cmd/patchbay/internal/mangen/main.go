// Mangen writes the man pages of all commands, and the completion scripts, into a directory:
//
//	go run ./cmd/patchbay/internal/mangen DIR
//
// creates DIR/man/*.1 and DIR/completions/patchbay.{bash,zsh,fish}. If SOURCE_DATE_EPOCH is set, in seconds, it is the date of the pages,
// for reproducible builds. The packages contain these files.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra/doc"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: mangen DIR")
		os.Exit(2)
	}
	man, scripts := filepath.Join(os.Args[1], "man"), filepath.Join(os.Args[1], "completions")
	if err := errors.Join(os.MkdirAll(man, 0o755), manPages(man), os.MkdirAll(scripts, 0o755), completions(scripts)); err != nil {
		fmt.Fprintln(os.Stderr, "mangen:", err)
		os.Exit(1)
	}
}

func manPages(dir string) error {
	header := &doc.GenManHeader{Section: "1", Source: "Patchbay", Manual: "Patchbay Manual"}
	return doc.GenManTree(cli.Manual(), header, dir)
}

func completions(dir string) error {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		var script, stderr bytes.Buffer
		if code := cli.Run(context.Background(), []string{"completion", shell}, &script, &stderr); code != 0 {
			return fmt.Errorf("cannot create the completion script for %s: %s", shell, &stderr)
		}
		if err := os.WriteFile(filepath.Join(dir, "patchbay."+shell), script.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
