//go:build never

package main

// What the tests compile is required by this module too.
import (
	_ "github.com/hashicorp/nomad/ci"
	_ "github.com/hashicorp/nomad/client/pluginmanager/csimanager"
	_ "github.com/hashicorp/nomad/nomad/mock"
	_ "github.com/hashicorp/nomad/plugins/csi/fake"
	_ "github.com/hashicorp/nomad/testutil"
	_ "github.com/patchbay-dev/patchbay"
	_ "github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	_ "github.com/patchbay-dev/patchbay/handlers/csi"
	_ "github.com/shoenig/test/must"
	_ "github.com/stretchr/testify/require"
)
