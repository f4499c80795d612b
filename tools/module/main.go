// Module writes this module, and that of the examples, into a directory that serves as a Go module proxy, as "go get" would download them.
// So a clone can be tried, and a release checked, exactly as its users get it.
//
//	go run ./module -source .. -out ../dist/module [-version v1.2.3]
//	GOPROXY=file://$PWD/../dist/module,$(go env GOPROXY) GONOSUMDB=github.com/patchbay-dev/patchbay go get github.com/patchbay-dev/patchbay
//
// Without a version it is the pseudo-version of the commit, to which a changed tree adds the digest of its content, so that the module
// cache never serves an earlier state. It prints the version. In the repository, the examples replace this module by the directory above
// them; here they require this version of it, as in a release.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

func main() {
	root := flag.String("source", "..", "folder of the module")
	out := flag.String("out", "../dist/module", "folder of the proxy")
	version := flag.String("version", "", "version, such as v1.2.3; anything else stands for none")
	epoch := flag.Int64("epoch", 0, "time of the version, in seconds since 1970")
	flag.Parse()
	v, err := write(*root, *out, *version, time.Unix(*epoch, 0).UTC())
	if err != nil {
		fmt.Fprintln(os.Stderr, "module: cannot write the module:", err)
		os.Exit(1)
	}
	fmt.Println(v)
}

func write(root, out, version string, at time.Time) (string, error) {
	modules, err := read(root)
	if err != nil {
		return "", err
	}
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		if version, err = pseudo(root, modules, at); err != nil {
			return "", err
		}
	}
	temp, err := os.MkdirTemp("", "module")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	for _, m := range modules {
		if err := m.require(modules[0].path(), version, temp); err != nil {
			return "", err
		}
		if err := m.write(out, version, at); err != nil {
			return "", fmt.Errorf("%s: %w", m.path(), err)
		}
	}
	return version, nil
}

// published is a module of the repository that others download.
type published struct {
	goMod *modfile.File
	files []zip.File
}

func (p *published) path() string { return p.goMod.Module.Mod.Path }

// read returns the module at root and that of its examples, if there are any.
func read(root string) (all []*published, err error) {
	for _, dir := range []string{root, filepath.Join(root, "examples")} {
		file := filepath.Join(dir, "go.mod")
		content, err := os.ReadFile(file)
		if dir != root && errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, err
		}
		p := &published{}
		if p.goMod, err = modfile.Parse(file, content, nil); err != nil {
			return nil, err
		}
		if p.files, err = sources(dir); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// require replaces the replacement of a module in go.mod by a requirement of its version. The new go.mod is written to a directory.
func (p *published) require(path, version, dir string) error {
	if p.path() == path {
		return nil
	}
	if err := errors.Join(p.goMod.DropReplace(path, ""), p.goMod.AddRequire(path, version)); err != nil {
		return err
	}
	p.goMod.Cleanup()
	content, err := p.goMod.Format()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(p.files, func(f zip.File) bool { return f.Path() == "go.mod" })
	p.files[i] = source{dir, "go.mod"}
	return os.WriteFile(filepath.Join(dir, "go.mod"), content, 0o644)
}

// write adds a version of the module to the proxy in the directory out.
func (p *published) write(out, version string, at time.Time) error {
	goMod, err := p.goMod.Format()
	if err != nil {
		return err
	}
	escaped, err := module.EscapePath(p.path())
	if err != nil {
		return err
	}
	dir := filepath.Join(out, filepath.FromSlash(escaped))
	if err := os.MkdirAll(filepath.Join(dir, "@v"), 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(map[string]string{"Version": version, "Time": at.Format(time.RFC3339)})
	if err != nil {
		return err
	}
	list := ""
	if !module.IsPseudoVersion(version) {
		list = version + "\n"
	}
	for name, content := range map[string][]byte{
		"@latest": info, "@v/list": []byte(list), "@v/" + version + ".info": info, "@v/" + version + ".mod": goMod,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return pack(p.files, module.Version{Path: p.path(), Version: version}, filepath.Join(dir, "@v", version+".zip"))
}

// source is one file of the module.
type source struct{ root, name string }

func (s source) Path() string                 { return s.name }
func (s source) Lstat() (os.FileInfo, error)  { return os.Lstat(filepath.Join(s.root, s.name)) }
func (s source) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(s.root, s.name)) }

// sources lists what is in the repository, or would be if all were committed.
func sources(root string) ([]zip.File, error) {
	out, err := git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	if err != nil {
		return nil, err
	}
	var files []zip.File
	for name := range strings.SplitSeq(strings.TrimSuffix(out, "\x00"), "\x00") {
		s := source{root, name}
		if _, err := s.Lstat(); err == nil { // else it was removed, and that is not committed yet
			files = append(files, s)
		}
	}
	return files, nil
}

// pack makes the archive of the module.
func pack(files []zip.File, m module.Version, archive string) error {
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	if err := zip.Create(file, m, files); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

// pseudo returns the pseudo-version of the commit that is checked out at root. If the tree differs from the commit, the version also has
// the digest of the files.
func pseudo(root string, modules []*published, at time.Time) (string, error) {
	commit, err := git(root, "rev-parse", "HEAD")
	if err != nil {
		return "", err
	}
	changes, err := git(root, "status", "--porcelain")
	if err != nil {
		return "", err
	}
	revision := strings.TrimSpace(commit)[:12]
	if changes == "" {
		return module.PseudoVersion("v0", "", at, revision), nil
	}
	var names []string
	byName := map[string]zip.File{}
	for _, m := range modules {
		checked, err := zip.CheckFiles(m.files)
		if err != nil {
			return "", err
		}
		for _, f := range m.files {
			if slices.Contains(checked.Valid, f.Path()) {
				name := m.path() + "/" + f.Path()
				names, byName[name] = append(names, name), f
			}
		}
	}
	hash, err := dirhash.Hash1(names, func(name string) (io.ReadCloser, error) { return byName[name].Open() })
	if err != nil {
		return "", err
	}
	digest := fmt.Sprintf("%x", strings.TrimPrefix(hash, "h1:"))
	return module.PseudoVersion("v0", "v0.0.0-dirty."+digest[:12], at, revision), nil
}

func git(root string, args ...string) (string, error) {
	cmd := exec.CommandContext(context.Background(), "git", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}
