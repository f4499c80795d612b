// Mangen writes the man pages of all commands, and the completion scripts, into a directory:
//
//	go run ./cmd/patchbay/internal/mangen DIR
//
// makes DIR/man/*.1 and DIR/completions/patchbay.{bash,zsh,fish}. The pages have the date of SOURCE_DATE_EPOCH, in seconds, if that is set,
// so that the same source makes the same files. They are a part of the packages and not of the program, which needs no man pages to run.
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
			return fmt.Errorf("cannot make the completion script for %s: %s", shell, &stderr)
		}
		if err := os.WriteFile(filepath.Join(dir, "patchbay."+shell), script.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
