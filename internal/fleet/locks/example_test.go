package locks_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/locks"
)

// One node of the fleet at a time works, and gives each call that it makes the token by which a later holder is told from an earlier one.
// Here etcd cannot be reached, so the node does not hold the lock.
func Example() {
	cluster, err := fleet.Connect(fleet.Etcd{Endpoints: []string{"http://127.0.0.1:1"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	elector, err := locks.New(cluster, locks.Config{Node: "node-7"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { elector.Run(ctx) })
	lock := fleet.Lock{Type: "csi-controller", Name: "disk"}
	elector.Stand([]fleet.Lock{lock})
	if hold := elector.Held(lock); hold != nil {
		fmt.Println("working with token", hold.Token)
		<-hold.Done()
	}
	fmt.Println(elector.Wanted())
	// Output: [csi-controller/disk]
}
