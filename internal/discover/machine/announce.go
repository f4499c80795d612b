package machine

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

const (
	// maxVersion is the greatest length of a version in bytes.
	maxVersion = 64
	// maxNaming is the maximum length in bytes of the type and name that are recorded for a plugin with a refused announcement.
	maxNaming = 512
)

// sizeOf returns the size of an announcement in bytes.
func sizeOf(i plugin.Info) int {
	const header = 16 // of a string
	n := len(i.Type) + len(i.Name) + len(i.Endpoint)
	for _, v := range i.Versions {
		n += header + len(v)
	}
	return n
}

// unacceptable returns why the announcement of an instance is refused: it is invalid or exceeds a limit. If it returns nil, the
// announcement is counted against the limits.
func (m *Machine) unacceptable(in *instance, a Answered) *Failure {
	if invalid := check(m.Bounds, a.Info); invalid != nil {
		return &Failure{Err: invalid}
	}
	n, uid := sizeOf(a.Info), a.Account.UID
	kept, by := in.kept, in.keptBy
	m.releaseQuota(in)
	refused, first := m.take(uid, n)
	if refused != nil {
		m.announced.Add(by, kept)
		m.plugins.Add(by, min(kept, 1))
		in.kept = kept
		return &Failure{Err: refused, Kind: Distrusted, Reason: refused.Reason, quiet: !first}
	}
	in.kept, in.keptBy = n, uid
	return nil
}

// take counts one more plugin of a user, with an announcement of n bytes. It returns a refusal if a limit is reached, and whether that is
// the first one for the user.
func (m *Machine) take(uid uint32, n int) (refused *trust.Refusal, first bool) {
	b := m.Bounds
	if refusal := m.plugins.Take(uid, min(n, 1)); refusal != nil {
		return &trust.Refusal{
			Reason: trust.Announcements,
			Problem: fmt.Sprintf("user %d would have more than %d plugins, or all users except root and the host's user more than %d", uid,
				b.UserPlugins, b.TotalPlugins),
			Remedy: "stop plugins that are not needed, or give the host more descriptors, with LimitNOFILE= or ulimit -n",
		}, refusal.First
	}
	if refusal := m.announced.Take(uid, n); refusal != nil {
		m.plugins.Release(uid, min(n, 1))
		return &trust.Refusal{
			Reason: trust.Announcements,
			Problem: fmt.Sprintf("plugins of user %d would announce more than %d bytes, or those of all users more than %d", uid,
				b.UserBytes, b.TotalBytes),
			Remedy: "stop plugins that are not needed, announce less, or raise bounds.userBytes and bounds.totalBytes",
		}, refusal.First
	}
	return nil, false
}

// releaseQuota undoes take for an instance.
func (m *Machine) releaseQuota(in *instance) {
	m.announced.Release(in.keptBy, in.kept)
	m.plugins.Release(in.keptBy, min(in.kept, 1))
	in.kept = 0
}

// privileged reports whether part of the limits is reserved for a user.
func (m *Machine) privileged(uid uint32) bool {
	return m.Trust == nil || m.Trust.Privileged(uid)
}

// check returns an error if what a plugin announces is malformed or out of bounds.
func check(b plugin.Bounds, info plugin.Info) error {
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
	if strings.HasPrefix(info.Endpoint, "@") { // to clients, it means an abstract socket
		return fmt.Errorf("the plugin announces the endpoint %s; it must not be an abstract socket, which every user may serve: "+
			"announce the path of a socket", untrusted.Quote(info.Endpoint))
	}
	if info.Endpoint != "" && !filepath.IsAbs(info.Endpoint) { // only the plugin knows its working directory
		return fmt.Errorf("the plugin announces the endpoint %s; it must be an absolute path: announce where the socket is from the root "+
			"directory, or no endpoint for the socket on which it registers", untrusted.Quote(info.Endpoint))
	}
	return nil
}

// checkText returns an error if one text of an announcement is longer than most bytes or malformed.
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
