//go:build linux

package hostile

import (
	"bytes"
	"io"
	"strings"
	"time"

	"golang.org/x/net/http2"
)

// Bounds of internal/registration, as the documentation says them.
const (
	deadline  = "the deadline of the call; the next attempt backs off"
	callBytes = "128 KiB are read in one call"
	headerLen = "16 KiB of headers, as HTTP/2 counts them"
	noAnswer  = "no answer from the plugin: context deadline exceeded"
	tooMuch   = "more than 131072 bytes in one call"
)

// slow is an attack that only a deadline ends.
func slow(name, does string, play func(*attacker)) attack {
	return attack{
		name: name, does: does, play: play, bound: deadline, named: event(noAnswer),
		happens: "the call times out, and is retried with growing pauses",
	}
}

// flood is an attack with frames that have no end.
func flood(name, does string, b func(*peer) []byte, start func(*peer)) attack {
	return attack{
		name: name, does: does, bound: callBytes, named: event(tooMuch), happens: "the connection is closed in the middle of the flood",
		play: asks(func(p *peer) {
			start(p)
			p.endlessly(b(p))
		}),
	}
}

func settings(p *peer) { _ = p.WriteSettings() }

// afterGetInfo answers GetInfo properly and plays with Notify.
func afterGetInfo(playNotify func(*peer)) func(*attacker) {
	return asks(func(p *peer) {
		p.start()
		p.answer(message(info()))
		if p.request() {
			playNotify(p)
		}
	})
}

