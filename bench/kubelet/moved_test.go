package main

import (
	_ "embed"
	"os"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/bench/internal/theirs"
)

//go:embed testdata/cache.go
var cacheFile string

//go:embed testdata/pluginwatcher.go
var watcherFile string

//go:embed testdata/csi_test.go
var csiFile string

// TestMoved runs tests of the kubelet against packages pluginwatcher and cache.
func TestMoved(t *testing.T) {
	for name, suite := range map[string]theirs.Suite{
		// The kubelet of March 2019. Only imports are changed, and the type of a field that it does not export: the messages that are
		// generated today must not be copied.
		"pluginwatcher1.14": {
			Module: "k8s.io/kubernetes@v1.14.10", Sum: "h1:P9qsSUUdx0MZKtJH9kvTHFTZamOH/lZjdcpmDhx0C9g=",
			From: "pkg/kubelet/util/pluginwatcher", Files: []string{"*_test.go"}, Beside: "../../pluginwatcher",
			Edits: []string{
				`"k8s.io/klog"`, `"k8s.io/klog/v2"`,
				`"k8s.io/kubernetes/pkg/kubelet/apis/pluginregistration/v1"`, `"k8s.io/kubelet/pkg/apis/pluginregistration/v1"`,
				"chan registerapi.RegistrationStatus", "chan *registerapi.RegistrationStatus",
				"2 * time.Second", "time.Minute", "10 * time.Second", "time.Minute", // on a slow machine
			},
			LeftOut: map[string]theirs.Reason{
				"TestFoundInDeprecatedDir":   theirs.Unexported,
				"TestContainsBlacklistedDir": theirs.Unexported,
			},
		},
		// The handlers and caches of 1.37 take contexts, and a plugin has a UUID; the watcher fills a cache of the caller. The page says what
		// Patchbay has instead, and here it is put in its place.
		"cache1.37": {
			Module: "k8s.io/kubernetes", From: "pkg/kubelet/pluginmanager/cache", Files: []string{"*_test.go"},
			Edits: []string{
				"package cache\n", "package cache_test\n", "import (", "import (\n\t. \"github.com/patchbay-dev/patchbay/cache\"",
				`"k8s.io/apimachinery/pkg/util/uuid"`, "", `"k8s.io/kubernetes/test/utils/ktesting"`, "", "tCtx := ktesting.Init(t)", "", "(tCtx, ", "(",
				"UUID: ", "Appearance: ", ".UUID", ".Appearance", "PluginExistsWithCorrectUUID(", "PluginExistsWithCorrectTimestamp(",
			},
			Also: map[string]string{"cache_test.go": cacheFile},
		},
		"pluginwatcher1.37": {
			Module: "k8s.io/kubernetes", From: "pkg/kubelet/pluginmanager/pluginwatcher", Beside: "../../pluginwatcher",
			Files: []string{"plugin_watcher_test.go", "plugin_watcher_others_test.go"},
			Edits: []string{
				`"k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache"`, "", `"k8s.io/kubernetes/test/utils/ktesting"`, "", "tCtx := ktesting.Init(t)", "",
				"Serve(tCtx, ", "Serve(", "Stop(tCtx)", "Stop()",
				"cache.NewDesiredStateOfWorld()", "&desired{}", "cache.DesiredStateOfWorld", "*desired",
				"NewWatcher(socketDir, desiredStateOfWorldCache)", "NewWatcher(socketDir, \"\")\n\tdesiredStateOfWorldCache.watcher = w",
				"w.Start(tCtx, stopCh)", "w.Start()",
				// The test stops its first plugin ten times, and the kubelet's Stop removes whatever is at the path; ours removes its own socket only.
				"dep-example-plugin-%d\", i)\n\t\tp := New", "dep-example-plugin-%d\", i)\n\t\tp = New",
			},
			Also: map[string]string{"desired.go": watcherFile},
			LeftOut: map[string]theirs.Reason{
				"TestGetStat":       theirs.Unexported,
				"TestGetSocketPath": theirs.Unexported,
			},
		},
		// Nothing is changed: it is what the page says of the kubelet.
		"csi1.37": {
			Module: "k8s.io/kubernetes", From: "pkg/volume/csi", Files: []string{"*[^t].go", "*client.go"}, // no tests
			Also: map[string]string{"second_test.go": csiFile},
		},
	} {
		t.Run(name, suite.Run)
	}
}

// TestPage checks that the page has a row for each difference that the edits of TestMoved bridge and that its tests show.
func TestPage(t *testing.T) {
	const page = "../../docs/how-to/coming-from-kubelet.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		"a second instance of a CSI driver starts | is refused and tried again, unless its highest version is higher than that of the first | is accepted",
		"two instances are registered, the older one exits | CSI: the newer one is deregistered.",
		"methods of package `cache` | ", "`cache.PluginInfo.UUID`, `PluginExistsWithCorrectUUID` | ", "package `pluginwatcher` | ", "example plugin | ",
		"example handler | ",
	} {
		if !strings.Contains(string(text), "\n| "+row) {
			t.Errorf("%s has no row %q", page, row)
		}
	}
}
