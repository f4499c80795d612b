//go:build linux

package hostile

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// crowd makes files and sockets on which nobody listens.
func crowd(dir string, files, sockets int) {
	for i := range files {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("file-%05d", i)))
		must(err)
		must(f.Close())
	}
	for i := range sockets {
		must(syscall.Mknod(filepath.Join(dir, fmt.Sprintf("dead-%05d", i)), syscall.S_IFSOCK|0o600, 0))
	}
}

// unlisted is a check that the daemon knows nobody but the neighbours.
func unlisted(s *scene) {
	s.Helper()
	for _, p := range s.list().Plugins {
		if p.Type != "Neighbour" {
			s.Errorf("there is %+v", p)
		}
	}
}

// registered waits until a hostile plugin is registered, and nobody else is known.
func registered(s *scene) {
	s.Helper()
	s.await("the hostile plugin is registered, alone", func() bool {
		var rows []*patchbayv1.Plugin
		for _, p := range s.list().Plugins {
			if p.Type != "Neighbour" {
				rows = append(rows, p)
			}
		}
		return len(rows) == 1 && rows[0].State == "registered"
	})
}

// serve serves a proper plugin on l until l is closed.
func serve(l net.Listener) {
	go func() { _ = serveGRPC(l, info) }()
}

func directoryAttacks() []attack {
	return []attack{
		{
			name: "replaces-its-socket", does: "replaces its socket 300 times as fast as it can", happens: "the last socket is registered", bound: "one attempt at a time, on the current socket",
			named: event("registered: "), check: registered,
			play: func(a *attacker) {
				var before net.Listener
				for range 300 {
					l := listen(a.socket)
					if ul, ok := l.(*net.UnixListener); ok {
						ul.SetUnlinkOnClose(false)
					}
					serve(l)
					if before != nil {
						_ = before.Close()
					}
					before = l
				}
			},
		},
		{
			name: "flips-its-mode", does: "endlessly changes the mode of its socket between 000 and 777", happens: "it stays registered: another mode does not make it another socket", bound: "one check of the current state, however many events there are",
			named: event("registered: "), check: registered,
			play: func(a *attacker) {
				serve(listen(a.socket))
				for {
					must(os.Chmod(a.socket, 0))
					must(os.Chmod(a.socket, 0o700))
					time.Sleep(time.Millisecond)
				}
			},
		},
		{
			name: "crowds-the-directory", does: "creates 20,000 files and 100 sockets without listeners in a subdirectory", happens: "files are ignored, and so are sockets beyond the limit",
			bound: "`bounds.maxSockets`", named: []naming{{inCondition, fmt.Sprintf("more than %d sockets", maxSockets)}},
			play: func(a *attacker) {
				dir := filepath.Join(a.dir, "crowd")
				must(os.Mkdir(dir, 0o755))
				crowd(dir, 20_000, 4*maxSockets)
			},
		},
		{
			name: "nests-deeply", does: "nests directories 200 deep, and serves in the innermost one", happens: "directories below the limit are not searched", bound: "`bounds.maxDepth`",
			named: []naming{{inCondition, "its subdirectories are not searched"}}, check: unlisted,
			play: func(a *attacker) {
				must(os.Chdir(a.dir))
				for range 200 {
					must(os.Mkdir("d", 0o755))
					must(os.Chdir("d"))
				}
				serve(listen("s"))
			},
		},
		{
			name: "long-path", does: "serves a socket with a name of 250 bytes, more than a socket address can hold", happens: "it is registered", bound: "the file system's limit for names",
			named: event("registered: "), check: registered,
			play: func(a *attacker) {
				serve(listen(a.socket))
				must(os.Rename(a.socket, filepath.Join(a.dir, long(250))))
			},
		},
		{
			name: "no-sockets", does: "creates a FIFO, a device, a file and a directory with names of sockets", happens: "they are ignored, as by the kubelet", bound: "no file is opened",
			root: true, check: unlisted,
			play: func(a *attacker) {
				must(errors.Join(syscall.Mkfifo(a.socket+".fifo", 0o666), syscall.Mknod(a.socket+".null", syscall.S_IFCHR|0o666, 1<<8|3),
					os.WriteFile(a.socket+".file.sock", []byte("hello"), 0o600), os.Mkdir(a.socket+".dir.sock", 0o755)))
			},
		},
		{
			name: "links", does: "creates a hard link to the socket of a neighbour, and removes it", happens: "the link counts as a newer socket of the same plugin and supersedes the neighbour; once it is gone, the neighbour is current again", harms: true,
			bound: "one more instance", play: func(a *attacker) {
				link := filepath.Join(a.dir, "link")
				must(os.Link(filepath.Join(a.dir, "neighbour"), link))
				time.Sleep(time.Second)
				must(os.Remove(link))
			},
		},
		{
			name: "unlinks-as-same-user", does: "removes the sockets of all other plugins, as the same user", happens: "they are deregistered, which is reported, and registered again when their sockets are back", harms: true,
			bound: "the plugin directory", play: func(a *attacker) {
				must(filepath.Walk(a.dir, func(path string, info os.FileInfo, err error) error {
					if err == nil && info.Mode()&os.ModeSocket != 0 && !strings.Contains(path, "hostile") {
						err = os.Remove(path)
					}
					return err
				}))
			},
			check: func(s *scene) {
				s.await("the neighbours are said to be gone", func() bool {
					gone := map[string]bool{}
					for _, e := range s.events() {
						if e.Kind == "deregistered" && s.neighbours[e.Name] == e.Instance {
							gone[e.Name] = true
						}
					}
					return len(gone) == len(s.neighbours)
				})
				s.run("neighbour", roleNeighbour, 0)
				if root {
					if _, err := s.client.Restart(s.Context(), "neighbour"); err != nil {
						s.Error(err)
					}
				}
			},
		},
	}
}
