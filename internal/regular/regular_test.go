//go:build unix

package regular

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRead(t *testing.T) {
	t.Chdir(t.TempDir())
	listener, err := net.Listen("unix", "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = errors.Join(
		os.WriteFile("file", []byte("text"), 0o600), os.Symlink("file", "link"), os.Mkdir("directory", 0o700), syscall.Mkfifo("pipe", 0o600),
		os.WriteFile("largest", nil, 0o600), os.Truncate("largest", maxSize),
		os.WriteFile("larger", nil, 0o600), os.Truncate("larger", maxSize+1),
	)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"file": "", "link": "", "largest": "",
		"larger":    "it has more than 67108864 bytes",
		"missing":   "no such file",
		"directory": "is a directory",
		"pipe":      "it is not a regular file",
		"socket":    "it is not a regular file",
		"/dev/null": "it is not a regular file",
		"/dev/zero": "it is not a regular file",
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := Read(path)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("the error is %v, want %q", err, want)
			}
			if path == "link" && string(text) != "text" {
				t.Errorf("the text is %q", text)
			}
		})
	}
}

// TestReplaced checks what Open does with a pipe that replaces the file after the first look.
func TestReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckFile(file); !errors.Is(err, ErrNotRegular) {
		t.Errorf("the error is %v", err)
	}
	if err := file.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file is still open: %v", err)
	}
}
