package cache_test

import (
	"errors"
	"fmt"

	"github.com/patchbay-dev/patchbay/cache"
)

// Whoever acts on the desired state takes its changes instead of polling it.
func ExampleDesiredStateOfWorld() {
	desired := cache.NewDesired()
	changes := desired.Changes()

	if err := desired.AddOrUpdatePlugin("/run/plugins/foo.sock"); err != nil {
		panic(err)
	}
	<-changes.C()
	for _, c := range changes.Take() {
		fmt.Println(c.Path, c.Present)
	}
	// Output: /run/plugins/foo.sock true
}

// A handler that cannot take a plugin yet says so, and is asked again.
func Example_errRetry() {
	err := fmt.Errorf("the volume manager is starting: %w", cache.ErrRetry)
	fmt.Println(errors.Is(err, cache.ErrRetry))
	// Output: true
}
