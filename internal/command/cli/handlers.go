package cli

import (
	"fmt"
	"strings"

	"github.com/patchbay-dev/patchbay/daemon"
)

// handlerFlag is the value of a flag that names the handler of a plugin type. It implements pflag.Value. Whether type and kind are
// right is left to [daemon.New].
type handlerFlag map[string]daemon.HandlerKind

// Set implements pflag.Value.
func (h handlerFlag) Set(value string) error {
	ptype, kind, ok := strings.Cut(value, "=")
	if !ok {
		return fmt.Errorf("write TYPE=KIND, for example MyPlugin=%s", daemon.HandlerAccept)
	}
	h[ptype] = daemon.HandlerKind(kind)
	return nil
}

// handlerKinds returns the kinds of handlers that exist, separated by commas.
func handlerKinds() string {
	var names []string
	for _, kind := range daemon.HandlerKinds() {
		names = append(names, string(kind))
	}
	return strings.Join(names, ", ")
}

// completeHandler returns the values of the flag for the types that every daemon knows.
func completeHandler() []string {
	var values []string
	for _, ptype := range daemon.DefaultTypes() {
		for _, kind := range daemon.HandlerKinds() {
			values = append(values, ptype+"="+string(kind))
		}
	}
	return values
}

// String implements pflag.Value. No type is configured by default.
func (h handlerFlag) String() string { return "" }

// Type implements pflag.Value.
func (h handlerFlag) Type() string { return "TYPE=KIND" }

// acceptFlag is a [handlerFlag] that takes a type only, whose plugins are accepted.
type acceptFlag struct{ handlerFlag }

// Set implements pflag.Value.
func (a acceptFlag) Set(ptype string) error {
	a.handlerFlag[ptype] = daemon.HandlerAccept
	return nil
}

// Type implements pflag.Value.
func (a acceptFlag) Type() string { return "TYPE" }
