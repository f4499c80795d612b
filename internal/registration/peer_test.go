package registration

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// peer is the plugin's side of a connection, played by a test frame by frame. Its methods ignore errors: the client ends the connection
// when it has had enough.
type peer struct {
	*net.UnixConn
	*http2.Framer
	stream  uint32 // of the latest request
	block   bytes.Buffer
	encoder *hpack.Encoder
	dataLen int // DATA bytes of the latest request
}

// pair connects a client to a peer, which plays until it returns. The connection is closed then.
func pair(t testing.TB, play func(*peer)) *Client {
	t.Helper()
	l := listen(t)
	client, conn := connected(t, l)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close()
		play(newPeer(conn))
	}()
	t.Cleanup(func() {
		_ = client.Close()
		<-done
	})
	return client
}

func newPeer(conn *net.UnixConn) *peer {
	p := &peer{UnixConn: conn, Framer: http2.NewFramer(conn, conn)}
	p.encoder = hpack.NewEncoder(&p.block)
	p.AllowIllegalWrites = true
	return p
}

// request reads until a request is complete. It reports false at the end of the connection.
func (p *peer) request() bool {
	if p.stream == 0 {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(p.UnixConn, preface); err != nil || string(preface) != http2.ClientPreface {
			return false
		}
	}
	p.dataLen = 0
	for {
		f, err := p.ReadFrame()
		if err != nil {
			return false
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			p.stream = f.StreamID
		case *http2.DataFrame:
			p.dataLen += len(f.Data())
			if f.StreamEnded() {
				return true
			}
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

// finish sends an answer's data and trailers.
func (p *peer) finish(data []byte) {
	_ = p.WriteData(p.stream, false, data)
	p.headers(true, "grpc-status", "0")
}

// endlessly sends b again and again until the client has had enough. What the client sends is read.
func (p *peer) endlessly(b []byte) {
	var reading sync.WaitGroup
	reading.Go(p.untilClosed)
	defer reading.Wait()
	p.deafly(b)
}

// deafly is endlessly without reading.
func (p *peer) deafly(b []byte) {
	chunk := bytes.Repeat(b, max(1, 32<<10/len(b)))
	for {
		if _, err := p.Write(chunk); err != nil {
			return
		}
	}
}

// untilClosed waits for the client to end the connection.
func (p *peer) untilClosed() { _, _ = io.Copy(io.Discard, p.UnixConn) }

// frame encodes a frame, legal or not.
func frame(t http2.FrameType, flags http2.Flags, stream uint32, payload []byte) []byte {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	f.AllowIllegalWrites = true
	_ = f.WriteRawFrame(t, flags, stream, payload)
	return b.Bytes()
}

// message encodes a message with its prefix.
func message(m proto.Message) []byte {
	body, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefixLen), m)
	if err != nil {
		panic(err)
	}
	setPrefix(body)
	return body
}

// infoMessage is the answer to GetInfo of a plugin that announces announced.
func infoMessage() []byte {
	return message(&registerapi.PluginInfo{
		Type: announced.Type, Name: announced.Name, Endpoint: announced.Endpoint, SupportedVersions: announced.Versions,
	})
}
