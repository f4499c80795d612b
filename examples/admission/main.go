// Admission is an admission plugin: it lets those programs run, and those plugins be registered, whose name and digest are in a list with a
// good signature.
//
//	admission keygen KEYFILE                             makes a private key and prints its public key
//	admission sign KEYFILE LIST                          prints the list with a signature
//	admission --list SIGNEDLIST --public-key PUBLICKEY   is the plugin, which a host launches
//
// The list is read once, at the start. A host that is to work with another list starts the plugin anew.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk/admission"
)

const version = "1.0.0"

var errUsage = errors.New("usage: admission keygen KEYFILE | sign KEYFILE LIST | --list SIGNEDLIST --public-key PUBLICKEY")

func main() {
	err := run(context.Background(), os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, errUsage), errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(os.Stderr, errUsage)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "admission:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	switch {
	case len(args) == 2 && args[0] == "keygen":
		return keygen(args[1], stdout)
	case len(args) == 3 && args[0] == "sign":
		return signFile(args[1], args[2], stdout)
	}
	flags := flag.NewFlagSet("admission", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	file := flags.String("list", "", "")
	publicKey := flags.String("public-key", "", "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || *file == "" || *publicKey == "" {
		return errUsage
	}
	allowed, err := loadList(*file, *publicKey)
	if err != nil {
		return err
	}
	return admission.Serve(ctx, func(_ context.Context, pin plugin.Pin, _ admission.Metadata) error {
		return allowed.check(pin)
	}, admission.WithVersion(version))
}
