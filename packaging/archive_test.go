package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

var (
	testTime    = time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)
	testEntries = []entry{{"a/patchbay", true, []byte("program")}, {"a/README.md", false, []byte("text")}}
)

// Nothing of the machine, its clock or its user is in an archive.
func TestArchivesAreTheSameEverywhere(t *testing.T) {
	var first, second bytes.Buffer
	if err := writeTarGz(&first, testEntries, testTime); err != nil {
		t.Fatal(err)
	}
	if err := writeTarGz(&second, testEntries, testTime.In(time.FixedZone("elsewhere", 7200)).UTC()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives differ")
	}
}

func TestTarIsReadByTar(t *testing.T) {
	tar, err := exec.LookPath("tar")
	if err != nil {
		t.Skip(err)
	}
	var packed bytes.Buffer
	if err := writeTarGz(&packed, testEntries, testTime); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), tar, "-xz", "-C", dir)
	cmd.Stdin = &packed
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	info, err := os.Stat(filepath.Join(dir, "a", "patchbay"))
	if err != nil || info.Mode().Perm()&0o111 == 0 || !info.ModTime().Equal(testTime) {
		t.Errorf("the program is not as it was packed: %v, %v", info, err)
	}
}

func TestChoose(t *testing.T) {
	if all, err := choose(""); err != nil || len(all) != len(targets) {
		t.Errorf("an empty list is %v, %v", all, err)
	}
	if some, err := choose("linux/arm64,darwin/amd64"); err != nil || fmt.Sprint(some) != "[linux/arm64 darwin/amd64]" {
		t.Errorf("two systems are %v, %v", some, err)
	}
	if _, err := choose("plan9/amd64"); err == nil {
		t.Error("a system that nothing is built for is not an error")
	}
}

// The identifier of a bill of materials depends on the program only, and says of itself that it is such a one.
func TestUUIDOfDigest(t *testing.T) {
	if got, want := uuidOf(sha256.Sum256(nil)), "e3b0c442-98fc-8c14-9afb-f4c8996fb924"; got != want {
		t.Errorf("the UUID is %s, want %s", got, want)
	}
}
