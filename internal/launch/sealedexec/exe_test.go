//go:build linux

package sealedexec

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/plugin"
)

// write makes a program.
func write(t testing.TB, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return path
}

func digestOf(content string) *Digest {
	d := Digest(sha256.Sum256([]byte(content)))
	return &d
}

func read(t testing.TB, i *Image) string {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(i.File, 0, maxSize))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLoad(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "program"), "content")
	i, err := (&Cache{}).Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Release()
	write(t, path, "another content")
	if got := read(t, i); got != "content" || i.Digest != *digestOf("content") || i.Path != path || i.Script != nil {
		t.Errorf("the copy is %q, %d bytes of %s, digest %s", got, len(got), i.Path, i.Digest)
	}
}

// Whoever can open the copy cannot change it.
func TestSealed(t *testing.T) {
	i, err := (&Cache{}).Open(write(t, filepath.Join(t.TempDir(), "program"), "content"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Release()
	if _, err := i.File.WriteString("x"); err == nil {
		t.Error("it can be written through the descriptor")
	}
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", i.File.Fd()), os.O_RDWR, 0)
	if err == nil { // as root
		defer again.Close()
		for what, try := range map[string]error{
			"written": func() error { _, err := again.WriteAt([]byte("x"), 0); return err }(),
			"grown":   again.Truncate(100),
			"cut":     again.Truncate(1),
			"mapped for writing": func() error {
				_, err := unix.Mmap(int(again.Fd()), 0, 7, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				return err
			}(),
			"kept from being executed": again.Chmod(0o444),
		} {
			if !errors.Is(try, fs.ErrPermission) {
				t.Errorf("it can be %s: %v", what, try)
			}
		}
	}
	if got := read(t, i); got != "content" {
		t.Errorf("it has %q", got)
	}
}

func TestUnfit(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write(t, path("empty"), "")
	write(t, path("not executable"), "x")
	write(t, path("setuid"), "x")
	write(t, path("setgid"), "x")
	write(t, path("large"), "x")
	write(t, path("relative"), "#!sh\n")
	write(t, path("long line"), "#!/"+strings.Repeat("x", 300)+"\n")
	errs := errors.Join(
		os.Chmod(path("not executable"), 0o644), os.Chmod(path("setuid"), 0o755|fs.ModeSetuid), os.Chmod(path("setgid"), 0o755|fs.ModeSetgid),
		os.Truncate(path("large"), maxSize+1), unix.Mkfifo(path("pipe"), 0o755), os.Mkdir(path("directory"), 0o755),
	)
	if errs != nil {
		t.Fatal(errs)
	}
	for name, says := range map[string]string{
		"empty": "empty", "not executable": "not executable", "setuid": "setuid", "setgid": "setgid", "large": "at most", "pipe": "not a regular file",
		"directory": "not a regular file", "/dev/null": "not a regular file", "relative": "no interpreter", "long line": "more than",
	} {
		if !filepath.IsAbs(name) {
			name = path(name)
		}
		if _, err := (&Cache{}).Open(name, nil); !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (&Cache{}).Open(path("missing"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestCheckOpensRegularFilesOnly: to open a pipe would wait for a writer.
func TestCheckOpensRegularFilesOnly(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Check(pipe); err != nil {
		t.Errorf("what is not a program's file is judged: %v", err)
	}
}

func TestParseScript(t *testing.T) {
	tests := map[string]struct {
		program string
		want    *Script // nil if it is none
		bad     bool
	}{
		"none":             {"\x7fELF", nil, false},
		"almost":           {"#", nil, false},
		"plain":            {"#!/bin/sh\nexit\n", &Script{"/bin/sh", ""}, false},
		"spaces":           {"#! \t/bin/sh \t\n", &Script{"/bin/sh", ""}, false},
		"argument":         {"#!/usr/bin/env  -S python3 -u \n", &Script{"/usr/bin/env", "-S python3 -u"}, false},
		"no newline":       {"#!/bin/sh", &Script{"/bin/sh", ""}, false},
		"carriage return":  {"#!/bin/sh\r\n", &Script{"/bin/sh\r", ""}, false}, // as the kernel takes it
		"nothing":          {"#!\n/bin/sh\n", nil, true},
		"relative":         {"#!bin/sh\n", nil, true},
		"NUL":              {"#!/bin/sh\x00x\n", nil, true},
		"line ends at 256": {"#!/" + strings.Repeat("x", 252) + "\n", &Script{"/" + strings.Repeat("x", 252), ""}, false},
		"line too long":    {"#!/" + strings.Repeat("x", 253) + "\n", nil, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseScript([]byte(test.program))
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(Script{})); diff != "" || errors.Is(err, ErrUnfit) != test.bad {
				t.Errorf("%s, %v", diff, err)
			}
		})
	}
	line := (&Script{"/bin/sh", "-e x"}).CommandLine("/dev/fd/3", []string{"a", "b"})
	if diff := cmp.Diff([]string{"/bin/sh", "-e x", "/dev/fd/3", "a", "b"}, line); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseScript(f *testing.F) {
	f.Add([]byte("#!/bin/sh -e\n"))
	f.Add([]byte("#! \t\n"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, program []byte) {
		s, err := ParseScript(program)
		if s == nil {
			if err == nil && bytes.HasPrefix(program, []byte("#!")) {
				t.Errorf("%q was taken for no script", program)
			}
			return
		}
		if !filepath.IsAbs(s.Interpreter) || strings.ContainsAny(s.Interpreter+s.argument, "\n\x00") || !bytes.Contains(program, []byte(s.Interpreter)) {
			t.Errorf("%q was read as %+v", program, s)
		}
	})
}

func TestTrustInterpreter(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "sh"), "x")
	for mode, trusted := range map[fs.FileMode]bool{
		0o755: true, 0o500: true, 0o775: false, 0o757: false, 0o644: false, 0o755 | fs.ModeSetuid: false,
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := TrustInterpreter(path); (err == nil) != trusted {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := errors.Join(os.Chmod(path, 0o755), os.Chown(path, 12345, 0)); err != nil {
		t.Fatal(err)
	}
	if err := TrustInterpreter(path); !errors.Is(err, ErrUnfit) {
		t.Errorf("of another user: %v", err)
	}
}

// Whoever can change a directory or a link on the way to an interpreter can replace it.
func TestTrustInterpreterPath(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "bin", "sh")
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.Mkdir(filepath.Join(dir, "links"), 0o755)); err != nil {
		t.Fatal(err)
	}
	write(t, path, "x")
	link, linked, loop := filepath.Join(dir, "links", "sh"), filepath.Join(dir, "directory"), filepath.Join(dir, "loop")
	err := errors.Join(os.Chmod(path, 0o755), os.Symlink("../bin/./sh", link), os.Symlink(filepath.Dir(path), linked), os.Symlink("loop", loop))
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{path, link, filepath.Join(linked, "sh")}
	trust := func(what string, want ...bool) {
		t.Helper()
		for i, path := range paths {
			if err := TrustInterpreter(path); (err == nil) != want[i] || err != nil && !errors.Is(err, ErrUnfit) {
				t.Errorf("%s: %s: %v", what, path, err)
			}
		}
	}
	chmod := func(path string, mode fs.FileMode) {
		t.Helper()
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	trust("nobody else can write", true, true, true)
	chmod(filepath.Dir(link), 0o777)
	trust("the directory of a link", true, false, true)
	chmod(filepath.Dir(link), 0o777|fs.ModeSticky)
	trust("the same, sticky", true, true, true)
	chmod(filepath.Dir(path), 0o775)
	trust("the directory of the file", false, false, false)
	chmod(filepath.Dir(path), 0o755)
	chmod(dir, 0o757)
	trust("a directory above", false, false, false)
	chmod(dir, 0o755)
	if err := TrustInterpreter(loop); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a loop: %v", err)
	}
	if err := TrustInterpreter(dir); !errors.Is(err, ErrUnfit) {
		t.Errorf("a directory: %v", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Lchown(link, 12345, 0); err != nil {
		t.Fatal(err)
	}
	trust("a link of another user", true, false, true)
}

func TestCache(t *testing.T) {
	var c Cache
	defer c.Close()
	path := write(t, filepath.Join(t.TempDir(), "program"), "first")
	open := func(want string) *Image {
		t.Helper()
		i, err := c.Open(path, digestOf(want))
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	a, b := open("first"), open("first")
	if a != b {
		t.Error("an unchanged program was copied again")
	}
	if _, err := c.Open(path, digestOf("other")); !errors.Is(err, plugin.ErrDigest) {
		t.Errorf("another digest is expected of an unchanged program: %v", err)
	}
	any1, err := c.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if any1 == a {
		t.Error("a program that may have any digest was not read")
	}
	any1.Release()
	write(t, path, "other")
	_, err = c.Open(path, digestOf("first"))
	if !errors.Is(err, plugin.ErrDigest) || !strings.Contains(err.Error(), digestOf("first").String()) || !strings.Contains(err.Error(), digestOf("other").String()) {
		t.Errorf("a changed program: %v", err)
	}
	if got := read(t, a); got != "first" {
		t.Errorf("a copy in use became %q", got)
	}
	d := open("other")
	if d == a || read(t, d) != "other" {
		t.Error("the old copy was returned for the new digest")
	}
	a.Release()
	b.Release()
	d.Release()
	if err := a.File.Close(); !errors.Is(err, os.ErrClosed) {
		t.Error("a copy that nobody uses is open")
	}
	c.Close()
	if err := d.File.Close(); !errors.Is(err, os.ErrClosed) {
		t.Error("a copy is open after Close")
	}
	e := open("other")
	e.Release()
	if err := e.File.Close(); !errors.Is(err, os.ErrClosed) {
		t.Error("a copy was kept after Close")
	}
}

// TestCacheGivesUp: a program that was upgraded to a file of another name leaves no copy.
func TestCacheGivesUp(t *testing.T) {
	var c Cache
	defer c.Close()
	dir := t.TempDir()
	keep := func(name string) string {
		t.Helper()
		path := write(t, filepath.Join(dir, name), name)
		i, err := c.Open(path, digestOf(name))
		if err != nil {
			t.Fatal(err)
		}
		i.Release()
		return path
	}
	keep("stays")
	gone, changed := keep("gone"), keep("changed")
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	write(t, changed, "something else")
	keep("new")
	want := []string{filepath.Join(dir, "new"), filepath.Join(dir, "stays")}
	if got := slices.Sorted(maps.Keys(c.images)); !slices.Equal(got, want) {
		t.Errorf("copies are kept of %q", got)
	}
}

// The file goes from good to bad under the same size and times: the copy of the good content may be used, the bad is never.
func TestCacheIsFooled(t *testing.T) {
	var c Cache
	defer c.Close()
	path := write(t, filepath.Join(t.TempDir(), "program"), "good")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 200 {
		write(t, path, [...]string{"good", "evil"}[n%2])
		if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		i, err := c.Open(path, digestOf("good"))
		if err == nil {
			if got := read(t, i); got != "good" {
				t.Fatalf("the copy has %q", got)
			}
			i.Release()
		}
	}
}

func TestDigest(t *testing.T) {
	d, err := ParseDigest("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD") // of "abc", FIPS 180-2
	if err != nil || d != *digestOf("abc") {
		t.Errorf("%s, %v", d, err)
	}
	if got, want := d.InstanceID(), "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0C"; got != want {
		t.Errorf("instance ID %s, want %s", got, want)
	}
	for _, bad := range []string{"", "abc", strings.Repeat("g", 64), strings.Repeat("a", 66)} {
		if _, err := ParseDigest(bad); err == nil {
			t.Errorf("%q is a digest", bad)
		}
	}
}

// BenchmarkLoad shows what it costs to copy, seal and hash a program whose file is in the page cache.
func BenchmarkLoad(b *testing.B) {
	for _, size := range []int{1 << 20, 16 << 20, 128 << 20} {
		b.Run(fmt.Sprintf("%dMiB", size>>20), func(b *testing.B) {
			path := write(b, filepath.Join(b.TempDir(), "program"), strings.Repeat("0123456789abcdef", size/16))
			b.SetBytes(int64(size))
			for b.Loop() {
				i, err := (&Cache{}).Open(path, nil)
				if err != nil {
					b.Fatal(err)
				}
				i.Release()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(size>>20), "µs/MiB")
		})
	}
}

// BenchmarkKept shows what a restart of an unchanged program costs.
func BenchmarkKept(b *testing.B) {
	var c Cache
	defer c.Close()
	content := strings.Repeat("0123456789abcdef", 1<<16)
	path := write(b, filepath.Join(b.TempDir(), "program"), content)
	want := digestOf(content)
	for b.Loop() {
		i, err := c.Open(path, want)
		if err != nil {
			b.Fatal(err)
		}
		i.Release()
	}
}
