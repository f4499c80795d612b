//go:build linux

package hostile

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/client"
)

// What the configuration may say of the hostile user.
var (
	nobody  = "owners: {}"
	trusted = fmt.Sprintf(`owners: {users: ["%d"]}`, hostileUser)
	// bound lets only neighbours register neighbours, rivals also the hostile user.
	bound  = trusted + fmt.Sprintf(`, types: {Neighbour: {users: ["%d"]}}`, neighbourUser)
	rivals = trusted + fmt.Sprintf(`, types: {Neighbour: {users: ["%d", "%d"]}}`, neighbourUser, hostileUser)
)

// untouched serves a socket to which nobody is to connect.
func untouched(a *attacker) {
	_, err := listen(a.socket).Accept()
	must(errors.Join(err, errors.New("somebody connected")))
}

// trap makes a directory that is not searched, with a socket s to which nobody is to connect.
func trap(a *attacker) (dir string) {
	dir = filepath.Join(a.dir, ".trap")
	must(os.Mkdir(dir, 0o755))
	go untouched(&attacker{socket: filepath.Join(dir, "s")})
	return dir
}

// swap exchanges two entries of a directory without end.
func swap(one, other string) {
	for {
		must(unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE))
		time.Sleep(time.Millisecond)
	}
}

// asStranger has an attack played by the hostile user, of whom the configuration says what trust says.
func asStranger(trust string, a attack) attack {
	a.user, a.trust = hostileUser, trust
	return a
}

// quiet is a check that directories cost few watches and lines of the log, and that the host is ready.
func quiet(s *scene) {
	const mostWatches, mostLines = 6_010, 50
	watches := 0
	entries, err := os.ReadDir(s.proc("fdinfo"))
	for _, e := range entries {
		text, _ := os.ReadFile(filepath.Join(s.proc("fdinfo"), e.Name())) // closed meanwhile
		watches += strings.Count(string(text), "inotify wd:")
	}
	if lines := strings.Count(s.log.String(), "\n"); err != nil || watches > mostWatches || lines > mostLines {
		s.Errorf("the daemon has %d watches and logged %d lines: %v", watches, lines, err)
	}
	if status, body := s.get("/readyz"); status != http.StatusOK {
		s.Errorf("the daemon is not ready: %d, %s", status, body)
	}
}

// foundOften is a check that a hostile plugin was registered so often that the daemon has met it in each of its states.
func foundOften(s *scene) {
	s.await("it was registered 10 times", func() bool {
		n := 0
		for _, e := range s.events() {
			if e.Type == hostileType && e.Kind == "registered" {
				n++
			}
		}
		return n >= 10
	})
}

// rootsSocket is how an endpoint that is root's is refused to the hostile user.
var rootsSocket = fmt.Sprintf("is user 0's, and the plugin that announces it is user %d's", hostileUser)

// stableOfNeighbour is a socket that only root may open.
func stableOfNeighbour(a *attacker) string { return beside(a, "dispense", "Neighbour", "found.sock") }

// swapped is an endpoint of the attacker's own, where nobody who connects stays, that is exchanged for a link to a neighbour without end.
func swapped(a *attacker) string {
	dir := filepath.Join(a.dir, ".elsewhere")
	must(os.Mkdir(dir, 0o755))
	own, link := filepath.Join(dir, "own"), filepath.Join(dir, "link")
	l := listen(own)
	must(os.Symlink(stableOfNeighbour(a), link))
	go func() {
		for {
			conn, err := l.Accept()
			must(err)
			must(conn.Close())
		}
	}()
	go swap(own, link)
	return own
}

