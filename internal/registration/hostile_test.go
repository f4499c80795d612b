package registration

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// patience is the deadline of a call that must not need it.
	patience = time.Minute
	// moment is the deadline of a call that nothing else ends.
	moment = 50 * time.Millisecond
	// memoryBound is what one hostile call may allocate in all, garbage and the peer's own share included. It is some 290 bytes for
	// each of the smallest frames that are not free, for which there is room in maxCall.
	memoryBound = 4 << 20
)

// hostile are peers that break the protocol, each at the latest request. DeadlineExceeded is expected of those that only a deadline ends.
var hostile = []struct {
	name string
	play func(*peer)
	want codes.Code
}{
	{"says nothing", func(p *peer) { p.untilClosed() }, codes.DeadlineExceeded},
	{"closes", func(*peer) {}, codes.Unavailable},
	{"half-closes", func(p *peer) { _ = p.CloseWrite(); p.untilClosed() }, codes.Unavailable},
	{"stops in a frame header", func(p *peer) { p.raw("\x00\x00"); p.untilClosed() }, codes.DeadlineExceeded},
	{"stops in its settings", func(p *peer) { p.raw("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00"); p.untilClosed() }, codes.DeadlineExceeded},
	{"stops after its settings", func(p *peer) { _ = p.WriteSettings(); p.untilClosed() }, codes.DeadlineExceeded},
	{"stops in a header block", func(p *peer) {
		_ = p.WriteSettings()
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: p.stream, BlockFragment: p.fields(":status", "200")})
		p.untilClosed()
	}, codes.DeadlineExceeded},
	{"stops after the headers", func(p *peer) { p.start(); p.untilClosed() }, codes.DeadlineExceeded},
	{"stops in the prefix", func(p *peer) { p.start(); _ = p.WriteData(p.stream, false, []byte{0, 0}); p.untilClosed() }, codes.DeadlineExceeded},
	{"stops in the message", func(p *peer) {
		p.start()
		_ = p.WriteData(p.stream, false, infoMessage()[:20])
		p.untilClosed()
	}, codes.DeadlineExceeded},
	{"stops before the trailers", func(p *peer) {
		p.start()
		_ = p.WriteData(p.stream, false, infoMessage())
		p.untilClosed()
	}, codes.DeadlineExceeded},
	{"closes before the trailers", func(p *peer) { p.start(); _ = p.WriteData(p.stream, false, infoMessage()) }, codes.Unavailable},

	{"speaks HTTP/1.1", func(p *peer) { p.raw("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") }, codes.Internal},
	{"speaks TLS", func(p *peer) { p.raw("\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + strings.Repeat("r", 100)) }, codes.Internal},
	{"answers with a TLS alert", func(p *peer) { p.raw("\x15\x03\x01\x00\x02\x02\x46") }, codes.Unavailable},
	{"echoes", func(p *peer) { p.raw(http2.ClientPreface + strings.Repeat("\x00", 100)) }, codes.Internal},
	{"sends zeros", func(p *peer) { p.raw(strings.Repeat("\x00", 100)); p.untilClosed() }, codes.Internal},
	{"sends 0xff", func(p *peer) { p.raw(strings.Repeat("\xff", 100)); p.untilClosed() }, codes.Internal},

	{"sends a frame of 16 MB", func(p *peer) { _ = p.WriteSettings(); p.raw("\xff\xff\xff\x00\x00"); p.endlessly([]byte{0}) }, codes.Internal},
	{"announces 1 GB", func(p *peer) {
		p.start()
		_ = p.WriteData(p.stream, false, binary.BigEndian.AppendUint32([]byte{0}, 1<<30))
		p.untilClosed()
	}, codes.ResourceExhausted},
	{"sends more than it announced", func(p *peer) { p.start(); p.finish(append(infoMessage(), 0x1a, 0)) }, codes.Internal},
	{"sends less than it announced", func(p *peer) { p.start(); p.finish(infoMessage()[:20]) }, codes.Internal},
	{"sends two messages", func(p *peer) { p.start(); p.finish(append(infoMessage(), infoMessage()...)) }, codes.Internal},
	{"sends no message", func(p *peer) { p.start(); p.headers(true, "grpc-status", "0") }, codes.Internal},
	{"sends no protobuf", func(p *peer) { p.start(); p.finish([]byte("\x00\x00\x00\x00\x02\xff\xff")) }, codes.Internal},
	{"sends invalid UTF-8", func(p *peer) { p.start(); p.finish([]byte("\x00\x00\x00\x00\x03\x0a\x01\xff")) }, codes.Internal},
	{"compresses", func(p *peer) { p.start(); p.finish([]byte("\x01\x00\x00\x00\x00")) }, codes.Internal},
	{"breaks flow control", func(p *peer) {
		_ = p.WriteSettings()
		p.headers(false, ":status", "503") // so that data is not judged as a message
		p.endlessly(frame(http2.FrameData, 0, p.stream, make([]byte, 16<<10)))
	}, codes.Internal},

	{"sends endless pings", func(p *peer) { _ = p.WriteSettings(); p.endlessly(frame(http2.FramePing, 0, 0, make([]byte, 8))) },
		codes.ResourceExhausted},
	{"sends endless pings and reads nothing", func(p *peer) { _ = p.WriteSettings(); p.deafly(frame(http2.FramePing, 0, 0, make([]byte, 8))) },
		codes.DeadlineExceeded},
	{"sends endless settings", func(p *peer) { p.endlessly(frame(http2.FrameSettings, 0, 0, nil)) }, codes.ResourceExhausted},
	{"sends endless large settings", func(p *peer) { p.endlessly(frame(http2.FrameSettings, 0, 0, make([]byte, 6*2730))) },
		codes.ResourceExhausted},
	{"sends endless empty data", func(p *peer) { p.start(); p.endlessly(frame(http2.FrameData, 0, p.stream, nil)) }, codes.ResourceExhausted},
	{"sends endless padding", func(p *peer) {
		p.start()
		p.endlessly(frame(http2.FrameData, http2.FlagDataPadded, p.stream, append([]byte{255}, make([]byte, 255)...)))
	}, codes.Internal},
	{"sends endless unknown frames", func(p *peer) { _ = p.WriteSettings(); p.endlessly(frame(0xee, 0, 0, make([]byte, 100))) },
		codes.ResourceExhausted},
	{"sends endless priorities", func(p *peer) {
		_ = p.WriteSettings()
		p.endlessly(frame(http2.FramePriority, 0, p.stream, make([]byte, 5)))
	}, codes.ResourceExhausted},
	{"sends endless interim headers", func(p *peer) {
		_ = p.WriteSettings()
		p.endlessly(frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, p.stream, []byte("\x48\x03100")))
	}, codes.ResourceExhausted},
	{"sends endless empty CONTINUATION", func(p *peer) {
		_ = p.WriteSettings()
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: p.stream, BlockFragment: p.fields(":status", "200")})
		p.endlessly(frame(http2.FrameContinuation, 0, p.stream, nil))
	}, codes.ResourceExhausted},
	{"sends endless CONTINUATION", func(p *peer) {
		_ = p.WriteSettings()
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: p.stream, BlockFragment: p.fields(":status", "200")})
		p.endlessly(frame(http2.FrameContinuation, 0, p.stream, bytes.Repeat([]byte("\x00\x01a\x01b"), 1000)))
	}, codes.Internal},
	{"sends many headers", func(p *peer) {
		_ = p.WriteSettings()
		_ = p.WriteHeaders(http2.HeadersFrameParam{
			StreamID: p.stream, EndHeaders: true,
			BlockFragment: append(bytes.Clone(p.fields(":status", "200")), bytes.Repeat([]byte("\x00\x01a\x01b"), 2000)...),
		})
		p.untilClosed()
	}, codes.ResourceExhausted},
	{"sends a long header", func(p *peer) {
		_ = p.WriteSettings()
		p.headers(false, ":status", "200", "content-type", "application/grpc", "x", strings.Repeat("\x00", 1<<13))
		p.untilClosed()
	}, codes.Internal},
	{"sends an HPACK bomb", func(p *peer) { // a large entry of the dynamic table, and one byte for each use of it
		_ = p.WriteSettings()
		block := bytes.Clone(p.fields(":status", "200", "x", strings.Repeat("y", 3900)))
		_ = p.WriteHeaders(http2.HeadersFrameParam{
			StreamID: p.stream, EndHeaders: true, BlockFragment: append(block, bytes.Repeat([]byte{0x80 | 62}, 10_000)...),
		})
		p.untilClosed()
	}, codes.ResourceExhausted},
	{"sends broken HPACK", func(p *peer) {
		_ = p.WriteSettings()
		p.raw(string(frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, p.stream, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})))
		p.untilClosed()
	}, codes.Internal},
	{"grows the HPACK table", func(p *peer) {
		_ = p.WriteSettings()
		p.raw(string(frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, p.stream, []byte{0x3f, 0xe1, 0xff, 0x03})))
		p.untilClosed()
	}, codes.Internal},

	{"starts with headers", func(p *peer) { p.headers(true, ":status", "200"); p.untilClosed() }, codes.Internal},
	{"starts with an acknowledgement", func(p *peer) { _ = p.WriteSettingsAck(); p.untilClosed() }, codes.Internal},
	{"sends an illegal window", func(p *peer) { p.setting(http2.SettingInitialWindowSize, 1<<31) }, codes.Internal},
	{"sends an illegal frame size", func(p *peer) { p.setting(http2.SettingMaxFrameSize, 1) }, codes.Internal},
	{"sends an illegal push", func(p *peer) { p.setting(http2.SettingEnablePush, 2) }, codes.Internal},
	{"sends settings of 5 bytes", func(p *peer) { p.raw(string(frame(http2.FrameSettings, 0, 0, make([]byte, 5)))); p.untilClosed() },
		codes.Internal},
	{"sends settings on a stream", func(p *peer) { p.raw(string(frame(http2.FrameSettings, 0, 1, nil))); p.untilClosed() }, codes.Internal},
	{"widens the window by 0", func(p *peer) { _ = p.WriteSettings(); _ = p.WriteWindowUpdate(0, 0); p.untilClosed() }, codes.Internal},
	{"widens the window too far", func(p *peer) {
		_ = p.WriteSettings()
		_ = p.WriteWindowUpdate(0, maxWindow)
		p.untilClosed()
	}, codes.Internal},
	{"widens the stream's window too far", func(p *peer) {
		_ = p.WriteSettings()
		_ = p.WriteWindowUpdate(p.stream, maxWindow)
		p.untilClosed()
	}, codes.Internal},
	{"answers on another stream", func(p *peer) {
		_ = p.WriteSettings()
		p.stream += 2
		p.headers(true, ":status", "200")
		p.untilClosed()
	},
		codes.Internal},
	{"answers on an even stream", func(p *peer) { _ = p.WriteSettings(); p.stream++; p.headers(true, ":status", "200"); p.untilClosed() },
		codes.Internal},
	{"sends data on stream 0", func(p *peer) { _ = p.WriteSettings(); _ = p.WriteData(0, false, nil); p.untilClosed() }, codes.Internal},
	{"sends data on another stream", func(p *peer) { _ = p.WriteSettings(); _ = p.WriteData(p.stream+2, false, nil); p.untilClosed() },
		codes.Internal},
	{"sends data first", func(p *peer) { _ = p.WriteSettings(); _ = p.WriteData(p.stream, true, infoMessage()); p.untilClosed() },
		codes.Internal},
	{"pushes", func(p *peer) {
		_ = p.WriteSettings()
		_ = p.WritePushPromise(http2.PushPromiseParam{StreamID: p.stream, PromiseID: 2, BlockFragment: p.fields(":path", "/"), EndHeaders: true})
		p.untilClosed()
	}, codes.Internal},
	{"sends headers twice", func(p *peer) { p.start(); p.headers(false, ":status", "200"); p.untilClosed() }, codes.Internal},
	{"sends trailers without an end", func(p *peer) { p.start(); p.headers(false, "grpc-status", "0"); p.untilClosed() }, codes.Internal},
	{"ends with interim headers", func(p *peer) { _ = p.WriteSettings(); p.headers(true, ":status", "100"); p.untilClosed() }, codes.Internal},
	{"sends no HTTP status", func(p *peer) {
		_ = p.WriteSettings()
		p.headers(true, "content-type", "application/grpc", "grpc-status", "0")
		p.untilClosed()
	}, codes.Internal},
	{"sends a strange HTTP status", func(p *peer) { _ = p.WriteSettings(); p.headers(true, ":status", "two"); p.untilClosed() }, codes.Internal},
	{"sends pseudo headers in trailers", func(p *peer) {
		p.start()
		p.headers(true, ":status", "200", "grpc-status", "0")
		p.untilClosed()
	}, codes.Internal},
	{"sends upper-case headers", func(p *peer) { _ = p.WriteSettings(); p.headers(false, ":status", "200", "X-A", "b"); p.untilClosed() },
		codes.Internal},
	{"ends without a status", func(p *peer) { p.start(); _ = p.WriteData(p.stream, true, infoMessage()) }, codes.Internal},
	{"ends without a grpc-status", func(p *peer) { p.start(); p.headers(true, "x", "y") }, codes.Unknown},
	{"ends with a strange grpc-status", func(p *peer) { p.start(); p.headers(true, "grpc-status", "-1") }, codes.Unknown},
	{"is a web server", func(p *peer) { _ = p.WriteSettings(); p.headers(true, ":status", "404", "content-type", "text/html") },
		codes.Unimplemented},
	{"is a broken proxy", func(p *peer) { _ = p.WriteSettings(); p.headers(true, ":status", "502", "content-type", "text/html") },
		codes.Unavailable},
	{"sends HTML", func(p *peer) { _ = p.WriteSettings(); p.headers(true, ":status", "200", "content-type", "text/html") }, codes.Unknown},
	{"speaks gRPC-Web", func(p *peer) {
		_ = p.WriteSettings()
		p.headers(true, ":status", "200", "content-type", "application/grpc-web", "grpc-status", "5")
	},
		codes.Unknown},

	{"goes away at once", func(p *peer) {
		_ = p.WriteSettings()
		_ = p.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte(strings.Repeat("too_many_pings", 1000)))
		p.untilClosed()
	}, codes.Unavailable},
	{"goes away and closes", func(p *peer) { _ = p.WriteSettings(); _ = p.WriteGoAway(p.stream, http2.ErrCodeNo, nil) }, codes.Unavailable},
	{"resets", func(p *peer) { _ = p.WriteSettings(); _ = p.WriteRSTStream(p.stream, http2.ErrCodeInternal) }, codes.Internal},
	{"refuses the stream", func(p *peer) { _ = p.WriteSettings(); _ = p.WriteRSTStream(p.stream, http2.ErrCodeRefusedStream) },
		codes.Unavailable},
	{"cancels", func(p *peer) { _ = p.WriteSettings(); _ = p.WriteRSTStream(p.stream, http2.ErrCodeCancel) }, codes.Canceled},
	{"is overloaded", func(p *peer) { _ = p.WriteSettings(); _ = p.WriteRSTStream(p.stream, http2.ErrCodeEnhanceYourCalm) },
		codes.ResourceExhausted},
}

