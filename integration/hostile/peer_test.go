//go:build linux

package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// attacker is what an attack has, in its own process: the plugin directory and the path of its own socket, which does not exist yet.
type attacker struct{ dir, socket string }

// hostileType is the type that most attackers announce; the daemon accepts it.
const hostileType = "Hostile"

// info is a proper announcement.
func info() *registerapi.PluginInfo {
	return &registerapi.PluginInfo{Type: hostileType, Name: "hostile", SupportedVersions: []string{"1"}}
}

// must ends the attacker, who cannot do what he is here for.
func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "the attack cannot be played:", err)
		os.Exit(1)
	}
}

// listen makes a socket under a name that is not searched and renames it, so that nobody finds it before it is served.
func listen(path string) net.Listener {
	hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	l, err := net.Listen("unix", hidden)
	must(err)
	must(os.Rename(hidden, path))
	return l
}

// peers serves the attacker's socket frame by frame: playConn answers each connection, which is closed when it returns.
func peers(playConn func(*peer)) func(*attacker) {
	return func(a *attacker) {
		l := listen(a.socket)
		for {
			conn, err := l.Accept()
			must(err)
			go func() {
				defer conn.Close()
				playConn(newPeer(conn))
			}()
		}
	}
}

// asks has each connection answered by answer as soon as a request is there.
func asks(answer func(*peer)) func(*attacker) {
	return peers(func(p *peer) {
		if p.request() {
			answer(p)
		}
	})
}

// peer is the plugin's side of a connection. Errors are ignored: the daemon ends the connection when it has had enough.
type peer struct {
	net.Conn
	*http2.Framer
	stream  uint32 // of the latest request
	block   bytes.Buffer
	encoder *hpack.Encoder
}

func newPeer(conn net.Conn) *peer {
	p := &peer{Conn: conn, Framer: http2.NewFramer(conn, conn)}
	p.encoder = hpack.NewEncoder(&p.block)
	p.AllowIllegalWrites = true
	return p
}

// request reads until a request is complete.
func (p *peer) request() bool {
	if p.stream == 0 {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(p.Conn, preface); err != nil {
			return false
		}
	}
	for {
		f, err := p.ReadFrame()
		if err != nil {
			return false
		}
		if h, ok := f.(*http2.HeadersFrame); ok {
			p.stream = h.StreamID
		}
		if d, ok := f.(*http2.DataFrame); ok && d.StreamEnded() {
			return true
		}
	}
}

// headersBegin reads until the first frame of headers, which may have more.
func (p *peer) headersBegin() bool {
	if _, err := io.ReadFull(p.Conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return false
	}
	for {
		f, err := p.ReadFrame()
		if _, ok := f.(*http2.HeadersFrame); ok || err != nil {
			return err == nil
		}
	}
}

// fields encodes headers, which are given as names and values in turn.
func (p *peer) fields(kv ...string) []byte {
	p.block.Reset()
	for i := 0; i < len(kv); i += 2 {
		_ = p.encoder.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
	}
	return p.block.Bytes()
}

func (p *peer) headers(end bool, kv ...string) {
	_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: p.stream, BlockFragment: p.fields(kv...), EndHeaders: true, EndStream: end})
}

// start answers with settings and the headers of an answer.
func (p *peer) start() {
	_ = p.WriteSettings()
	p.headers(false, ":status", "200", "content-type", "application/grpc")
}

// answer answers a call; the headers may have been sent before.
func (p *peer) answer(message []byte) {
	_ = p.WriteData(p.stream, false, message)
	p.headers(true, "grpc-status", "0")
}

// endlessly sends b again and again until the daemon has had enough.
func (p *peer) endlessly(b []byte) {
	go p.untilClosed()
	for chunk := bytes.Repeat(b, max(1, 32<<10/len(b))); ; {
		if _, err := p.Write(chunk); err != nil {
			return
		}
	}
}

// drip sends b byte by byte, so slowly that it does not end.
func (p *peer) drip(b []byte) {
	for i := range b {
		if _, err := p.Write(b[i : i+1]); err != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	p.untilClosed()
}

func (p *peer) untilClosed() { _, _ = io.Copy(io.Discard, p.Conn) }

// frame encodes a frame, legal or not.
func frame(t http2.FrameType, flags http2.Flags, stream uint32, payload []byte) []byte {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	f.AllowIllegalWrites = true
	_ = f.WriteRawFrame(t, flags, stream, payload)
	return b.Bytes()
}

// message encodes what a call answers.
func message(m proto.Message) []byte {
	body, err := proto.Marshal(m)
	must(err)
	return prefixed(body)
}

func prefixed(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

// raw is an announcement that no protobuf library would make: the fields by their numbers.
func raw(fields map[byte]string) []byte {
	var b []byte
	for number := byte(1); number <= 4; number++ {
		if text, ok := fields[number]; ok {
			b = binary.AppendUvarint(append(b, number<<3|2), uint64(len(text)))
			b = append(b, text...)
		}
	}
	return prefixed(b)
}

// announces serves a plugin that speaks the protocol well and announces what announce makes of a proper announcement.
func announces(announce func(*attacker, *registerapi.PluginInfo), services ...func(*grpc.Server)) func(*attacker) {
	return func(a *attacker) {
		i := info()
		announce(a, i)
		must(serveGRPC(listen(a.socket), func() *registerapi.PluginInfo { return i }, services...))
	}
}

// serveGRPC serves a plugin on a listener.
func serveGRPC(l net.Listener, says func() *registerapi.PluginInfo, services ...func(*grpc.Server)) error {
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, &registration{says: says})
	for _, register := range services {
		register(server)
	}
	return server.Serve(l)
}

// long is a text of some length.
func long(n int) string { return strings.Repeat("x", n) }

// registration is the registration service of a plugin that speaks the protocol well.
type registration struct {
	registerapi.UnimplementedRegistrationServer

	says func() *registerapi.PluginInfo
}

func (r *registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return r.says(), nil
}

func (*registration) NotifyRegistrationStatus(
	context.Context, *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}
