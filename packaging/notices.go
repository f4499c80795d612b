package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// license matches the names of files that whoever passes on a module has to pass on too.
var license = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)([.-].*)?$`)

// notices writes the licenses and notices of all that a program was linked from into one file, and returns its path.
func (r *release) notices(ctx context.Context, program string) (string, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	root, err := r.goCommand(ctx, nil, "env", "GOROOT")
	if err != nil {
		return "", err
	}
	if err := addNotices(&text, "Go standard library "+info.GoVersion, strings.TrimSpace(root)); err != nil {
		return "", err
	}
	args := []string{"list", "-m", "-f", "{{.Path}} {{.Version}}\t{{.Dir}}"}
	for _, dep := range info.Deps {
		args = append(args, dep.Path)
	}
	list, err := r.goCommand(ctx, nil, args...)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(list) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if err := addNotices(&text, name, dir); err != nil {
			return "", err
		}
	}
	path := filepath.Join(filepath.Dir(program), "NOTICES")
	return path, os.WriteFile(path, text.Bytes(), 0o644)
}

// addNotices appends the files of one directory. A module without any cannot be passed on.
func addNotices(text *bytes.Buffer, name, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	found := false
	for _, e := range entries {
		if !e.Type().IsRegular() || !license.MatchString(e.Name()) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		found = true
		fmt.Fprintf(text, "== %s: %s\n\n%s\n", name, e.Name(), bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n")))
	}
	if !found {
		return fmt.Errorf("%s has no license file", name)
	}
	return nil
}
