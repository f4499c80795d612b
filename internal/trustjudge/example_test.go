package trustjudge_test

import (
	"errors"
	"fmt"

	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// User 4000 may own sockets and register CSI drivers; only root and the host's user may register plugins of other types.
func Example() {
	judge, err := trustjudge.New(trust.Policy{Types: map[string]trust.Type{"CSIPlugin": {Users: []string{"4000"}}}})
	if err != nil {
		panic(err)
	}
	driver := plugin.Account{UID: 4000, GID: 4000, Known: true}
	fmt.Println(judge.Socket("/run/plugins/nfs.sock", driver.UID, driver.GID), judge.Type("CSIPlugin", driver))

	err = judge.Type("DevicePlugin", driver)
	if refusal, ok := errors.AsType[*trust.Refusal](err); ok {
		fmt.Println(refusal.Reason)
		fmt.Println(refusal.Problem)
		fmt.Println(refusal.Remedy)
	}
	// Output:
	// <nil> <nil>
	// type
	// user 4000 may not register plugins of type DevicePlugin
	// name the user in trust.types.DevicePlugin.users if this is intended
}

// A plugin directory that other users may write to is refused, because they could impersonate any plugin.
func ExampleJudge_Directory() {
	judge, err := trustjudge.New(trust.Policy{Owners: trust.Accounts{Users: []string{"4000"}}})
	if err != nil {
		panic(err)
	}
	reason := func(err error) trust.Reason {
		if refusal, ok := errors.AsType[*trust.Refusal](err); ok {
			return refusal.Reason
		}
		return ""
	}
	fmt.Println(reason(judge.Directory("/run/plugins", 0o750, 0, 0)) == "")
	fmt.Println(reason(judge.Directory("/run/plugins", 0o777, 4000, 0)) == trust.Writable)
	fmt.Println(reason(judge.Directory("/run/plugins", 0o750, 4001, 0)) == trust.DirectoryOwner)
	fmt.Println(reason(judge.Socket("/run/plugins/foo.sock", 4001, 4001)) == trust.SocketOwner)
	// Output:
	// true
	// true
	// true
	// true
}
