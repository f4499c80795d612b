package sock

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestDial(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	serve(t, path)
	conn, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDialLongPath(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can name a socket by a descriptor")
	}
	dir := filepath.Join(tempDir(t), strings.Repeat("d", 200))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, strings.Repeat("s", 255))
	short := filepath.Join(tempDir(t), "s")
	serve(t, short)
	if err := os.Rename(short, path); err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	for range 3 {
		if _, err := Probe(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Dial(t.Context(), path+"/x"); err == nil {
		t.Error("connected to nothing")
	}
	eventually(t, "the descriptors are back", func() bool { return openFiles(t) <= before+3 }) // the server keeps its ends
}

func TestDialErrorsAreTold(t *testing.T) {
	dir := tempDir(t)
	dead, full, file := filepath.Join(dir, "dead"), filepath.Join(dir, "full"), filepath.Join(dir, "file")
	stale(t, dead)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fillBacklog(t, full)

	type class struct{ refused, gone, busy bool }
	for path, want := range map[string]class{
		dead:                       {refused: true},
		filepath.Join(dir, "none"): {gone: true},
		filepath.Join(file, "x"):   {gone: true},
		full:                       {busy: true},
	} {
		_, err := Dial(t.Context(), path)
		if got := (class{IsRefused(err), IsGone(err), IsBusy(err)}); got != want {
			t.Errorf("%s: %v is classified as %+v, want %+v", path, err, got, want)
		}
	}
	if _, err := Dial(t.Context(), file); !IsRefused(err) && !IsGone(err) {
		t.Errorf("a file that is no socket: %v", err)
	}
}
