package cli

import (
	"fmt"
	"strings"

	"github.com/patchbay-dev/patchbay/daemon"
)

// handlerFlag is a flag that names the handlers of plugin types. It implements pflag.Value. Whether types and kinds are right is left to
// [daemon.New].
type handlerFlag struct {
	handlers map[string]daemon.HandlerKind
	// form is TYPE=KIND, or TYPE where the plugins are accepted.
	form string
}

// Set implements pflag.Value.
func (h handlerFlag) Set(value string) error {
	if h.form == "TYPE" {
		h.handlers[value] = daemon.HandlerAccept
		return nil
	}
	ptype, kind, ok := strings.Cut(value, "=")
	if !ok {
		return fmt.Errorf("write TYPE=KIND, for example MyPlugin=%s", daemon.HandlerAccept)
	}
	h.handlers[ptype] = daemon.HandlerKind(kind)
	return nil
}

// String implements pflag.Value. No type is configured by default.
func (h handlerFlag) String() string { return "" }

// Type implements pflag.Value.
func (h handlerFlag) Type() string { return h.form }

// handlerKinds returns the kinds of handlers that exist, separated by commas.
func handlerKinds() string {
	return strings.Join(each(daemon.HandlerKinds(), func(kind daemon.HandlerKind) string { return string(kind) }), ", ")
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
