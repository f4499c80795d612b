package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// place is what a host makes for a plugin that serves before it is started. The zero place is that of one that needs nothing.
type place struct {
	room   string     // the directory of its socket, if there was none
	socket *sock.Made // which it inherits; nil if it has to make its own
	// introduction is how the plugin can say who it is before it serves on the socket, and pen what it inherits for that; nil if it cannot.
	introduction *handshake.Introduction
	pen          *os.File
}

// makePlace makes a directory for a plugin that runs as somebody else, and the socket of one that can be told of it, and has what is left
// of them removed with the process. The directory is given away last: what is at a path in somebody else's need not be what was made there.
// A foreign plugin is given nothing: its socket is this process's.
func makePlace(s *process.Spec, spec Spec) (at place, err error) {
	if spec.PluginSocket == "" {
		return place{}, nil
	}
	path, err := process.Resolve(spec.PluginSocket)
	if err != nil {
		return place{}, err
	}
	defer func() {
		if err != nil {
			at.remove()
		}
	}()
	s.Sockets = map[string]sock.ID{}
	theirs := false // the directory
	if spec.User != "" || spec.Group != "" {
		at.room, err = makeRoom(filepath.Dir(path))
		theirs = at.room == ""
	}
	if err == nil && spec.Foreign == nil {
		s.Remove = sock.Traces(path)
		if !theirs {
			err = at.makeSocket(s, path)
		}
	}
	if err == nil && at.room != "" && reaches(s.User, spec) {
		err = at.give(s)
	}
	if s.Remove = append(s.Remove, path); at.room != "" {
		s.Remove = append(s.Remove, at.room)
	}
	return at, err
}

// makeRoom makes a directory; room is empty if there was one, which the caller has made as he wants it.
func makeRoom(dir string) (room string, err error) {
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

func (p *place) makeSocket(s *process.Spec, path string) (err error) {
	// gofail: var hostSocket string
	// return errors.New(hostSocket)
	if p.socket, err = sock.Make(path); p.socket != nil {
		s.ExtraFiles = append(s.ExtraFiles, p.socket.File)
		if p.introduction, p.pen, _ = handshake.NewIntroduction(); p.pen != nil { // without one it is asked
			s.ExtraFiles = append(s.ExtraFiles, p.pen)
		}
	}
	return err
}

// bind gives the socket its name, unless it has it. In a directory of this user's that is done while the process begins, which takes as
// long.
func (p *place) bind(s *process.Spec) error {
	if p.socket == nil || !p.socket.ID().IsZero() {
		return nil
	}
	err := p.socket.Bind()
	s.Sockets[p.socket.Path] = p.socket.ID() // at its own path the plugin may serve on another one
	return err
}

// give makes the place a user's.
func (p *place) give(s *process.Spec) error {
	uid, gid := int(s.User.UID), int(s.User.GID)
	err := p.bind(s)
	if err == nil && p.socket != nil {
		err = os.Lchown(p.socket.Path, uid, gid)
	}
	if err == nil {
		err = os.Lchown(p.room, uid, gid)
	}
	if err == nil && uid != os.Geteuid() {
		err = makeSearchable(filepath.Dir(p.room))
	}
	if err != nil {
		return fmt.Errorf("give user %d the directory in which it is to serve: %w", uid, err)
	}
	return nil
}

// listener is what the plugin is told of its socket; nil if it has to make its own.
func (p *place) listener(s *process.Spec) *handshake.Listener {
	if p.socket == nil {
		return nil
	}
	last := firstExtra + len(s.ExtraFiles) - 1
	if p.pen == nil {
		return &handshake.Listener{FD: last, Path: p.socket.Path}
	}
	return &handshake.Listener{FD: last - 1, Path: p.socket.Path, Introduction: last}
}

// close closes what the plugin has inherited by now.
func (p *place) close() {
	if p.socket != nil {
		_ = p.socket.File.Close()
	}
	if p.pen != nil {
		_ = p.pen.Close()
	}
}

// Settled says that the plugin serves and is known. A socket that was made for it and that it has not taken is removed: it has made its
// own.
func (p *PluginProcess) Settled() {
	p.introduction.Take() // of one that a front has asked
	if p.made != nil {
		_ = p.made.Remove()
	}
}

// remove removes what was made for a plugin that is not started.
func (p *place) remove() {
	p.close()
	p.introduction.Take()
	if p.socket != nil {
		_ = p.socket.Remove()
	}
	if p.room != "" {
		_ = os.Remove(p.room)
	}
}
