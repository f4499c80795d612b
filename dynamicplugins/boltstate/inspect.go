package boltstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"go.etcd.io/bbolt"
)

// inspect reports what is wrong with the file at path, without changing it.
func inspect(path string) (err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("cannot open state file: %w", err)
	case !info.Mode().IsRegular():
		return corrupt(path, "it is no regular file")
	case info.Size() == 0:
		return corrupt(path, "it is empty")
	}
	// gofail: var boltstateInspect string
	// return fmt.Errorf("cannot open state file: %s", boltstateInspect)
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot open state file: %w", err)
	}
	defer f.Close()
	if _, err := readMeta(f, info.Size()); err != nil {
		return unsound(path, "%v", err)
	}

	// From here on the file is locked, so that no other process is at work on what is read.
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

// inspectContent checks the format and every record.
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
			return newer(path, version)
		case plugins == nil:
			return corrupt(path, "it has no list of plugins")
		}
		return plugins.ForEach(func(key, value []byte) error {
			if _, err := decode(key, value); err != nil {
				return corrupt(path, "the record of plugin %q is damaged: %v", key, err)
			}
			return nil
		})
	})
	return err
}
