//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "soak: kills and stops processes as Linux does, and runs there only")
	os.Exit(1)
}
