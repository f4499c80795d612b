package admission_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk/admission"
)

// A plugin that admits what is signed. Its host launches it; started by hand it says so.
func ExampleServe() {
	err := admission.Serve(context.Background(), func(ctx context.Context, pin plugin.Pin, md admission.Metadata) error {
		for entry, err := range md.List(ctx, "signature") {
			if err != nil {
				return fmt.Errorf("cannot see whether %s is signed: %w", pin, err)
			}
			if string(entry.Value) == "good" {
				return nil
			}
		}
		return errors.New("it has no good signature")
	}, admission.WithConcurrency(64)) // checks that wait for metadata are cheap
	fmt.Println(err)
	// Output: cannot serve admissions: no host launched this process
}
