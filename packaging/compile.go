package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

const module = "github.com/patchbay-dev/patchbay"

// compile builds the static program for a system and returns its path.
func (r *release) compile(ctx context.Context, t target) (string, error) {
	path := filepath.Join(r.stage, t.os+"-"+t.arch, "patchbay")
	build := module + "/internal/daemon."
	linked := "-s -w -buildid= -X " + build + "version=" + r.version + " -X " + build + "commit=" + r.commit
	_, err := r.goCommand(ctx, []string{"GOOS=" + t.os, "GOARCH=" + t.arch},
		"build", "-trimpath", "-buildvcs=false", "-ldflags", linked, "-o", path, "./cmd/patchbay")
	return path, err
}

// document makes the man pages and completion scripts. Its flags are those of compile, so that most of both is compiled once.
func (r *release) document(ctx context.Context) error {
	_, err := r.goCommand(ctx, []string{"SOURCE_DATE_EPOCH=" + strconv.FormatInt(r.time.Unix(), 10)}, "run", "-trimpath", "-buildvcs=false",
		"./cmd/patchbay/internal/mangen", r.stage)
	return err
}

// goCommand runs the go command in the repository. Settings of the user that change what is built do not count.
func (r *release) goCommand(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off")
	cmd.Env = append(cmd.Env, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, &stderr)
	}
	return stdout.String(), nil
}
