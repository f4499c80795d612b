package pipeline

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/registration"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// introduced is a launched plugin that has said something of itself.
type introduced struct {
	Launch
	said []byte
}

func (i *introduced) Introduction() []byte {
	said := i.said
	i.said = nil
	return said
}

type asked struct {
	registerapi.UnimplementedRegistrationServer
}

func (asked) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: "T", Name: "asked", SupportedVersions: []string{"2"}}, nil
}

// TestWhoIsAsked: a launched plugin that has said who it is is not asked, once; one that has said nothing, or what cannot be read, is. Only
// the time of plugins that are asked counts as that of an answer.
func TestWhoIsAsked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, asked{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		server.Stop()
		<-served
	}()
	said, err := proto.Marshal(&registerapi.PluginInfo{Type: "T", Name: "introduced", SupportedVersions: []string{"1", "2"}, Endpoint: "/e"})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		launch Launch
		want   string
	}{
		"not launched":       {nil, "asked"},
		"said who it is":     {&introduced{said: said}, "introduced"},
		"said nothing":       {&introduced{}, "asked"},
		"said a part":        {&introduced{said: said[:len(said)-1]}, "asked"},
		"said something odd": {&introduced{said: []byte("it is me")}, "asked"},
	} {
		t.Run(name, func(t *testing.T) {
			socket, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			asking := &asking{}
			c := &conn{Client: registration.New(socket.(*net.UnixConn)), transport: &transport{asking: asking}, launch: tc.launch}
			defer c.Client.Close()
			for _, want := range []string{tc.want, "asked"} {
				info, err := c.info(t.Context(), 0)
				if err != nil || info.Name != want {
					t.Errorf("it is %+v, %v; want %s", info, err, want)
				}
				if _, answering := asking.latencies(); (answering > 0) != (want == "asked") {
					t.Errorf("%s: answers take %v", want, answering)
				}
				if want == "introduced" && (info.Type != "T" || len(info.Versions) != 2 || info.Endpoint != "/e") {
					t.Errorf("it is %+v", info)
				}
			}
		})
	}
}

// TestAnnouncedEndpointIsJudged: a plugin may announce an endpoint of its own user, and not one of somebody else's.
func TestAnnouncedEndpointIsJudged(t *testing.T) {
	judge, err := trustjudge.New(trust.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	endpoint := filepath.Join(t.TempDir(), "e.sock")
	l, err := net.Listen("unix", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	said, err := proto.Marshal(&registerapi.PluginInfo{Type: "T", Name: "one", SupportedVersions: []string{"1"}, Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	own := uint32(os.Geteuid())
	for uid, refused := range map[uint32]bool{own: false, own + 60001: true} {
		c := &conn{
			transport: &transport{gate: &gate{trust: judge}}, launch: &introduced{said: said}, account: plugin.Account{UID: uid, Known: true},
		}
		_, err := c.GetInfo(t.Context(), time.Second)
		refusal, is := errors.AsType[*trust.Refusal](err)
		if is != refused || is && refusal.Reason != trust.Endpoint || !is && err != nil {
			t.Errorf("a plugin of user %d announces a socket of user %d: %v", uid, own, err)
		}
	}
}