func trustAttacks() []attack {
	const passes = "the socket is registered whenever it is there, the link is refused and never followed"
	return []attack{
		asStranger(nobody, attack{
			name: "socket-of-a-stranger", does: "serves a plugin", happens: "the daemon does not connect to it", bound: "the owner of the socket",
			named: event(fmt.Sprintf("belongs to user %d", hostileUser)), play: untouched,
		}),
		asStranger(nobody, attack{
			name: "directory-of-a-stranger", does: "serves a plugin in its own directory", happens: "the directory is not searched", bound: "the owner of the directory",
			named: event(fmt.Sprintf("belongs to user %d, who could put any socket there", hostileUser)),
			play: func(a *attacker) {
				must(os.Mkdir(a.socket, 0o755))
				untouched(&attacker{socket: filepath.Join(a.socket, "s")})
			},
		}),
		asStranger(nobody, attack{
			name: "crowd-of-a-stranger", does: "creates 20,000 files and 2,000 sockets", happens: "there is room for other plugins, and no condition is degraded",
			bound: "250 refusals per user and 1,000 in total are remembered, and 20 per second reported", named: event(fmt.Sprintf("belongs to user %d", hostileUser)),
			play: func(a *attacker) { crowd(a.dir, 20_000, 80*maxSockets) },
			check: func(s *scene) {
				for _, c := range s.list().Conditions {
					if c.Status != "ok" {
						s.Errorf("condition %+v", c)
					}
				}
			},
		}),
		asStranger(trusted, attack{
			name: "crowds-with-directories", does: "creates 20,000 directories", happens: "there is room for other plugins, and the host is ready", bound: "`bounds.maxUserDirs`, `bounds.maxDirs`",
			named: []naming{{inCondition, fmt.Sprintf("14000 directories of user %d are not searched", hostileUser)}},
			check: func(s *scene) {
				quiet(s)
				if n := s.metric(`patchbay_refusals_total{reason="directories"}`); n < 1 {
					s.Errorf("the metric is %d", n)
				}
			},
			play: func(a *attacker) {
				for i := range 20_000 {
					must(os.Mkdir(filepath.Join(a.dir, fmt.Sprint("crowd", i)), 0o755))
				}
			},
		}),
		asStranger(trusted, attack{
			name: "digs-directories", does: "creates 600 directories below the depth that is searched", happens: "there is room for other plugins, and the host is ready", bound: "`bounds.maxDepth`",
			named: []naming{{inCondition, fmt.Sprintf("600 problems with directories and sockets of user %d", hostileUser)}}, check: quiet,
			play: func(a *attacker) {
				for i := range 600 {
					must(os.MkdirAll(filepath.Join(a.dir, fmt.Sprint("deep", i), strings.Repeat("d/", maxDepth)), 0o755))
				}
			},
		}),
		asStranger(bound, attack{
			name: "claims-a-type", does: "registers a plugin of a type reserved for another user", happens: "it is refused, with the reason", bound: "`trust.types`",
			named: event(fmt.Sprintf("user %d may not register plugins of type Neighbour", hostileUser)),
			play:  announces(func(_ *attacker, i *registerapi.PluginInfo) { i.Type = "Neighbour" }),
		}),
		asStranger(rivals, attack{
			name: "takes-names-over", does: "registers newer plugins with the names of the neighbours", happens: "they are refused, with the reason", bound: "the user who holds the name",
			named: []naming{
				{inEvent, fmt.Sprintf("the name found of type Neighbour is that of a plugin of user 0, and user %d may not take it", hostileUser)},
				{inEvent, fmt.Sprintf("the name launched of type Neighbour is that of a plugin of user %d", neighbourUser)},
			},
			play: func(a *attacker) {
				for _, name := range []string{"found", "launched"} {
					i := info()
					i.Type, i.Name = "Neighbour", name
					go func() { must(serveGRPC(listen(a.socket+"-"+name), func() *registerapi.PluginInfo { return i })) }()
				}
			},
		}),
		asStranger(trusted, attack{
			name: "unlinks-where-all-may-write", does: "tries to remove all other sockets, rename its own over them and exchange it with them", happens: "the kernel refuses it",
			bound: "the sticky bit", named: event("registered: "),
			play: func(a *attacker) {
				serve(listen(a.socket))
				entries, err := os.ReadDir(a.dir)
				must(err)
				for _, e := range entries {
					path := filepath.Join(a.dir, e.Name())
					if path == a.socket {
						continue
					}
					for _, err := range []error{
						os.Remove(path), os.Rename(path, a.socket+"-taken"), os.Rename(a.socket, path),
						unix.Renameat2(unix.AT_FDCWD, a.socket, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE),
					} {
						if !errors.Is(err, os.ErrPermission) && !errors.Is(err, syscall.EISDIR) && !errors.Is(err, os.ErrExist) {
							must(fmt.Errorf("it is possible with %s: %w", path, err))
						}
					}
				}
			},
		}),
		asStranger(trusted, attack{
			name: "swaps-a-link", does: "endlessly swaps its socket with a symbolic link to another socket", happens: passes,
			bound: "the daemon connects to the inode that it checked", named: append(event("is a symbolic link"), event("registered: ")...), check: foundOften,
			play: func(a *attacker) {
				link := filepath.Join(a.dir, ".link")
				must(os.Symlink(filepath.Join(trap(a), "s"), link))
				serve(listen(a.socket))
				swap(a.socket, link)
			},
		}),
		asStranger(trusted, attack{
			name: "swaps-a-directory", does: "endlessly swaps the directory of its socket with a symbolic link to another directory", happens: passes,
			bound: "no component of the path is opened through a link", named: append(event("is a symbolic link"), event("registered: ")...), check: foundOften,
			play: func(a *attacker) {
				dir, link := filepath.Join(a.dir, "dir"), filepath.Join(a.dir, ".link")
				must(errors.Join(os.Symlink(trap(a), link), os.Mkdir(dir, 0o755)))
				serve(listen(filepath.Join(dir, "s")))
				swap(dir, link)
			},
		}),
		asStranger(trusted, attack{
			name: "borrows-rights", does: "announces the stable socket of a neighbour, which only root may open, as its endpoint",
			happens: "it is refused, with the reason", bound: "the user of the socket", named: event(rootsSocket),
			play: announces(func(a *attacker, i *registerapi.PluginInfo) { i.Endpoint = stableOfNeighbour(a) }),
		}),
		asStranger(trusted, attack{
			name: "borrows-rights-later", does: "endlessly swaps its endpoint with a link to the stable socket of a neighbour",
			happens: "the neighbour is not called", bound: "the user who listens, checked at each connect", named: event("registered: "),
			play: announces(func(a *attacker, i *registerapi.PluginInfo) { i.Endpoint = swapped(a) }),
			check: func(s *scene) {
				conn := s.dial(s.awaitStable())
				s.await("a connect to the link is refused", func() bool {
					err := check(s.Context(), conn)
					if err == nil {
						s.Error("the neighbour was called with the rights of the daemon")
					}
					return err == nil || strings.Contains(err.Error(), rootsSocket)
				})
			},
		}),
		asStranger(trusted, attack{
			name: "borrows-rights-of-a-handler", does: "does the same as a CSI driver, to which the daemon's handler connects",
			happens: "the neighbour is not called, and the plugin gets the reason", bound: "the user who listens, checked at each connect", named: event(rootsSocket),
			play: announces(func(a *attacker, i *registerapi.PluginInfo) {
				i.Type, i.Name, i.SupportedVersions, i.Endpoint = "CSIPlugin", "hostile.example.com", []string{"1.0.0"}, swapped(a)
			}),
		}),
		asStranger(nobody, attack{
			name: "squats-directories", does: "creates the directories, files and links that another plugin would get when it is launched", happens: "that plugin gets another directory",
			bound: "a private directory is always newly created", named: event(fmt.Sprintf("%s.9 belongs to user %d", laterName, hostileUser)),
			play: func(a *attacker) {
				for i := range 10 {
					path := filepath.Join(a.dir, fmt.Sprintf("%s.%d", laterName, i))
					switch i % 3 {
					case 0:
						must(os.Mkdir(path, 0o755))
						must(os.Chmod(path, 0o777))
					case 1:
						must(os.Symlink(filepath.Join(a.dir, "nowhere"), path))
					case 2:
						must(os.WriteFile(path, nil, 0o600))
					}
				}
			},
			check: func(s *scene) {
				if _, err := s.client.Launch(s.Context(), laterName); err != nil {
					s.Fatal(err)
				}
				p, err := s.client.Wait(s.Context(), "Neighbour", laterName, client.GoalRegistered)
				if want := filepath.Join(s.plugins, laterName+".10", "plugin.sock"); err != nil || p.SocketPath != want {
					s.Errorf("the launched plugin is %+v, %v, want it at %s", p, err, want)
				}
			},
		}),
	}
}
