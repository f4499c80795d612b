package handlertest_test

import (
	"testing"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/handlertest"
)

func TestAcceptHandler(t *testing.T) {
	handlertest.Suite{
		NewHandler: func(string) (cache.PluginHandler, error) { return patchbay.AcceptHandler(), nil },
		Versions:   []string{"1.0.0"},
	}.Test(t)
}
