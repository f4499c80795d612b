package machine

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// naming returns the part of an announcement that names the plugin, if that can be shown.
func (b Bounds) naming(info Info) Info {
	named := Info{Type: info.Type, Name: info.Name}
	if b.check(named) != nil {
		return Info{}
	}
	return named
}

// check says what is wrong with an announcement.
func (b Bounds) check(info Info) error {
	if len(info.Versions) > b.Versions {
		return fmt.Errorf("the plugin announces %d versions; at most %d are allowed", len(info.Versions), b.Versions)
	}
	for _, field := range append([]struct{ name, text string }{
		{"type", info.Type}, {"name", info.Name}, {"endpoint", info.Endpoint},
	}, versionFields(info.Versions)...) {
		switch {
		case field.text == "" && field.name != "endpoint":
			return fmt.Errorf("the plugin announces no %s", field.name)
		case len(field.text) > b.Text:
			return fmt.Errorf("the plugin announces its %s with %d bytes; at most %d are allowed", field.name, len(field.text), b.Text)
		case !utf8.ValidString(field.text) || strings.ContainsFunc(field.text, unicode.IsControl):
			return fmt.Errorf("the plugin announces its %s with control characters or invalid UTF-8: %q", field.name, field.text)
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

func versionFields(versions []string) []struct{ name, text string } {
	fields := make([]struct{ name, text string }, len(versions))
	for i, v := range versions {
		fields[i] = struct{ name, text string }{"version", v}
	}
	return fields
}
