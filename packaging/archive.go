package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is one file of an archive.
type entry struct {
	name       string
	executable bool
	content    []byte
}

// name is what the files for a system are called, without the end.
func (r *release) name(t target) string {
	return "patchbay-" + strings.TrimPrefix(r.version, "v") + "-" + t.os + "-" + t.arch
}

// archive makes the archive for a system and returns its name.
func (r *release) archive(t target, program, bom, notices string) (string, error) {
	sources := map[string]string{
		"patchbay":      program,
		"sbom.cdx.json": bom,
		"NOTICES":       notices,
		"LICENSE":       filepath.Join(r.source, "LICENSE"),
		"README.md":     filepath.Join(r.source, "README.md"),
		"CHANGELOG.md":  filepath.Join(r.source, "CHANGELOG.md"),
	}
	folders := map[string]string{"completions": filepath.Join(r.stage, "completions"), "man": filepath.Join(r.stage, "man")}
	if t.os == "linux" {
		folders["systemd"] = filepath.Join(r.source, "deploy", "systemd")
		sources["patchbay.yaml"] = filepath.Join(r.source, "packaging", "patchbay.yaml")
	}
	for folder, dir := range folders {
		files, err := os.ReadDir(dir)
		if err != nil {
			return "", err
		}
		for _, f := range files {
			sources[folder+"/"+f.Name()] = filepath.Join(dir, f.Name())
		}
	}
	root := r.name(t)
	var entries []entry
	for name, source := range sources {
		content, err := os.ReadFile(source)
		if err != nil {
			return "", err
		}
		entries = append(entries, entry{root + "/" + name, name == "patchbay", content})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	var packed bytes.Buffer
	file := root + ".tar.gz"
	if err := writeTarGz(&packed, entries, r.time); err != nil {
		return "", fmt.Errorf("cannot make %s: %w", file, err)
	}
	return file, os.WriteFile(filepath.Join(r.out, file), packed.Bytes(), 0o644)
}

func (e entry) mode() os.FileMode {
	if e.executable {
		return 0o755
	}
	return 0o644
}

func writeTarGz(w io.Writer, entries []entry, at time.Time) error {
	zw, err := gzip.NewWriterLevel(w, gzip.BestCompression) // its header has neither a name nor a time
	if err != nil {
		return err
	}
	tw := tar.NewWriter(zw)
	for _, e := range entries {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: e.name, Size: int64(len(e.content)), Mode: int64(e.mode()), ModTime: at,
			Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
		}
		if err := tw.WriteHeader(header); err != nil {
			return err
		}
		if _, err := tw.Write(e.content); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return zw.Close()
}