func (p *peer) raw(s string) { _, _ = p.Write([]byte(s)) }

func (p *peer) setting(id http2.SettingID, value uint32) {
	_ = p.WriteSettings(http2.Setting{ID: id, Val: value})
	p.untilClosed()
}

// TestHostilePeer has every hostile peer answer GetInfo.
func TestHostilePeer(t *testing.T) {
	for _, h := range hostile {
		t.Run(h.name, func(t *testing.T) {
			client := pair(t, func(p *peer) {
				if p.request() {
					h.play(p)
				}
			})
			bounded(t, h.want, func(ctx context.Context) error {
				_, err := client.GetInfo(ctx, 0)
				return err
			})
		})
	}
}

// TestPeerTurnsHostile has every hostile peer answer Notify after a proper GetInfo.
func TestPeerTurnsHostile(t *testing.T) {
	for _, h := range hostile {
		switch h.name {
		case "starts with headers", "starts with an acknowledgement", "echoes", "sends zeros": // the start is over, and zeros are empty DATA
			continue
		case "sends invalid UTF-8": // an answer without fields has no string
			continue
		}
		t.Run(h.name, func(t *testing.T) {
			client := pair(t, func(p *peer) {
				if !p.request() {
					return
				}
				p.start()
				p.finish(infoMessage())
				if p.request() {
					h.play(p)
				}
			})
			info, err := client.GetInfo(t.Context(), 0)
			if err != nil || info.Name != announced.Name {
				t.Fatalf("GetInfo: %+v, %v", info, err)
			}
			bounded(t, h.want, func(ctx context.Context) error { return client.Notify(ctx, 0, true, "") })
		})
	}
}

// TestNeverReads has a peer that does not read: a call still ends with its deadline.
func TestNeverReads(t *testing.T) {
	release := make(chan struct{})
	client := pair(t, func(p *peer) {
		<-release
	})
	defer close(release)
	bounded(t, codes.DeadlineExceeded, func(ctx context.Context) error { return client.Notify(ctx, 0, false, strings.Repeat("x", 1<<20)) })
}

// bounded makes a call that must fail with a code, and checks that it allocates little.
func bounded(t *testing.T, want codes.Code, call func(context.Context) error) {
	t.Helper()
	timeout := patience
	if want == codes.DeadlineExceeded {
		timeout = moment
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := call(ctx)
	runtime.ReadMemStats(&after)
	if status.Code(err) != want {
		t.Errorf("the call ended with %v, want %v", err, want)
	}
	if err != nil && len(err.Error()) > 2<<10 {
		t.Errorf("an error text of %d bytes", len(err.Error()))
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > memoryBound {
		t.Errorf("the call allocated %d bytes, want at most %d", n, memoryBound)
	}
	if err := call(t.Context()); err == nil {
		t.Error("a call after the error succeeded")
	}
}
