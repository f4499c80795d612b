// Socketpair is a plugin without gRPC: it sends back every byte that comes on the socket that it inherits as descriptor 3, until that ends.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.NewFile(3, "socketpair")); err != nil {
		fmt.Fprintln(os.Stderr, "socketpair:", err)
		os.Exit(1)
	}
}

func run(pair *os.File) error {
	b := make([]byte, 1)
	for {
		if _, err := pair.Read(b); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if _, err := pair.Write(b); err != nil {
			return err
		}
	}
}
