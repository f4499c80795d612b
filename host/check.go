package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/launch/account"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/plugin"
)

// check copies the program, and checks the digest of the copy, its interpreter and its admission. If the spec requires no check, it returns
// nil and the program is executed from its file. The caller releases the image.
func (h *Host) check(ctx context.Context, spec Spec, program string) (*sealedexec.Image, error) {
	if spec.SHA256 == "" && spec.Admit == nil {
		return nil, nil //nolint:nilnil // documented
	}
	var want *sealedexec.Digest
	if spec.SHA256 != "" {
		d, err := sealedexec.ParseDigest(spec.SHA256)
		if err != nil {
			return nil, err
		}
		want = &d
	}
	image, err := h.programs.Open(program, want)
	if err != nil {
		return nil, err
	}
	err = checkInterpreter(image, spec.Interpreter)
	if err == nil && spec.Admit != nil {
		err = callback.Call(func() error { return spec.Admit(ctx, pinOf(spec, image)) })
	}
	if failed, ok := errors.AsType[*callback.Error](err); ok {
		err = fmt.Errorf("nobody knows whether it may run: Admit failed: %w", failed)
	}
	if err != nil {
		image.Release()
		return nil, err
	}
	return image, nil
}

func pinOf(spec Spec, image *sealedexec.Image) plugin.Pin {
	return plugin.Pin{PackageName: spec.Name, InstanceID: image.Digest.InstanceID()}
}

func checkInterpreter(image *sealedexec.Image, listed string) error {
	script := image.Script
	switch {
	case script == nil:
		return nil
	case listed == "":
		return fmt.Errorf("%s is a script, and no interpreter is listed for it: list %s as its interpreter, if that may run it",
			image.Path, script.Interpreter)
	case script.Interpreter != listed:
		return fmt.Errorf("%s is a script for %s, and the interpreter that is listed for it is %s", image.Path, script.Interpreter, listed)
	}
	return sealedexec.TrustInterpreter(script.Interpreter)
}

// explain adds the cause to the error of a launch, if the system does not report it: a missing working directory or interpreter, for
// example.
func explain(err error, spec Spec, program string) error {
	if spec.Dir != "" {
		switch info, missing := os.Stat(spec.Dir); {
		case missing != nil:
			return fmt.Errorf("its working directory: %w: create it, or choose another", missing)
		case !info.IsDir():
			return fmt.Errorf("its working directory: %w: choose another", &os.PathError{Op: "chdir", Path: spec.Dir, Err: syscall.ENOTDIR})
		case errors.Is(err, fs.ErrPermission):
			return fmt.Errorf("%w: check that the plugin's user may execute the program and enter the working directory %s", err, spec.Dir)
		}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOEXEC) {
		if why := sealedexec.Explain(program); why != nil {
			return fmt.Errorf("%w: %w", why, err)
		}
	}
	return err
}

// execute replaces the file by the image in a spec. The copy is the first descriptor after the ExtraFiles. It stays open in the plugin,
// because an interpreter reads its script from there.
func execute(s *process.Spec, image *sealedexec.Image) {
	if image == nil {
		return
	}
	copied := "/proc/self/fd/" + strconv.Itoa(firstExtra+len(s.ExtraFiles))
	s.ExtraFiles = append(s.ExtraFiles[:len(s.ExtraFiles):len(s.ExtraFiles)], image.File)
	s.Path = copied
	if script := image.Script; script != nil {
		s.Path, s.Args = script.Interpreter, script.CommandLine(copied, s.Args[1:])
	}
}

// firstExtra is the descriptor of the first of the ExtraFiles.
const firstExtra = 3

// identify returns the user and the group for a plugin; nil for those of this process.
func identify(userName, groupName string) (*process.User, error) {
	if userName == "" && groupName == "" {
		return nil, nil //nolint:nilnil // documented
	}
	uid, gid, err := account.IDs(userName, groupName)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 && int(uid) == os.Geteuid() && int(gid) == os.Getegid() {
		return nil, nil //nolint:nilnil // documented
	}
	if !process.MayChangeUser() {
		return nil, fmt.Errorf("it must run as user %d and group %d, which takes root, or CAP_SETUID, CAP_SETGID "+
			"and CAP_KILL; this process is user %d: run it as root or with these capabilities, or configure neither user nor group",
			uid, gid, os.Geteuid())
	}
	return &process.User{UID: uid, GID: gid}, nil
}

// admitUser sets the user of a process, and gives the user access to the socket of the host and to the plugin's own directory.
func (h *Host) admitUser(s *process.Spec, as *process.User, spec Spec) error {
	if spec.User == "" && spec.Group == "" {
		return nil
	}
	s.User = as
	if needsAccess(as, spec) && int(as.UID) != os.Geteuid() {
		// Other users cannot list the directory, and the host checks each connection.
		if err := errors.Join(os.Chmod(h.server.path, 0o666), os.Chmod(h.server.dir.path, 0o711)); err != nil {
			return fmt.Errorf("let user %d reach the host's socket: %w", as.UID, err)
		}
	}
	if as != nil && spec.OwnDir != "" {
		if err := giveDir(spec.OwnDir, filepath.Dir(spec.PluginSocket), as); err != nil {
			return fmt.Errorf("give user %d the directory in which it makes its files: %w", as.UID, err)
		}
	}
	return nil
}

// needsAccess reports whether a plugin that runs as another user calls the host and creates files beside its socket. For a foreign plugin
// the host does both.
func needsAccess(as *process.User, spec Spec) bool { return as != nil && spec.Adapter == nil }

// giveDir makes a user the owner of a directory, and the directories above it, up to top, searchable for all users.
func giveDir(dir, top string, to *process.User) error {
	if err := os.Lchown(dir, int(to.UID), int(to.GID)); err != nil {
		return err
	}
	for dir != top && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		if err := makeSearchable(dir); err != nil {
			return err
		}
	}
	return nil
}

// makeSearchable lets all users access files in a directory, but not list it.
func makeSearchable(dir string) error {
	const search = 0o001
	info, err := os.Stat(dir)
	if err != nil || info.Mode()&search != 0 {
		return err
	}
	return os.Chmod(dir, info.Mode()|search)
}
