// Package scaffold writes the source of a new plugin: a Go module that builds, with a service of the plugin's type, tests with package
// sdk/sdktest, a Makefile and a systemd unit. It never overwrites a file.
package scaffold

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
)

// Options describe the plugin to write. Name and Type are required, and one of Version and Replace.
type Options struct {
	// Name and Type are what the plugin announces.
	Name, Type string
	// Module is the path of the Go module (default "example.com/" and the binary's name).
	Module string
	// Version is the released version of Patchbay whose SDK the plugin uses, for example "v1.2.3".
	Version string
	// Replace is a directory with Patchbay's source. If it is set, the plugin is built with that source instead of a released version.
	Replace string
}

// File is one file to write.
type File struct {
	Path string // slash-separated, relative to the plugin's directory
	data []byte
}

//go:embed templates
var templates embed.FS

// kinds are the types with a template of their own; other types use plain.
var kinds = map[string]kind{
	"CSIPlugin": {
		folder: "csi", call: "NodeGetInfo", mounts: true,
		notes: "`identity.go` and `node.go` are the CSI services that a driver must have. A driver that creates volumes also has a controller.",
	},
	"DevicePlugin": {
		folder: "device", call: "ListAndWatch",
		notes: "The name is that of the resource that pods request. `ListAndWatch` sends the list of devices whenever it changes.",
	},
	"DRAPlugin": {
		folder: "dra", call: `NodePrepareResources '{"claims": [{"namespace": "default", "name": "one", "uid": "1"}]}'`,
		notes: "Publishing the devices as resource slices is not part of this plugin: that needs the API server of a cluster.",
	},
}

var plain = kind{
	folder: "plain", call: `Greet '"world"'`,
	notes: "`service.go` explains how to replace the example by your own service.",
}

// kind has the differences between plugin types.
type kind struct {
	folder string // of templates
	call   string // arguments for an example of "patchbay call"
	notes  string
	mounts bool
}

var notOfBinaries = regexp.MustCompile(`[^a-z0-9-]`)

// BinaryName returns the name of the program for a plugin: the last path element of the plugin's name, or the first label if that is a
// domain name. Characters that are not allowed in file names or Go modules are replaced.
func BinaryName(name string) string {
	name = path.Base(name)
	name, _, _ = strings.Cut(name, ".")
	name = strings.Trim(notOfBinaries.ReplaceAllString(strings.ToLower(name), "-"), "-")
	return cmp.Or(name, "plugin")
}

// Render returns the files of a plugin, go.mod first. It writes nothing. Errors in the options wrap [ErrOptions].
func Render(o Options) ([]File, error) {
	binary := BinaryName(o.Name)
	if o.Module == "" {
		o.Module = "example.com/" + binary
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	files, err := o.moduleFiles()
	if err != nil {
		return nil, err
	}
	k, ok := kinds[o.Type]
	if !ok {
		k = plain
	}
	data := map[string]any{
		"Name": o.Name, "Type": o.Type, "Module": o.Module, "Binary": binary, "Call": k.call, "Notes": k.notes, "Mounts": k.mounts,
		"Env":     strings.ToUpper(strings.ReplaceAll(binary, "-", "_")),
		"Package": packageName(binary),
	}
	for _, folder := range []string{"common", k.folder} {
		entries, err := templates.ReadDir("templates/" + folder)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			file, err := render("templates/"+folder+"/"+entry.Name(), data)
			if err != nil {
				return nil, err
			}
			files = append(files, file)
		}
	}
	return files, nil
}

func render(name string, data map[string]any) (File, error) {
	t, err := template.New(path.Base(name)).Option("missingkey=error").ParseFS(templates, name)
	if err != nil {
		return File{}, err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, data); err != nil {
		return File{}, err
	}
	file := File{Path: strings.TrimSuffix(path.Base(name), ".tmpl"), data: text.Bytes()}
	switch file.Path {
	case "gitignore":
		file.Path = ".gitignore"
	case "service":
		file.Path = fmt.Sprint(data["Binary"], ".service")
	}
	if path.Ext(file.Path) == ".go" {
		if file.data, err = format.Source(file.data); err != nil {
			return File{}, fmt.Errorf("template %s: %w", name, err)
		}
	}
	return file, nil
}

func packageName(binary string) string {
	name := strings.ReplaceAll(binary, "-", "_")
	if name[0] >= '0' && name[0] <= '9' {
		name = "p" + name
	}
	return name
}

// Write writes the files into dir, which it creates if necessary. If any of the files exists, it writes nothing and returns an error that
// names them. After any other error it removes the files and directories that it has created.
func Write(dir string, files []File) (err error) {
	var taken []string
	for _, f := range files {
		switch _, err := os.Lstat(filepath.Join(dir, f.Path)); {
		case err == nil:
			taken = append(taken, f.Path)
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("cannot write the plugin to %s: %w", dir, err)
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("cannot write the plugin to %s: %s already exist; name another directory, or move them away",
			dir, strings.Join(taken, ", "))
	}
	created, err := makeDirs(dir)
	defer func() {
		if err != nil {
			for _, name := range slices.Backward(created) {
				_ = os.Remove(name)
			}
			err = fmt.Errorf("cannot write the plugin to %s: %w", dir, err)
		}
	}()
	if err != nil {
		return err
	}
	for _, f := range files {
		name := filepath.Join(dir, f.Path)
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		created = append(created, name)
		_, err = file.Write(f.data)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}

// makeDirs creates a directory and its parents. It returns the directories that it creates, outermost first.
func makeDirs(dir string) (created []string, err error) {
	for parent := dir; ; parent = filepath.Dir(parent) {
		if _, err := os.Lstat(parent); !errors.Is(err, fs.ErrNotExist) {
			break // MkdirAll returns an error if parent is not a directory
		}
		created = append(created, parent)
	}
	slices.Reverse(created)
	return created, os.MkdirAll(dir, 0o755)
}
