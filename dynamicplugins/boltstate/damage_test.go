package boltstate_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
)

// stateFile creates a state file with n plugins and returns its path and content.
func stateFile(tb testing.TB, n int) (string, []byte) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "state.db")
	store, err := boltstate.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	plugins := make([]*dynamicplugins.PluginInfo, n)
	for i := range plugins {
		plugins[i] = info(i)
		if err := store.PutDynamicPluginChange(change(plugins[i])); err != nil {
			tb.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		tb.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return path, content
}

// edit changes a state file with bbolt.
func edit(tb testing.TB, path string, change func(tx *bbolt.Tx) error) {
	tb.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(db.Update(change), db.Close()); err != nil {
		tb.Fatal(err)
	}
}

func write(tb testing.TB, path string, content []byte) {
	tb.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		tb.Fatal(err)
	}
}

// TestDamage checks that Open returns a one-line error with the path and the reason for each damaged file, and does not change the file.
func TestDamage(t *testing.T) {
	const moveAway = "; it was left as it is: move it away to start with an empty state"
	page := os.Getpagesize()
	truncated := func(size int) func(testing.TB, string, []byte) {
		return func(tb testing.TB, path string, content []byte) { write(tb, path, content[:size]) }
	}
	for name, test := range map[string]struct {
		damage func(tb testing.TB, path string, content []byte)
		want   string
		is     error
	}{
		"Empty":   {damage: truncated(0), want: "it is empty" + moveAway},
		"OneByte": {damage: truncated(1), want: "its first pages cannot be read"},
		"Text": {damage: func(tb testing.TB, path string, _ []byte) {
			write(tb, path, bytes.Repeat([]byte("no state file\n"), 10_000))
		}, want: "it is not a bbolt file" + moveAway},
		"Zeros":         {damage: func(tb testing.TB, path string, _ []byte) { write(tb, path, make([]byte, 1<<16)) }, want: "it is not a bbolt file"},
		"OnePage":       {damage: truncated(page), want: "it ends too early: it has "},
		"TwoPages":      {damage: truncated(2 * page), want: "it is damaged: it ends too early: it has "},
		"WithinTheTree": {damage: truncated(5*page - 1), want: "it is damaged: it ends too early: it has "},
		"BothMetaPages": {damage: func(tb testing.TB, path string, content []byte) {
			content[16+48]++
			content[page+16+48]++
			write(tb, path, content)
		}, want: "its first pages are damaged"},
		"TreePages": {damage: func(tb testing.TB, path string, content []byte) {
			clear(content[2*page:])
			write(tb, path, content)
		}, want: "it is damaged: page "},
		"OneByteOfARecord": {damage: func(tb testing.TB, path string, content []byte) {
			for i := bytes.Index(content, []byte("1.2.3")); i >= 0; i = bytes.Index(content, []byte("1.2.3")) {
				content[i] = '7'
			}
			write(tb, path, content)
		}, want: "its checksum is wrong"},
		"Foreign": {damage: func(tb testing.TB, path string, _ []byte) {
			if err := os.Remove(path); err != nil {
				tb.Fatal(err)
			}
			edit(tb, path, func(tx *bbolt.Tx) error {
				_, err := tx.CreateBucket([]byte("plugins"))
				return err
			})
		}, want: "it is a bbolt file of another program" + moveAway},
		"NewerFormat": {damage: func(tb testing.TB, path string, _ []byte) {
			edit(tb, path, func(tx *bbolt.Tx) error {
				return tx.Bucket([]byte("patchbay")).Put([]byte("format"), binary.AppendUvarint(nil, 2))
			})
		}, is: boltstate.ErrNewer, want: "it has format 2 and this program knows formats up to 1"},
		"NoFormat": {damage: func(tb testing.TB, path string, _ []byte) {
			edit(tb, path, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("patchbay")).Delete([]byte("format")) })
		}, want: "its format version is malformed"},
		"NoPlugins": {damage: func(tb testing.TB, path string, _ []byte) {
			edit(tb, path, func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("plugins")) })
		}, want: "it has no list of plugins"},
		"MalformedRecord": {damage: func(tb testing.TB, path string, _ []byte) {
			edit(tb, path, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("plugins")).Put([]byte("k"), []byte("v")) })
		}, want: `the record of plugin "k" is damaged`},
	} {
		t.Run(name, func(t *testing.T) {
			path, content := stateFile(t, 200)
			test.damage(t, path, content)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = boltstate.Open(path)
			if test.is == nil {
				test.is = boltstate.ErrCorrupt
			}
			if !errors.Is(err, test.is) {
				t.Fatalf("got %v, want %v", err, test.is)
			}
			text := err.Error()
			if !strings.HasPrefix(text, "cannot open state file "+path+": ") || !strings.Contains(text, test.want) || strings.Contains(text, "\n") {
				t.Errorf("error is %q, want one with %q", text, test.want)
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
}

func TestNoRegularFile(t *testing.T) {
	if _, err := boltstate.Open(t.TempDir()); !errors.Is(err, boltstate.ErrCorrupt) {
		t.Errorf("opening a directory: %v", err)
	}
}

// TestTornMetaPage checks that Open uses the other meta page if a crash has torn one.
func TestTornMetaPage(t *testing.T) {
	size := os.Getpagesize()
	for page := range 2 {
		path, content := stateFile(t, 50)
		clear(content[page*size : page*size+size/2])
		write(t, path, content)
		if n := len(storedNames(t, path)); n < 49 {
			t.Errorf("with meta page %d torn, %d of 50 plugins are left", page, n)
		}
	}
}

// TestFlippedBitOfAMetaPage checks that Open returns an error for a flipped bit in the newest meta page. bbolt would use the older page,
// and lose the last change without an error.
func TestFlippedBitOfAMetaPage(t *testing.T) {
	size := os.Getpagesize()
	for _, plugins := range []int{3, 4} { // the meta pages take turns
		path, content := stateFile(t, plugins)
		newest := 0
		if binary.NativeEndian.Uint64(content[size+16+48:]) > binary.NativeEndian.Uint64(content[16+48:]) {
			newest = 1
		}
		for page := range 2 {
			step := 1
			if page != newest {
				step = 29
			}
			for bit := 0; bit < 64*8; bit += step {
				damaged := bytes.Clone(content)
				damaged[page*size+16+bit/8] ^= 1 << (bit % 8)
				write(t, path, damaged)
				store, err := boltstate.Open(path)
				if err == nil {
					err = store.Close()
				}
				if page != newest && err != nil {
					t.Fatalf("with bit %d of the older meta page flipped: %v", bit, err)
				}
				if page == newest && (!errors.Is(err, boltstate.ErrCorrupt) || !strings.Contains(err.Error(), "the last change would be lost")) {
					t.Fatalf("with bit %d of the newest meta page flipped: %v", bit, err)
				}
			}
		}
	}
}

// FuzzOpen damages a state file in two places and corrects the checksums of its meta pages. Open returns a working store or an error that
// matches a sentinel, and then leaves the file as it is.
func FuzzOpen(f *testing.F) {
	_, sound := stateFile(f, 60)
	for offset := 16; offset < len(sound); offset += 1009 {
		f.Add(uint32(offset), uint64(1), uint32(0), uint64(0))
		f.Add(uint32(offset), uint64(0xFF00FF), uint32(offset*7), uint64(2))
	}
	for offset := range uint32(80) { // the meta page
		f.Add(offset, uint64(1), offset+uint32(os.Getpagesize()), uint64(1))
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, offset1 uint32, flip1 uint64, offset2 uint32, flip2 uint64) {
		content := append(bytes.Clone(sound), make([]byte, 8)...)
		for offset, flip := range map[uint32]uint64{offset1: flip1, offset2: flip2} {
			b := content[int(offset)%len(sound):]
			binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)^flip)
		}
		content = content[:len(sound)]
		for page := range 2 {
			meta := content[page*os.Getpagesize()+16:][:64]
			sum := fnv.New64a()
			_, _ = sum.Write(meta[:56])
			binary.NativeEndian.PutUint64(meta[56:], sum.Sum64())
		}
		path := filepath.Join(t.TempDir(), "state.db")
		write(t, path, content)
		store, err := boltstate.Open(path)
		if err != nil {
			if !errors.Is(err, boltstate.ErrCorrupt) && !errors.Is(err, boltstate.ErrNewer) {
				t.Errorf("error without a sentinel: %v", err)
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(content, after) {
				t.Errorf("the file was changed: %v", err)
			}
			return
		}
		defer store.Close()
		for i := range 4 {
			if err := store.PutDynamicPluginChange(change(info(i * 7))); err != nil {
				t.Error(err)
			}
		}
		if _, err := store.GetDynamicPluginRegistryState(); err != nil {
			t.Error(err)
		}
	})
}
