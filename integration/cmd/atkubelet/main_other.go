//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "atkubelet: there are mount namespaces on Linux only")
	os.Exit(1)
}
