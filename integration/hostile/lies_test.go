//go:build linux

package hostile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// refused is a plugin that announces what is refused.
func refused(name, does, bound, text string, announce func(*registerapi.PluginInfo)) attack {
	return attack{
		name: name, does: "announces " + does, bound: bound, named: event("refused: the plugin announces " + text),
		happens: "it is refused, with the reason", play: announces(func(_ *attacker, i *registerapi.PluginInfo) { announce(i) }),
	}
}

// harmless is a plugin with a strange name, which is as good as any other.
func harmless(name, does, happens, pluginName string, check func(*scene)) attack {
	return attack{
		name: name, does: "announces " + does, happens: happens, bound: "4 KiB for a name, without control characters",
		named: event("registered: "), check: check,
		play: announces(func(_ *attacker, i *registerapi.PluginInfo) { i.Name = pluginName }),
	}
}

const (
	textBound    = "4,096 bytes of valid UTF-8 without control characters for a type, name or endpoint, 64 for a version"
	versionBound = "64 versions"
	controls     = "with control characters or invalid UTF-8"
)

func lyingAttacks() []attack {
	return []attack{
		refused("escapes", "a name with terminal escapes", textBound, "its name "+controls, func(i *registerapi.PluginInfo) { i.Name = "\x1b[2J\x1b]0;title\x07" }),
		refused("nul", "a name with NUL", textBound, "its name "+controls, func(i *registerapi.PluginInfo) { i.Name = "hostile\x00.sock" }),
		refused("newline", "a version with a line that looks like one of the log", textBound, "its version "+controls,
			func(i *registerapi.PluginInfo) { i.SupportedVersions = []string{"1\nlevel=ERROR msg=\"all is lost\""} }),
		refused("long-name", "a name of 10 KB", textBound, "its name with 10240 bytes; at most 4096 are allowed", func(i *registerapi.PluginInfo) { i.Name = long(10 << 10) }),
		refused("no-name", "no name", textBound, "no name", func(i *registerapi.PluginInfo) { i.Name = "" }),
		refused("no-type", "no type", textBound, "no type", func(i *registerapi.PluginInfo) { i.Type = "" }),
		refused("path-type", "a type with slashes", textBound, "the type \"../Hostile\"; a type must not contain a slash", func(i *registerapi.PluginInfo) { i.Type = "../Hostile" }),
		refused("versions", "1,000 versions", versionBound, "1000 versions; at most 64 are allowed", func(i *registerapi.PluginInfo) { i.SupportedVersions = make([]string, 1000) }),
		{
			name: "65535-versions", does: "announces 65,535 versions", bound: "60 KiB for a response",
			happens: "the response is not read", named: event("bytes; at most 61440 are allowed"),
			play: announces(func(_ *attacker, i *registerapi.PluginInfo) { i.SupportedVersions = make([]string, 65_535) }),
		},
		{
			name: "same-versions", does: "announces one version 64 times", bound: versionBound,
			happens: "it is registered, with the announced versions", named: event("registered: "),
			play: announces(func(_ *attacker, i *registerapi.PluginInfo) { i.SupportedVersions = slices.Repeat([]string{"1"}, 64) }),
		},
		{
			name: "invalid-utf8", does: "announces a name and an endpoint that are not UTF-8", bound: textBound,
			happens: "the response is rejected", named: event("decode the plugin's answer"),
			play: asks(func(p *peer) {
				p.start()
				p.answer(raw(map[byte]string{1: hostileType, 2: "\xff\xfe", 3: "/\xc2", 4: "1"}))
			}),
		},
		harmless("dot-dot", "a name that is a path out of the directory", "a name is never a path: its stable socket has an encoded name", "../../../hostile",
			func(s *scene) {
				s.await("it has a stable socket", func() bool { found, _ := filepath.Glob(s.stable(hostileType, "*")); return len(found) == 1 })
				for _, outside := range []string{s.path("hostile.sock"), s.path("hostile"), filepath.Join(s.dir, "..", "hostile.sock")} {
					if _, err := os.Lstat(outside); err == nil {
						s.Errorf("there is %s", outside)
					}
				}
			}),
		harmless("html", "a name that is a script", "it is registered; the status page shows text, never markup", "<script>alert(1)</script><img src=x onerror=alert(1)>", nil),
		harmless("bidi", "a name that reverses the text printed after it", "it is registered, and escaped where it is printed", "\u202egnp.exe", func(s *scene) {
			if out := s.patchbay("list"); strings.Contains(out, "\u202e") || !strings.Contains(out, `\u202e`) {
				s.Errorf("the list prints %q", out)
			}
		}),
		{
			name: "chameleon", does: "announces a new name on every attempt, and fails NotifyRegistrationStatus", bound: "one row per socket, however many names it had",
			happens: "each registration is rolled back", named: event("failed: "),
			play: func() func(*attacker) {
				var n atomic.Int32
				return asks(func(p *peer) {
					i := info()
					i.Name = fmt.Sprintf("hostile-%d", n.Add(1))
					p.start()
					p.answer(message(i))
					p.request()
				})
			}(),
			check: func(s *scene) {
				names := func() int {
					seen := map[string]bool{}
					for _, e := range s.events() {
						if e.Type == hostileType {
							seen[e.Name] = true
						}
					}
					return len(seen)
				}
				s.await("it has had three names", func() bool { return names() >= 3 })
				rows := 0
				for _, p := range s.list().Plugins {
					if p.Type != "Neighbour" {
						rows++
					}
				}
				if rows > 1 {
					s.Errorf("it has %d rows in the list", rows)
				}
			},
		},
		{
			name: "claims-a-name", does: "announces the type and name of a neighbour, as the same user", bound: "one more instance",
			happens: "it supersedes the neighbour, which is reported; when it goes, the neighbour is current again, as the same instance", harms: true,
			play: announces(func(_ *attacker, i *registerapi.PluginInfo) { i.Type, i.Name = "Neighbour", "found" }),
			check: func(s *scene) {
				s.await("the neighbour is told of as superseded", func() bool {
					for _, e := range s.events() {
						if e.Kind == "superseded" && e.Instance == s.neighbours["found"] {
							return true
						}
					}
					return false
				})
			},
		},
		{
			name: "csi-other-name", does: "is a CSI driver whose services report another name", bound: "the handler's checks", happens: "it is refused, with the reason",
			named: event("refused: "),
			play: announces(func(_ *attacker, i *registerapi.PluginInfo) {
				i.Type, i.Name, i.SupportedVersions = "CSIPlugin", "hostile.example.com", []string{"1.0.0"}
			},
				func(s *grpc.Server) { csi.RegisterIdentityServer(s, liar{}) }),
		},
		{
			name: "dra-without-service", does: "is a DRA driver without a DRA service", bound: "the handler's checks", happens: "it is registered, and every call to it fails",
			named: event("registered: "),
			play: announces(func(_ *attacker, i *registerapi.PluginInfo) {
				i.Type, i.Name, i.SupportedVersions = "DRAPlugin", "hostile.example.com", []string{"v1.DRAPlugin"}
			}),
		},
		{
			name: "many-devices", does: "is a device plugin with 5 MB of devices", bound: "4 MiB for a response", happens: "it is refused, with the reason",
			play: announces(func(_ *attacker, i *registerapi.PluginInfo) {
				i.Type, i.Name, i.SupportedVersions = "DevicePlugin", "hostile.example.com/device", []string{"v1beta1"}
			},
				func(s *grpc.Server) { deviceapi.RegisterDevicePluginServer(s, hoarder{}) }),
			named: event("larger than max"),
		},
	}
}

// liar is a CSI driver of another name.
type liar struct {
	csi.UnimplementedIdentityServer
}

func (liar) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "other.example.com", VendorVersion: "1"}, nil
}

func (liar) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// hoarder has too many devices.
type hoarder struct {
	deviceapi.UnimplementedDevicePluginServer
}

func (hoarder) GetDevicePluginOptions(context.Context, *deviceapi.Empty) (*deviceapi.DevicePluginOptions, error) {
	return &deviceapi.DevicePluginOptions{}, nil
}

func (hoarder) ListAndWatch(_ *deviceapi.Empty, stream deviceapi.DevicePlugin_ListAndWatchServer) error {
	// Long IDs, since it takes seconds to marshal as much of short ones on a busy machine.
	devices := slices.Repeat([]*deviceapi.Device{{ID: long(256), Health: deviceapi.Healthy}}, 20_000)
	if err := stream.Send(&deviceapi.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}
