package boltstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/patchbay-dev/patchbay/internal/regular"
)

// formatVersion is the format that this package writes, and the newest that it reads. In version 1, the bucket "patchbay" has the version
// under the key "format", as an unsigned varint, and the bucket "plugins" has the records. The optional bucket "names" has the
// reservations. A bucket whose name begins with "handler/" is a [Bucket].
const formatVersion = 1

var (
	metaBucket    = []byte("patchbay")
	formatKey     = []byte("format")
	pluginsBucket = []byte("plugins")
	namesBucket   = []byte("names")
)

// lockTimeout is how long Open waits for a process that has the file open, for example one that is exiting.
const lockTimeout = time.Second

var (
	// ErrCorrupt means that the file is damaged, or was not written by this package.
	ErrCorrupt = errors.New("not a sound state file")
	// ErrNewer means that the file has a newer format than this package knows.
	ErrNewer = errors.New("state file of a newer format")
	// ErrLocked means that the file is open, in another process or in this one.
	ErrLocked = errors.New("state file in use")
	// ErrReplaced means that another file was at the path when the file was opened again after a failure.
	ErrReplaced = errors.New("state file was replaced")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("state file was closed")
)

// fileError is an error about a whole state file, with advice.
type fileError struct {
	path   string
	kind   error
	detail string
	advice string
}

func (e *fileError) Error() string {
	return fmt.Sprintf("cannot open state file %s: %s; %s", e.path, e.detail, e.advice)
}

func (e *fileError) Is(target error) bool { return target == e.kind }

func corrupt(path, format string, args ...any) error {
	return &fileError{path, ErrCorrupt, fmt.Sprintf(format, args...), "it was left as it is: move it away to start with an empty state"}
}

// unsound returns the error of corrupt, unless err is that the device cannot be read, which says nothing about the file.
func unsound(path, format string, err error) error {
	if _, device := errors.AsType[*fs.PathError](err); device {
		return fmt.Errorf("cannot read state file: %w; see whether its device works", err)
	}
	return corrupt(path, format, err)
}

// Open opens the state file at path. If it does not exist, Open creates it with mode 0600, and its directory with mode 0750. The error
// matches [ErrCorrupt] if the file is damaged, [ErrNewer] if it has a newer format, and [ErrLocked] if it is still open, in another process
// or in this one, after a second. In these cases, Open does not change the file.
func Open(path string) (*Store, error) {
	if path == "" {
		return nil, errors.New("cannot open a state file: its path is empty")
	}
	path, err := filepath.Abs(path) // it is opened again after a failure
	if err != nil {
		return nil, fmt.Errorf("cannot open state file: %w", err)
	}
	if err := create(path); err != nil {
		return nil, fmt.Errorf("cannot create state file %s: %w", path, err)
	}
	if err := inspect(path); err != nil {
		return nil, err
	}
	db, err := openDB(path, false)
	if err != nil {
		return nil, err
	}
	meta, err := db.newest()
	if err != nil {
		db.close()
		return nil, unsound(path, "%v", err)
	}
	return &Store{path: path, db: db, last: meta.transaction}, nil
}

// create creates an empty state file at path unless a file exists. After a crash there is either no file or a complete one.
func create(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	// gofail: var boltstateCreate string
	// return errors.New(boltstateCreate)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".new-")
	if err != nil {
		return err
	}
	fresh := f.Name()
	defer os.Remove(fresh)
	if err := f.Close(); err != nil {
		return err
	}
	if err := format(fresh); err != nil {
		return err
	}
	// gofail: var boltstateLink struct{}
	// fresh += ".gone"

	// Unlike a rename, a link does not replace a file that another process has created.
	if err := os.Link(fresh, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(dir)
}

func format(path string) error {
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		// gofail: var boltstateFormat string
		// return errors.New(boltstateFormat)
		meta, err := tx.CreateBucket(metaBucket)
		if err != nil {
			return err
		}
		if err := meta.Put(formatKey, binary.AppendUvarint(nil, formatVersion)); err != nil {
			return err
		}
		_, err = tx.CreateBucket(pluginsBucket)
		return err
	})
	return errors.Join(err, db.Close())
}

// syncFile makes writes to a file durable. Tests replace it.
var syncFile = (*os.File).Sync

// syncDir makes the entries of a directory durable.
func syncDir(dir string) error {
	// gofail: var boltstateSyncDir string
	// return errors.New(boltstateSyncDir)
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(syncFile(d), d.Close())
}

func openDB(path string, readOnly bool) (db *database, err error) {
	// gofail: var boltstateOpen string
	// return nil, fmt.Errorf("cannot open state file %s: %s", path, boltstateOpen)
	defer func() {
		if p := recover(); p != nil {
			err = corrupt(path, "it is damaged (%v)", p)
		}
	}()
	db = &database{}
	db.bolt, err = bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:      lockTimeout,
		ReadOnly:     readOnly,
		FreelistType: bbolt.FreelistMapType,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			db.file, err = os.OpenFile(name, flag&^os.O_CREATE, mode)
			return db.file, err
		},
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, &fileError{
			path, ErrLocked, "it is open already, in another process or in this one", "close it there or use another state file",
		}
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, corrupt(path, "it is damaged (%v)", err)
	case err != nil:
		return nil, fmt.Errorf("cannot open state file %s: %w", path, err)
	}
	return db, nil
}

// inspect returns an error if the file at path is not a valid state file. It does not change the file.
func inspect(path string) (err error) {
	// gofail: var boltstateInspect string
	// return fmt.Errorf("cannot open state file: %s", boltstateInspect)
	f, err := regular.Open(path)
	if errors.Is(err, regular.ErrNotRegular) || errors.Is(err, syscall.EISDIR) {
		return corrupt(path, "it is not a regular file")
	}
	if err != nil {
		return fmt.Errorf("cannot open state file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("cannot open state file: %w", err)
	}
	if info.Size() == 0 {
		return corrupt(path, "it is empty")
	}
	if _, err := readMeta(f, info.Size()); err != nil {
		return unsound(path, "%v", err)
	}

	// openDB locks the file, so that no other process changes it during the checks.
	db, err := openDB(path, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.bolt.Close()) }()
	if info, err = f.Stat(); err != nil {
		return fmt.Errorf("cannot open state file: %w", err)
	}
	if err := checkPages(f, info.Size()); err != nil {
		return unsound(path, "it is damaged: %v", err)
	}
	return inspectContent(path, db)
}

func inspectContent(path string, db *database) error {
	_, err := db.transact(false, func(tx *bbolt.Tx) error {
		meta, plugins := tx.Bucket(metaBucket), tx.Bucket(pluginsBucket)
		if meta == nil {
			return corrupt(path, "it is a bbolt file of another program")
		}
		version, size := binary.Uvarint(meta.Get(formatKey))
		switch {
		case size <= 0 || version == 0:
			return corrupt(path, "its format version is malformed")
		case version > formatVersion:
			return &fileError{path, ErrNewer, fmt.Sprintf("it has format %d and this program knows formats up to %d", version, formatVersion),
				"run the newer program that wrote it, or move it away to start with an empty state"}
		case plugins == nil:
			return corrupt(path, "it has no list of plugins")
		}
		err := plugins.ForEach(func(key, value []byte) error {
			if _, err := decode(key, value); err != nil {
				return corrupt(path, "the record of plugin %q is damaged: %v", key, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		_, err = reservations(tx)
		if err != nil {
			return corrupt(path, "%v", err)
		}
		return nil
	})
	return err
}
