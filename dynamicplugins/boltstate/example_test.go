package boltstate_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
)

// A registry with this storage restores its plugins after a restart.
func Example() {
	dir, err := os.MkdirTemp("", "state")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "state.db")
	for restart := range 2 {
		store, err := boltstate.Open(path)
		switch {
		case errors.Is(err, boltstate.ErrCorrupt), errors.Is(err, boltstate.ErrNewer):
			fmt.Println("the file is left as it is:", err)
			return
		case err != nil:
			fmt.Println(err)
			return
		}
		if restart == 0 {
			info := &dynamicplugins.PluginInfo{
				Type: "csi-node", Name: "disk", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/disk.sock"},
			}
			err = store.PutDynamicPluginChange(&dynamicplugins.PluginChange{
				Type: "csi-node", Name: "disk", Plugins: []*dynamicplugins.PluginInfo{info},
			})
			switch {
			case errors.Is(err, boltstate.ErrReplaced):
				fmt.Println("nothing can be saved before a restart:", err)
				return
			case err != nil:
				fmt.Println(err)
				return
			}
		} else {
			state, err := store.GetDynamicPluginRegistryState()
			if err != nil {
				fmt.Println(err)
				return
			}
			found := state.Plugins["csi-node"]["disk"].Front().Value.(*dynamicplugins.PluginInfo)
			fmt.Println(found.Name, "answers at", found.ConnectionInfo.SocketPath)
		}
		if err := store.Close(); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output: disk answers at /run/disk.sock
}

// A handler stores its own keys and values in the same file.
func ExampleStore_Bucket() {
	dir, err := os.MkdirTemp("", "state")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := boltstate.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	bucket := store.Bucket("device")
	if err := bucket.Put("example.com/widget", []byte("2 allocated")); err != nil {
		fmt.Println(err)
		return
	}
	value, err := bucket.Get("example.com/widget")
	fmt.Println(string(value), err)
	if err := store.Close(); err != nil {
		fmt.Println(err)
		return
	}
	_, err = bucket.Get("example.com/widget")
	fmt.Println(errors.Is(err, boltstate.ErrClosed))
	// Output:
	// 2 allocated <nil>
	// true
}
