package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// socketSetup has the files that the host creates for a plugin that serves before it is started. It is zero for other plugins.
type socketSetup struct {
	createdDir string     // the directory of the socket; empty if it existed already
	socket     *sock.Made // the socket that the plugin inherits; nil if the plugin has to make its own
	// introduction reads the answer to GetInfo that the plugin writes before it serves, to the inherited introductionWriter; nil if there
	// is no pipe for that.
	introduction       *handshake.Introduction
	introductionWriter *os.File
}

// setUpSocket creates the socket that the plugin inherits and, for a plugin that runs as another user, its directory. Both are removed when
// the process has ended. The user becomes the owner of the directory last, because from then on the user can replace files in it. For a
// foreign plugin no socket is created: this process serves it.
func setUpSocket(s *process.Spec, spec Spec) (at socketSetup, err error) {
	if spec.PluginSocket == "" {
		return socketSetup{}, nil
	}
	path, err := process.Resolve(spec.PluginSocket)
	if err != nil {
		return socketSetup{}, err
	}
	defer func() {
		if err != nil {
			at.remove()
		}
	}()
	s.Sockets = map[string]plugin.SocketID{}
	theirs := false // the directory
	if spec.User != "" || spec.Group != "" {
		at.createdDir, err = createSocketDir(filepath.Dir(path))
		theirs = at.createdDir == ""
	}
	if err == nil && spec.Adapter == nil {
		s.Remove = sock.Traces(path)
		if !theirs {
			err = at.makeSocket(s, path)
		}
	}
	if err == nil && at.createdDir != "" && needsAccess(s.User, spec) {
		err = at.give(s)
	}
	if s.Remove = append(s.Remove, path); at.createdDir != "" {
		s.Remove = append(s.Remove, at.createdDir)
	}
	return at, err
}

// createSocketDir makes a directory; created is empty if it existed already.
func createSocketDir(dir string) (created string, err error) {
	// gofail: var hostRoom string
	// return "", fmt.Errorf("create a directory in which it can serve as another user or group: %s", hostRoom)
	switch err := os.Mkdir(dir, 0o700); {
	case errors.Is(err, os.ErrExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("create a directory in which it can serve as another user or group: %w", err)
	}
	return dir, nil
}

func (p *socketSetup) makeSocket(s *process.Spec, path string) (err error) {
	// gofail: var hostSocket string
	// return errors.New(hostSocket)
	if p.socket, err = sock.Make(path); p.socket != nil {
		s.ExtraFiles = append(s.ExtraFiles, p.socket.File)
		if p.introduction, p.introductionWriter, _ = handshake.NewIntroduction(); p.introductionWriter != nil { // else GetInfo is called
			s.ExtraFiles = append(s.ExtraFiles, p.introductionWriter)
		}
	}
	return err
}

// bind binds the socket to its path, unless that is done. In a directory of this user, bind runs while the process starts, to save time.
func (p *socketSetup) bind(s *process.Spec) error {
	if p.socket == nil || !p.socket.ID().IsZero() {
		return nil
	}
	err := p.socket.Bind()
	s.Sockets[p.socket.Path] = p.socket.ID()
	return err
}

// give makes the user of the plugin the owner of the socket and its directory.
func (p *socketSetup) give(s *process.Spec) error {
	uid, gid := int(s.User.UID), int(s.User.GID)
	err := p.bind(s)
	if err == nil && p.socket != nil {
		err = os.Lchown(p.socket.Path, uid, gid)
	}
	if err == nil {
		err = os.Lchown(p.createdDir, uid, gid)
	}
	if err == nil && uid != os.Geteuid() {
		err = makeSearchable(filepath.Dir(p.createdDir))
	}
	if err != nil {
		return fmt.Errorf("give user %d the directory in which it is to serve: %w", uid, err)
	}
	return nil
}

// listener describes the inherited socket in the handshake; nil if the plugin has to make its own.
func (p *socketSetup) listener(s *process.Spec) *handshake.Listener {
	if p.socket == nil {
		return nil
	}
	last := firstExtra + len(s.ExtraFiles) - 1
	if p.introductionWriter == nil {
		return &handshake.Listener{FD: last, Path: p.socket.Path}
	}
	return &handshake.Listener{FD: last - 1, Path: p.socket.Path, Introduction: last}
}

// close closes the files that the plugin has inherited.
func (p *socketSetup) close() {
	if p.socket != nil {
		_ = p.socket.File.Close()
	}
	if p.introductionWriter != nil {
		_ = p.introductionWriter.Close()
	}
}

// MarkRegistered reports that the plugin is registered. A socket that was made for the plugin is removed if the plugin may have made its
// own instead.
func (p *PluginProcess) MarkRegistered() {
	p.Introduction() // closes it, in case a front has called GetInfo
	if p.made != nil && !p.introduced.Load() {
		_ = p.made.Remove()
	}
}

// remove removes the files of a plugin that could not be started.
func (p *socketSetup) remove() {
	p.close()
	p.introduction.Take()
	if p.socket != nil {
		_ = p.socket.Remove()
	}
	if p.createdDir != "" {
		_ = os.Remove(p.createdDir)
	}
}
