package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

// deb makes the Debian package that nfpm.yaml describes, and returns its name. The paths there are relative to a directory that holds the
// program and what belongs to it as "build", and the repository as "source".
func (r *release) deb(t target, program, bom, notices string) (string, error) {
	dir := filepath.Dir(program)
	build := filepath.Join(dir, "build")
	version := debianVersion(r.version, r.time)
	if err := r.debFiles(build, version, program, bom, notices); err != nil {
		return "", err
	}
	variables := map[string]string{"ARCH": t.arch, "VERSION": version}
	config, err := nfpm.ParseFileWithEnvMapping(filepath.Join(r.source, "packaging", "nfpm.yaml"), func(name string) string {
		return variables[name]
	})
	if err != nil {
		return "", err
	}
	info, err := config.Get("deb")
	if err != nil {
		return "", err
	}
	locate := func(path string) string {
		if inBuild, ok := strings.CutPrefix(path, "build/"); ok {
			return filepath.Join(build, inBuild)
		}
		return filepath.Join(r.source, strings.TrimPrefix(path, "source/"))
	}
	for _, script := range []*string{&info.Scripts.PostInstall, &info.Scripts.PreRemove, &info.Scripts.PostRemove} {
		*script = locate(*script)
	}
	info.MTime = r.time
	for _, content := range info.Contents {
		if content.Source != "" {
			content.Source = locate(content.Source)
		}
		if content.FileInfo == nil {
			content.FileInfo = &files.ContentFileInfo{Mode: 0o644}
			if content.Type == files.TypeDir {
				content.FileInfo.Mode = 0o755
			}
		}
		content.FileInfo.MTime = r.time
	}
	info = nfpm.WithDefaults(info)
	name := deb.Default.ConventionalFileName(info)
	var packed bytes.Buffer
	if err := deb.Default.Package(info, &packed); err != nil {
		return "", fmt.Errorf("cannot make %s: %w", name, err)
	}
	return name, os.WriteFile(filepath.Join(r.out, name), packed.Bytes(), 0o644)
}

// debFiles makes the files that only the Debian package has, or has compressed.
func (r *release) debFiles(build, version, program, bom, notices string) error {
	if err := os.MkdirAll(filepath.Join(build, "man"), 0o755); err != nil {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(r.stage, "man", "*.1"))
	if err != nil {
		return err
	}
	compressed := map[string]string{
		filepath.Join(r.source, "CHANGELOG.md"): "changelog.gz",
		notices:                                 "NOTICES.gz",
		bom:                                     "sbom.cdx.json.gz",
	}
	for _, page := range pages {
		compressed[page] = "man/" + filepath.Base(page) + ".gz"
	}
	for source, name := range compressed {
		content, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		if err := writeGzip(filepath.Join(build, name), content); err != nil {
			return err
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		name := "patchbay." + shell
		if err := os.Link(filepath.Join(r.stage, "completions", name), filepath.Join(build, name)); err != nil {
			return err
		}
	}
	changes := fmt.Sprintf("patchbay (%s) unstable; urgency=medium\n\n  * Release %s, commit %s; see changelog.gz.\n\n -- %s  %s\n",
		version, r.version, r.commit, maintainer, r.time.Format(time.RFC1123Z))
	if err := writeGzip(filepath.Join(build, "changelog.Debian.gz"), []byte(changes)); err != nil {
		return err
	}
	return os.Link(program, filepath.Join(build, "patchbay"))
}

// maintainer is that of nfpm.yaml.
const maintainer = "The Patchbay developers <patchbay@patchbay.dev>"

func writeGzip(path string, content []byte) error {
	var packed bytes.Buffer
	zw, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := zw.Write(content); err != nil {
		return err
	}
	if err := zw.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}
