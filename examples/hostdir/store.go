//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// What is in the root directory. A volume exists if, and only if, there is a directory with its ID in volumesDir, which appears and goes by
// a rename; what is half made or half deleted is in scratchDir. Each has the record and the data.
const (
	volumesDir = "volumes"
	scratchDir = "scratch"
	lockFile   = "lock"
	recordFile = "volume.json"
	dataDir    = "data"
)

// volume is the record of a volume.
type volume struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Capacity int64  `json:"capacity"`
	// Uses are the paths at which the volume was asked to be. One is recorded before anything is done there, and forgotten afterwards.
	Uses map[string]use `json:"uses,omitempty"`
}

type use struct {
	Staging  bool `json:"staging,omitempty"`
	ReadOnly bool `json:"readOnly,omitempty"`
}

var (
	errNoVolume = errors.New("there is no such volume")
	errInUse    = errors.New("the volume is in use")
)

// store is the volumes on disk. Nothing of them is kept in memory, because another instance of the driver may use the same root. It is safe
// for concurrent use, by several processes too.
type store struct {
	dir      string // absolute, without symbolic links
	root     *os.Root
	capacity int64
}

// openStore opens the root directory, makes it if it is not there, and deletes what a crash left half done.
func openStore(dir string, capacity int64) (_ *store, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &store{dir: dir, root: root, capacity: capacity}
	defer func() {
		if err != nil {
			_ = root.Close()
		}
	}()
	if err := errors.Join(root.MkdirAll(volumesDir, 0o750), root.MkdirAll(scratchDir, 0o750)); err != nil {
		return nil, err
	}
	if s.capacity == 0 {
		var fsys unix.Statfs_t
		if err := unix.Statfs(dir, &fsys); err != nil {
			return nil, fmt.Errorf("cannot see the size of the file system of %s; give --capacity: %w", dir, err)
		}
		s.capacity = int64(fsys.Blocks) * fsys.Bsize
	}
	if err := s.locked(context.Background(), s.clean); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *store) Close() error { return s.root.Close() }

// locked calls fn while no other call, in this process or another, is in one.
func (s *store) locked(ctx context.Context, fn func() error) error {
	lock, err := s.root.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // gives up the lock
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			if err := errors.Join(err, ctx.Err()); err != nil {
				return err
			}
			return fn()
		}
	}
}

// clean empties the scratch directory.
func (s *store) clean() error {
	left, err := fs.ReadDir(s.root.FS(), scratchDir)
	if err != nil {
		return err
	}
	for _, entry := range left {
		_ = unmount(filepath.Join(s.dir, scratchDir, entry.Name())) // only what newAttacher tried is mounted
		err = errors.Join(err, s.root.RemoveAll(filepath.Join(scratchDir, entry.Name())))
	}
	return err
}

// idOf returns the ID of the volume with a name. It follows from the name, so a CreateVolume that is repeated finds what it made.
func idOf(name string) string {
	digest := sha256.Sum256([]byte(name))
	return hex.EncodeToString(digest[:16])
}

// isID says whether the text could be the ID of a volume. Nothing else ever becomes a part of a path.
func isID(s string) bool {
	digest, err := hex.DecodeString(s)
	return err == nil && len(digest) == 16 && hex.EncodeToString(digest) == s
}

// dataPath is where the data of a volume is.
func (s *store) dataPath(id string) string { return filepath.Join(s.dir, volumesDir, id, dataDir) }

// get returns a volume. If there is none, the error is errNoVolume.
func (s *store) get(id string) (*volume, error) {
	if !isID(id) {
		return nil, errNoVolume
	}
	record, err := s.root.ReadFile(filepath.Join(volumesDir, id, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoVolume
	}
	if err != nil {
		return nil, err
	}
	v := &volume{}
	if err := json.Unmarshal(record, v); err != nil {
		return nil, fmt.Errorf("the record of volume %s is damaged; repair %s: %w", id, s.dataPath(id), err)
	}
	if v.Uses == nil {
		v.Uses = map[string]use{}
	}
	return v, nil
}

// ids returns the IDs of all volumes, sorted.
func (s *store) ids() ([]string, error) {
	entries, err := fs.ReadDir(s.root.FS(), volumesDir)
	var ids []string
	for _, entry := range entries {
		if isID(entry.Name()) {
			ids = append(ids, entry.Name())
		}
	}
	slices.Sort(ids)
	return ids, err
}

// used returns the bytes that all volumes together have.
func (s *store) used() (total int64, err error) {
	ids, err := s.ids()
	for _, id := range ids {
		v, verr := s.get(id)
		if errors.Is(verr, errNoVolume) {
			continue // deleted meanwhile
		}
		if verr != nil {
			return 0, verr
		}
		total += v.Capacity
	}
	return total, err
}

// create makes a volume that is not there. It is called in locked.
func (s *store) create(v *volume) (err error) {
	made := filepath.Join(scratchDir, rand.Text())
	defer func() {
		if err != nil {
			err = errors.Join(err, s.root.RemoveAll(made))
		}
	}()
	if err := s.root.Mkdir(made, 0o750); err != nil {
		return err
	}
	if err := s.root.Mkdir(filepath.Join(made, dataDir), 0o750); err != nil {
		return err
	}
	if err := s.write(made, v); err != nil {
		return err
	}
	if err := s.root.Rename(made, filepath.Join(volumesDir, v.ID)); err != nil {
		return err
	}
	return s.sync(volumesDir)
}

// save replaces the record of a volume. It is called in locked.
func (s *store) save(v *volume) error { return s.write(filepath.Join(volumesDir, v.ID), v) }

// write puts a record into a directory: all of it, or nothing.
func (s *store) write(dir string, v *volume) error {
	record, err := json.Marshal(v)
	if err != nil {
		return err
	}
	temporary := filepath.Join(dir, recordFile+".new")
	file, err := s.root.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, written := file.Write(record)
	if err := errors.Join(written, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := s.root.Rename(temporary, filepath.Join(dir, recordFile)); err != nil {
		return err
	}
	return s.sync(dir)
}

// sync makes the names in a directory durable.
func (s *store) sync(dir string) error {
	d, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// remove deletes a volume that nobody uses. One that is not there is not an error.
func (s *store) remove(ctx context.Context, id string) error {
	gone := filepath.Join(scratchDir, rand.Text())
	err := s.locked(ctx, func() error {
		v, err := s.get(id)
		if err != nil {
			return err
		}
		for path := range v.Uses {
			return fmt.Errorf("%w at %s", errInUse, path)
		}
		if err := s.root.Rename(filepath.Join(volumesDir, id), gone); err != nil {
			return err
		}
		return s.sync(volumesDir)
	})
	if errors.Is(err, errNoVolume) {
		return nil
	}
	if err != nil {
		return err
	}
	// Not under the lock, because it may take long; what a crash leaves of it, clean deletes.
	return s.root.RemoveAll(gone)
}
