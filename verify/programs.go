package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// programs returns what is verified: files that are read now. What cannot be read, such as the program of another user's process, is left
// out: it says nothing about the plugin.
func (s *subject) programs(ctx context.Context) []Program {
	var programs []Program
	add := func(path, file string) {
		if digest, err := digestOf(file); err == nil {
			programs = append(programs, Program{Path: clip(path), SHA256: digest})
		}
	}
	if s.runner != nil {
		for _, path := range s.runner.Programs {
			add(path, path)
		}
		return programs
	}
	peer, err := sock.Probe(ctx, s.path)
	if err != nil || peer.PID == 0 {
		return nil
	}
	link := filepath.Join("/proc", fmt.Sprint(peer.PID), "exe") // which is the file, also if its path has another by now
	if path, err := os.Readlink(link); err == nil {
		add(path, link)
	}
	return programs
}

func digestOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}