func wireAttacks() []attack {
	hello := func(p *peer) []byte {
		var b bytes.Buffer
		f := http2.NewFramer(&b, nil)
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 100})
		_ = f.WriteHeaders(http2.HeadersFrameParam{
			StreamID: 1, EndHeaders: true, BlockFragment: p.fields(":status", "200", "content-type", "application/grpc", "x", long(4000)),
		})
		return b.Bytes()
	}
	return []attack{
		slow("slow-silence", "accepts, and sends nothing", peers((*peer).untilClosed)),
		slow("slow-settings", "sends its first frame byte by byte",
			asks(func(p *peer) { p.drip(frame(http2.FrameSettings, 0, 0, make([]byte, 600))) })),
		slow("slow-headers", "sends the headers of its response byte by byte", asks(func(p *peer) { p.drip(hello(p)) })),
		slow("slow-body", "sends its announcement byte by byte", asks(func(p *peer) {
			p.start()
			for _, b := range message(info()) {
				_ = p.WriteData(p.stream, false, []byte{b})
				time.Sleep(200 * time.Millisecond)
			}
			p.untilClosed()
		})),
		slow("slow-trailers", "sends its announcement, but never the trailers", asks(func(p *peer) {
			p.start()
			_ = p.WriteData(p.stream, false, message(info()))
			p.untilClosed()
		})),
		slow("zero-window", "keeps its window at zero, so that the request cannot be sent", peers(func(p *peer) {
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			p.untilClosed()
		})),
		slow("deaf", "sends pings endlessly, and reads nothing", peers(func(p *peer) {
			settings(p)
			for ping := bytes.Repeat(frame(http2.FramePing, 0, 0, make([]byte, 8)), 64); ; time.Sleep(100 * time.Millisecond) {
				if _, err := p.Write(ping); err != nil {
					return
				}
			}
		})),
		{
			name: "slow-notify", does: "answers GetInfo, but never NotifyRegistrationStatus", bound: deadline,
			happens: "the registration is rolled back, and retried with growing pauses", named: event(noAnswer),
			play: afterGetInfo((*peer).untilClosed),
		},
		{
			name: "slow-accept", does: "listens, and accepts nothing, so that its backlog fills up", bound: deadline,
			happens: "the same as for slow-silence; connecting does not wait for a full backlog", named: event("failed: "),
			play: func(a *attacker) {
				listen(a.socket)
				select {}
			},
		},
		{
			name: "gigabyte", does: "announces a response of 1 GB, and starts sending it", bound: "60 KiB for a response; nothing is allocated for the announced length",
			happens: "the connection is closed as soon as the length is announced", named: event("the plugin's answer has 1073741824 bytes; at most 61440 are allowed"),
			play: asks(func(p *peer) {
				p.start()
				_ = p.WriteData(p.stream, false, []byte{0, 0x40, 0, 0, 0})
				p.endlessly(frame(http2.FrameData, 0, p.stream, make([]byte, 16<<10)))
			}),
		},
		{
			name: "compressed", does: "sends a compressed response, which may be a zip bomb", bound: "no compression is offered",
			happens: "it is not decompressed", named: event("the plugin's answer is compressed, which was not offered"),
			play: asks(func(p *peer) {
				p.start()
				p.answer([]byte("\x01\x00\x00\x00\x03\x1f\x8b\x08"))
				p.untilClosed()
			}),
		},
		flood("data-flood", "sends empty DATA frames endlessly", func(p *peer) []byte { return frame(http2.FrameData, 0, p.stream, nil) }, (*peer).start),
		flood("ping-flood", "sends PING frames endlessly", func(*peer) []byte { return frame(http2.FramePing, 0, 0, make([]byte, 8)) }, settings),
		flood("settings-flood", "sends SETTINGS frames endlessly", func(*peer) []byte { return frame(http2.FrameSettings, 0, 0, nil) }, settings),
		flood("reset-flood", "endlessly resets streams that nobody opened",
			func(p *peer) []byte { return frame(http2.FrameRSTStream, 0, p.stream+2, make([]byte, 4)) }, settings),
		flood("window-flood", "endlessly widens the window",
			func(p *peer) []byte { return frame(http2.FrameWindowUpdate, 0, p.stream+2, []byte{0, 0, 0, 1}) }, settings),
		flood("unknown-flood", "endlessly sends frames of unknown types", func(*peer) []byte { return frame(0xee, 0, 0, make([]byte, 100)) }, settings),
		flood("interim-flood", "sends interim headers endlessly",
			func(p *peer) []byte {
				return frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, p.stream, []byte("\x48\x03100"))
			}, settings),
		flood("continuation-flood", "sends empty CONTINUATION frames endlessly",
			func(p *peer) []byte { return frame(http2.FrameContinuation, 0, p.stream, nil) }, func(p *peer) {
				settings(p)
				_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: p.stream, BlockFragment: p.fields(":status", "200")})
			}),
		{
			name: "hpack-bomb", does: "refers 10,000 times to one long header", bound: headerLen,
			happens: "the connection is closed", named: event("the plugin sends more than 16384 bytes of headers"),
			play: asks(func(p *peer) {
				settings(p)
				block := bytes.Clone(p.fields(":status", "200", "x", long(3900)))
				_ = p.WriteHeaders(http2.HeadersFrameParam{
					StreamID: p.stream, EndHeaders: true, BlockFragment: append(block, bytes.Repeat([]byte{0x80 | 62}, 10_000)...),
				})
				p.untilClosed()
			}),
		},
		{
			name: "many-headers", does: "sends thousands of headers", bound: headerLen,
			happens: "the connection is closed", named: event("the plugin sends more than 16384 bytes of headers"),
			play: asks(func(p *peer) {
				settings(p)
				_ = p.WriteHeaders(http2.HeadersFrameParam{
					StreamID: p.stream, EndHeaders: true,
					BlockFragment: append(bytes.Clone(p.fields(":status", "200")), bytes.Repeat([]byte("\x00\x01a\x01b"), 2000)...),
				})
				p.untilClosed()
			}),
		},
		{
			name: "huge-frame", does: "sends a frame of 16 MB", bound: "16 KiB for a frame",
			happens: "the connection is closed at the frame's header", named: event("the plugin does not speak gRPC: http2: frame too large"),
			play: asks(func(p *peer) {
				settings(p)
				_, _ = io.WriteString(p.Conn, "\xff\xff\xff\x00\x00")
				p.endlessly([]byte{0})
			}),
		},
		{
			name: "goaway-loop", does: "ends each connection with GOAWAY", bound: "the back-off",
			happens: "registration is retried with growing pauses", named: event("GOAWAY, ENHANCE_YOUR_CALM"),
			play: asks(func(p *peer) {
				settings(p)
				_ = p.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte(strings.Repeat("calm", 1000)))
				p.untilClosed()
			}),
		},
		{
			name: "web-server", does: "speaks HTTP/1.1 and answers with a web page", bound: "the first frame",
			happens: "the connection is closed", named: event("the plugin does not speak gRPC"),
			play: peers(func(p *peer) {
				_, _ = io.WriteString(p.Conn, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<script>alert(1)</script>")
				p.untilClosed()
			}),
		},
		{
			name: "error-text", does: "fails with an error text of 12 KB with terminal escapes", bound: "1 KiB of a status message is kept",
			happens: "the text is truncated, and escaped wherever it is printed", named: event("\x1b[2J"[1:] + "xxx"),
			play: asks(func(p *peer) {
				settings(p)
				p.headers(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "13", "grpc-message", "%1B[2J"+long(12_000))
			}),
			check: func(s *scene) {
				for _, e := range s.events() {
					if len(e.Message) > 2<<10 {
						s.Errorf("an event has a text of %d bytes", len(e.Message))
					}
				}
				if out := s.patchbay("events"); strings.Contains(out, "\x1b") || !strings.Contains(out, `\x1b[2J`) {
					s.Errorf("the escape is printed: %q", out)
				}
			},
		},
		{
			name: "registers-and-floods", does: "registers, and then keeps sending on the connection that stays open", bound: "one descriptor for each plugin",
			happens: "the connection is closed, and the process is watched instead", named: event("registered: "),
			play: afterGetInfo(func(p *peer) {
				p.answer(prefixed(nil)) // an empty message
				p.endlessly(frame(http2.FramePing, 0, 0, make([]byte, 8)))
			}),
		},
	}
}
