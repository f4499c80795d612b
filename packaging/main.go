package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// release is what is built.
type release struct {
	source  string // the root of the repository
	out     string // where the packages go
	version string // as git describe says it
	commit  string
	time    time.Time // of the commit; no file is younger
	stage   string    // a temporary directory
}

func main() {
	var r release
	var epoch int64
	var only string
	flag.StringVar(&r.source, "source", "..", "root of the repository")
	flag.StringVar(&r.out, "out", "", "directory that the packages are written to; what else is in it stays")
	flag.StringVar(&r.version, "version", "", "version, such as v1.2.3")
	flag.StringVar(&r.commit, "commit", "", "commit of the source")
	flag.Int64Var(&epoch, "epoch", 0, "time of the commit in seconds since 1970")
	flag.StringVar(&only, "only", "", "systems to build for, such as linux/amd64,darwin/arm64; empty for all")
	flag.Parse()
	if flag.NArg() > 0 || r.out == "" || r.version == "" {
		fmt.Fprintln(os.Stderr, "usage: packaging -out DIR -version VERSION [-commit HASH] [-epoch SECONDS] [-only OS/ARCH,...]")
		os.Exit(2)
	}
	r.time = time.Unix(epoch, 0).UTC()
	if err := r.run(context.Background(), only); err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}

func (r *release) run(ctx context.Context, only string) (err error) {
	targets, err := choose(only)
	if err != nil {
		return err
	}
	for _, dir := range []*string{&r.source, &r.out} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	if r.stage, err = os.MkdirTemp("", "patchbay-packaging"); err != nil {
		return err
	}
	defer os.RemoveAll(r.stage)
	if err := r.document(ctx); err != nil {
		return err
	}
	var made []string
	for _, t := range targets {
		names, err := r.build(ctx, t)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		made = append(made, names...)
	}
	return r.checksums(made)
}

// build makes everything for one system and returns the names of the files in the output directory.
func (r *release) build(ctx context.Context, t target) ([]string, error) {
	program, err := r.compile(ctx, t)
	if err != nil {
		return nil, err
	}
	bom, err := r.billOfMaterials(t, program)
	if err != nil {
		return nil, err
	}
	notices, err := r.notices(ctx, program)
	if err != nil {
		return nil, err
	}
	archive, err := r.archive(t, program, bom, notices)
	if err != nil {
		return nil, err
	}
	made := []string{archive, filepath.Base(bom)}
	if t.os == "linux" {
		deb, err := r.deb(t, program, bom, notices)
		if err != nil {
			return nil, err
		}
		made = append(made, deb)
	}
	return made, r.publish(bom)
}

// publish copies a file to the output directory.
func (r *release) publish(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, filepath.Base(path)), content, 0o644)
}

// checksums writes the file SHA256SUMS, which "sha256sum --check" reads.
func (r *release) checksums(names []string) error {
	slices.Sort(names)
	var lines strings.Builder
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), name)
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(lines.String()), 0o644)
}
