package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/trust"
)

func placeRules() []Rule {
	return []Rule{
		{
			ID: "REG001", Title: "The socket is where hosts look, and they can connect to it",
			Why: "Hosts look for sockets in their plugin directory and below it. They pass over names that begin with a dot, do not follow " +
				"symbolic links, and hosts that connect by path reach none longer than 107 bytes.",
			Remedy: "listen on a stream socket with a visible name directly in the plugin directory",
			check:  checkPlace,
		},
		{
			ID: "REG002", Title: "Not everyone may connect to the socket",
			Why: "Who can connect can tell the plugin that it is registered, and call its services.",
			Remedy: "make the socket with mode 0600 or 0660: set the umask before bind, or bind in a private directory, change the mode there " +
				"and rename the socket into place",
			check: checkMode,
		},
		{
			ID: "REG003", Title: "The socket belongs to root or to the host's user",
			Why:    "A socket of another user may be that of somebody who pretends to be the plugin; hosts refuse it by default.",
			Remedy: "run the plugin as root or as the user of the host; this verification takes its own user for that of the host",
			check:  checkOwner,
		},
		{
			ID: "REG004", Title: "Not everyone may write to the plugin directory",
			Why:    "Who may write there can put a socket into the place of the plugin's; hosts refuse such a directory.",
			Remedy: "chmod o-w the directory; the usual mode is 0750",
			check:  checkDirectory,
		},
	}
}

func checkPlace(ctx context.Context, s *subject) outcome {
	info, err := sock.Stat(s.path)
	if err != nil {
		s.trace.add("stat "+s.path, err.Error())
	} else {
		s.trace.add("stat "+s.path, info.Mode.String())
	}
	switch {
	case err != nil:
		s.lost = fmt.Sprintf("there is no socket at %s", s.path)
		s.told = true
		return fail("%s; is the plugin running?", s.lost)
	case info.Mode.Type()&os.ModeSymlink != 0:
		return fail("%s is a symbolic link, which hosts do not follow", s.path)
	case !info.IsSocket():
		s.lost = fmt.Sprintf("%s is no socket", s.path)
		s.told = true
		return fail("%s", s.lost)
	case strings.HasPrefix(filepath.Base(s.path), "."):
		return fail("the name %s begins with a dot, so hosts pass over it", filepath.Base(s.path))
	case len(s.path) > sock.MaxPath:
		return fail("the path has %d bytes; hosts that connect by path reach none of more than %d", len(s.path), sock.MaxPath)
	}
	if _, err := sock.Probe(ctx, s.path); err != nil {
		s.trace.add("connect "+s.path, err.Error())
		s.lost, s.told = fmt.Sprintf("nobody can be reached on %s", s.path), true
		return fail("the socket is there, and a connect fails: %v", err)
	}
	return pass("%s is a socket on which a process accepts", s.path)
}

func checkMode(_ context.Context, s *subject) outcome {
	info, err := sock.Stat(s.path)
	if err != nil {
		return s.unasked("there is no socket to look at: %v", err)
	}
	s.trace.add("stat "+s.path, fmt.Sprintf("mode %04o", info.Mode.Perm()))
	if info.Mode.Perm()&0o002 == 0 {
		return pass("the mode is %04o", info.Mode.Perm())
	}
	// The directory may keep strangers out.
	dir, err := sock.Stat(filepath.Dir(s.path))
	if s.inOwnDirectory() {
		return warn("the mode is %04o: everyone may connect, unless the plugin directory of the host keeps strangers out", info.Mode.Perm())
	}
	if err == nil && dir.Mode.Perm()&0o001 == 0 {
		return pass("the mode is %04o, in a directory of mode %04o into which strangers do not get", info.Mode.Perm(), dir.Mode.Perm())
	}
	return fail("the mode is %04o: everyone on the machine may connect", info.Mode.Perm())
}

func checkOwner(_ context.Context, s *subject) outcome {
	info, err := sock.Stat(s.path)
	if err != nil {
		return s.unasked("there is no socket to look at: %v", err)
	}
	s.trace.add("stat "+s.path, fmt.Sprintf("owner %d", info.UID))
	if trust.Default().Socket(s.path, info.UID, info.GID) != nil {
		return fail("the owner is user %d, neither root nor user %d of this verification", info.UID, os.Geteuid())
	}
	return pass("the owner is user %d", info.UID)
}

// inOwnDirectory reports whether the socket is in a directory that was made for the verification, whose mode says nothing of hosts.
func (s *subject) inOwnDirectory() bool {
	return s.bench != nil && strings.HasPrefix(s.path, s.bench.base+string(filepath.Separator))
}

func checkDirectory(_ context.Context, s *subject) outcome {
	dir := filepath.Dir(s.path)
	if s.inOwnDirectory() {
		return notApplicable("the plugin directory was made for the verification")
	}
	var info sock.Info
	target, err := filepath.EvalSymlinks(dir)
	if err == nil {
		info, err = sock.Stat(target)
	}
	if err != nil {
		return s.unasked("cannot look at %s: %v", dir, err)
	}
	s.trace.add("stat "+dir, fmt.Sprintf("mode %04o", info.Mode.Perm()))
	// Whose the directory is, is the host's business.
	if refusal, refused := errors.AsType[*trust.Refusal](trust.Default().Directory(dir, info.Mode, 0, info.GID)); refused {
		return fail("%s", refusal.Problem)
	}
	return pass("the mode of %s is %04o", dir, info.Mode.Perm())
}
