package untrusted

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
)

// FuzzTexts checks that what is repeated of any text is bounded, valid and printable, and that what passes a check is within its limits.
func FuzzTexts(f *testing.F) {
	for _, text := range []string{"", "a b", "\xff", "\x1b[2J", "a\u202eb", strings.Repeat("é", 200), "hostpath.csi.k8s.io", "example.com/gpu", "../a"} {
		f.Add(text, "CSIPlugin", 8)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text, ptype string, limit int) {
		limit = max(limit%1024, 0)
		for _, repeated := range []string{Quote(text), QuoteAll([]string{text, text})} {
			if !Printable(repeated) || len(repeated) > 2*(4*maxRepeated+len(`""…, `)) {
				t.Errorf("%q is repeated as %q", text, repeated)
			}
		}
		for most, cut := range map[int]string{limit: Cut(text, limit), maxRepeated: Clip(text)} {
			if len(cut) > most+len("…") || len(text) <= most && cut != text || len(text) > most && !utf8.ValidString(cut) {
				t.Errorf("%q is cut after %d bytes to %q", text, most, cut)
			}
		}
		if Check("it", text, limit) == nil && (len(text) > limit || !Printable(text)) {
			t.Errorf("%q passes with a limit of %d", text, limit)
		}
		if Name("it", text, limit) == nil && (text == "" || strings.Contains(text, " ") || Required("it", text, limit) != nil) {
			t.Errorf("%q passes as a name", text)
		}
		for _, err := range []error{
			Name("it", text, limit), PluginName(ptype, text), PluginName(typeCSI, text), PluginName(typeDRA, text),
			PluginName(typeDevice, text), Endpoint(text, "kubelet.sock"),
		} {
			if err != nil && (!Printable(err.Error()) || len(err.Error()) > 8*maxRepeated) {
				t.Errorf("%q: the error is %q", text, err)
			}
		}
		if Endpoint(text, "kubelet.sock") == nil && (strings.ContainsAny(text, "/\\\x00") || text == "." || text == "..") {
			t.Errorf("%q passes as an endpoint", text)
		}
		for _, ptype := range []string{typeCSI, typeDRA} {
			if PluginName(ptype, text) == nil && (!isSegment(text) || strings.Contains(text, "/")) {
				t.Errorf("%q passes as the name of a %s", text, ptype)
			}
		}
	})
}
