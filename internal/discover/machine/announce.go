package machine

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/patchbay-dev/patchbay/internal/foreign"
	"github.com/patchbay-dev/patchbay/trust"
)

const (
	// maxVersion is the greatest length of a version in bytes.
	maxVersion = 64
	// maxNaming is how many bytes are kept of the name of a plugin that is refused for what it announces.
	maxNaming = 512
)

// naming returns the part of an announcement that names the plugin, if that can be shown and is short.
func (b Bounds) naming(info Info) Info {
	named := Info{Type: info.Type, Name: info.Name}
	if len(info.Type)+len(info.Name) > maxNaming || b.check(named) != nil {
		return Info{}
	}
	return named
}

// size is how many bytes an announcement takes.
func (i Info) size() int {
	const header = 16 // of a string
	n := len(i.Type) + len(i.Name) + len(i.Endpoint)
	for _, v := range i.Versions {
		n += header + len(v)
	}
	return n
}

// unacceptable says what is wrong with what an instance announces; nil if it may be kept.
func (m *Machine) unacceptable(in *instance, a Answered) *Failure {
	if invalid := m.cfg.Bounds.check(a.Info); invalid != nil {
		return &Failure{Err: invalid}
	}
	n, uid := a.Info.size(), a.Account.UID
	kept, by := in.kept, in.keptBy
	m.letGo(in)
	ok, first := m.announced.Take(uid, n)
	if ok {
		in.kept, in.keptBy = n, uid
		return nil
	}
	m.keep(in, by, kept)
	refused := &trust.Refusal{
		Reason: trust.Announcements,
		Problem: fmt.Sprintf("plugins of user %d would announce more than %d bytes, or those of all users more than %d", uid,
			m.cfg.Bounds.UserBytes, m.cfg.Bounds.TotalBytes),
		Remedy: "end plugins that are not needed, announce less, or raise bounds.userBytes and bounds.totalBytes",
	}
	return &Failure{Err: refused, Kind: Distrusted, Reason: refused.Reason, quiet: !first}
}

// keep counts n bytes as what is kept of an instance, and letGo counts none.
func (m *Machine) keep(in *instance, uid uint32, n int) {
	m.announced.Add(uid, n)
	in.kept, in.keptBy = n, uid
}

func (m *Machine) letGo(in *instance) {
	m.announced.Give(in.keptBy, in.kept)
	in.kept = 0
}

// privileged says who is always left room for what he announces.
func (m *Machine) privileged(uid uint32) bool {
	return m.cfg.Trust == nil || m.cfg.Trust.Privileged(uid)
}

// check says what is wrong with an announcement.
func (b Bounds) check(info Info) error {
	if len(info.Versions) > b.Versions {
		return fmt.Errorf("the plugin announces %d versions; at most %d are allowed", len(info.Versions), b.Versions)
	}
	for _, field := range append([]field{
		{"type", info.Type, b.Text}, {"name", info.Name, b.Text}, {"endpoint", info.Endpoint, b.Text},
	}, b.versions(info.Versions)...) {
		switch {
		case field.text == "" && field.name != "endpoint":
			return fmt.Errorf("the plugin announces no %s", field.name)
		case len(field.text) > field.most:
			return fmt.Errorf("the plugin announces its %s with %d bytes; at most %d are allowed", field.name, len(field.text), field.most)
		case !utf8.ValidString(field.text) || strings.ContainsFunc(field.text, unicode.IsControl):
			return fmt.Errorf("the plugin announces its %s with control characters or invalid UTF-8: %s", field.name, foreign.Quote(field.text))
		}
	}
	if !foreign.IsType(info.Type) {
		return fmt.Errorf("the plugin announces the type %s; a type must not contain a slash", foreign.Quote(info.Type))
	}
	if strings.HasPrefix(info.Endpoint, "@") { // what connects takes it for that
		return fmt.Errorf("the plugin announces the endpoint %s; it must not be an abstract socket, which every user may serve: "+
			"announce the path of a socket", foreign.Quote(info.Endpoint))
	}
	if info.Endpoint != "" && !filepath.IsAbs(info.Endpoint) { // it would be relative to a directory that only the plugin knows
		return fmt.Errorf("the plugin announces the endpoint %s; it must be an absolute path: announce where the socket is from the root "+
			"directory, or no endpoint for the socket on which it registers", foreign.Quote(info.Endpoint))
	}
	return nil
}

// field is a part of an announcement, with the greatest number of bytes that it may have.
type field struct {
	name, text string
	most       int
}

func (b Bounds) versions(versions []string) []field {
	fields := make([]field, len(versions))
	for i, v := range versions {
		fields[i] = field{"version", v, min(b.Text, maxVersion)}
	}
	return fields
}
