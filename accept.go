package patchbay

import (
	"time"

	"github.com/patchbay-dev/patchbay/cache"
)

// AcceptHandler returns a handler that accepts every plugin and does nothing else: for types whose plugins only need to be known,
// remembered and dispensed.
func AcceptHandler() cache.PluginHandler { return acceptHandler{} }

type acceptHandler struct{}

func (acceptHandler) ValidatePlugin(string, string, []string) error { return nil }

func (acceptHandler) RegisterPlugin(string, string, []string, *time.Duration) error { return nil }

func (acceptHandler) DeRegisterPlugin(string) {}
