package suggest

import "testing"

func TestTo(t *testing.T) {
	known := []string{"hello", "help", "disk", "CSIPlugin/hostpath.csi.k8s.io"}
	for word, want := range map[string]string{
		"hell": "hello", "hlep": "help", "csiplugin/hostpath.csi.k8s.io": "CSIPlugin/hostpath.csi.k8s.io", "other": "", "": "",
	} {
		if got, ok := To(word, known); got != want || ok != (want != "") {
			t.Errorf("nearest to %q: got %q, %t, want %q", word, got, ok, want)
		}
	}
}
