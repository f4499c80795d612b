//go:build never

package main

// What the tests compile is required by this module too.
import (
	_ "github.com/fsnotify/fsnotify"
	_ "github.com/patchbay-dev/patchbay/cache"
	_ "github.com/patchbay-dev/patchbay/pluginwatcher"
	_ "github.com/stretchr/testify/assert"
	_ "github.com/stretchr/testify/require"
	_ "k8s.io/apimachinery/pkg/util/wait"
	_ "k8s.io/klog/v2"
	_ "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	_ "k8s.io/kubernetes/pkg/volume/csi"
)
