package machine

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/trust"
)

const (
	// maxVersion is the greatest length of a version in bytes.
	maxVersion = 64
	// maxNaming is how many bytes are kept of the name of a plugin that is refused for what it announces.
	maxNaming = 512
)

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
	refused, first := m.crowded(uid, n)
	if refused == nil {
		m.keep(in, uid, n)
		return nil
	}
	m.keep(in, by, kept)
	return &Failure{Err: refused, Kind: Distrusted, Reason: refused.Reason, quiet: !first}
}

// crowded says why there is no room for one more plugin of a user that announces n bytes; nil if there is, which is then to be kept. First
// says whether it is news.
func (m *Machine) crowded(uid uint32, n int) (refused *trust.Refusal, first bool) {
	b := m.cfg.Bounds
	if !m.privileged(uid) {
		ok, first := m.plugins.Take(uid, 1)
		if !ok {
			return &trust.Refusal{
				Reason: trust.Announcements,
				Problem: fmt.Sprintf("user %d would have more than %d plugins, or all users but root and the host's more than %d", uid,
					b.UserPlugins, b.TotalPlugins),
				Remedy: "stop plugins that are not needed, or give the host more descriptors, with LimitNOFILE= or ulimit -n",
			}, first
		}
		m.plugins.Give(uid, 1)
	}
	ok, first := m.announced.Take(uid, n)
	if !ok {
		return &trust.Refusal{
			Reason: trust.Announcements,
			Problem: fmt.Sprintf("plugins of user %d would announce more than %d bytes, or those of all users more than %d", uid,
				b.UserBytes, b.TotalBytes),
			Remedy: "stop plugins that are not needed, announce less, or raise bounds.userBytes and bounds.totalBytes",
		}, first
	}
	m.announced.Give(uid, n)
	return nil, false
}

// keep counts n bytes as what is kept of an instance, and letGo counts none.
func (m *Machine) keep(in *instance, uid uint32, n int) {
	m.announced.Add(uid, n)
	if n > 0 && !m.privileged(uid) {
		m.plugins.Add(uid, 1)
	}
	in.kept, in.keptBy = n, uid
}

func (m *Machine) letGo(in *instance) {
	m.announced.Give(in.keptBy, in.kept)
	if in.kept > 0 && !m.privileged(in.keptBy) {
		m.plugins.Give(in.keptBy, 1)
	}
	in.kept = 0
}

// privileged says who is always left room for what he announces.
func (m *Machine) privileged(uid uint32) bool {
	return m.cfg.Trust == nil || m.cfg.Trust.Privileged(uid)
}

func (b Bounds) check(info Info) error {
	if len(info.Versions) > b.Versions {
		return fmt.Errorf("the plugin announces %d versions; at most %d are allowed", len(info.Versions), b.Versions)
	}
	if err := cmp.Or(checkText("type", info.Type, b.Text), checkText("name", info.Name, b.Text),
		checkText("endpoint", info.Endpoint, b.Text)); err != nil {
		return err
	}
	for _, version := range info.Versions {
		if err := checkText("version", version, min(b.Text, maxVersion)); err != nil {
			return err
		}
	}
	if !untrusted.IsType(info.Type) {
		return fmt.Errorf("the plugin announces the type %s; a type must not contain a slash", untrusted.Quote(info.Type))
	}
	if strings.HasPrefix(info.Endpoint, "@") { // what connects takes it for that
		return fmt.Errorf("the plugin announces the endpoint %s; it must not be an abstract socket, which every user may serve: "+
			"announce the path of a socket", untrusted.Quote(info.Endpoint))
	}
	if info.Endpoint != "" && !filepath.IsAbs(info.Endpoint) { // it would be relative to a directory that only the plugin knows
		return fmt.Errorf("the plugin announces the endpoint %s; it must be an absolute path: announce where the socket is from the root "+
			"directory, or no endpoint for the socket on which it registers", untrusted.Quote(info.Endpoint))
	}
	return nil
}

// checkText says what is wrong with one text of an announcement, which may have most bytes.
func checkText(field, text string, most int) error {
	switch {
	case text == "" && field != "endpoint":
		return fmt.Errorf("the plugin announces no %s", field)
	case len(text) > most:
		return fmt.Errorf("the plugin announces its %s with %d bytes; at most %d are allowed", field, len(text), most)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Errorf("the plugin announces its %s with control characters or invalid UTF-8: %s", field, untrusted.Quote(text))
	}
	return nil
}
