package catalogue_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/catalogue"
)

// TestRefuses checks that New refuses what cannot be a plugin, and names the plugin and the field; the nil Catalogue works.
func TestRefuses(t *testing.T) {
	for name, change := range map[string]func(*catalogue.Plugin){
		"name":    func(p *catalogue.Plugin) { p.Name = "a/b" },
		"command": func(p *catalogue.Plugin) { p.Command = nil },
		"start":   func(p *catalogue.Plugin) { p.Start = "x" },
		"upgrade": func(p *catalogue.Plugin) { p.Upgrade = "x" },
		"sha256":  func(p *catalogue.Plugin) { p.SHA256 = strings.Repeat("g", 64) },
	} {
		p := catalogue.Plugin{Name: "a", Command: []string{"/bin/true"}}
		p.SetDefaults()
		change(&p)
		c, err := catalogue.New([]catalogue.Plugin{p})
		if wrong, ok := errors.AsType[*catalogue.FieldError](err); !ok || c != nil || !strings.HasPrefix(wrong.Field, name) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
		if c, err := catalogue.Usable([]catalogue.Plugin{p}); err == nil || len(c.List()) > 0 {
			t.Errorf("%s is usable", name)
		}
	}
	var none *catalogue.Catalogue
	if _, found := none.Lookup(""); found || len(none.List())+none.Index("") > 0 || len(catalogue.Diff(none, none).Added) > 0 {
		t.Error("the nil Catalogue has plugins")
	}
	for _, text := range []string{"", "-1", "1x", strings.Repeat("9", 40), "1\x00"} {
		if new(catalogue.Bytes).UnmarshalText([]byte(text)) == nil || new(catalogue.CPU).UnmarshalText([]byte(text)) == nil {
			t.Errorf("%q is a quantity", text)
		}
	}
}
