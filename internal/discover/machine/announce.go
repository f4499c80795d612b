package machine

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// naming returns the name that an announcement gives the plugin, if that can be shown.
func (b Bounds) naming(info Info) Key {
	if b.check(Info{Type: info.Type, Name: info.Name}) != nil {
		return Key{}
	}
	return Key{info.Type, info.Name}
}

// check says what is wrong with an announcement.
func (b Bounds) check(info Info) error {
	if len(info.Versions) > b.Versions {
		return fmt.Errorf("the plugin announces %d versions; at most %d are allowed", len(info.Versions), b.Versions)
	}
	if err := cmp.Or(b.checkText("type", info.Type), b.checkText("name", info.Name), b.checkText("endpoint", info.Endpoint)); err != nil {
		return err
	}
	for _, version := range info.Versions {
		if err := b.checkText("version", version); err != nil {
			return err
		}
	}
	if !foreign.IsType(info.Type) {
		return fmt.Errorf("the plugin announces the type %q; a type must not contain a slash", info.Type)
	}
	if strings.HasPrefix(info.Endpoint, "@") { // what connects takes it for that
		return fmt.Errorf("the plugin announces the endpoint %q; it must not be an abstract socket, which every user may serve: "+
			"announce the path of a socket", info.Endpoint)
	}
	if info.Endpoint != "" && !filepath.IsAbs(info.Endpoint) { // it would be relative to a directory that only the plugin knows
		return fmt.Errorf("the plugin announces the endpoint %q; it must be an absolute path: announce where the socket is from the root "+
			"directory, or no endpoint for the socket on which it registers", info.Endpoint)
	}
	return nil
}

// checkText says what is wrong with one text of an announcement.
func (b Bounds) checkText(field, text string) error {
	switch {
	case text == "" && field != "endpoint":
		return fmt.Errorf("the plugin announces no %s", field)
	case len(text) > b.Text:
		return fmt.Errorf("the plugin announces its %s with %d bytes; at most %d are allowed", field, len(text), b.Text)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Errorf("the plugin announces its %s with control characters or invalid UTF-8: %q", field, text)
	}
	return nil
}
