package h2proxy

import (
	"errors"
	"time"

	"golang.org/x/net/http2"
)

// readFrame reads a frame. The framer collects headers that come in several, which count meanwhile and have to come whole in time.
func (c *conn) readFrame() (http2.Frame, error) {
	const header, flags = 9, 4 // the size of what precedes every frame, and where in it the flags are
	head, err := c.reader.Peek(header)
	if err != nil {
		return nil, err
	}
	if http2.FrameType(head[flags-1]) == http2.FrameHeaders && !http2.Flags(head[flags]).Has(http2.FlagHeadersEndHeaders) {
		if c.introduced() {
			_ = c.SetReadDeadline(time.Now().Add(c.timeout))
			defer func() { _ = c.SetReadDeadline(time.Time{}) }()
		}
		switch {
		case c.budget.take(c.uid, MaxMetadata):
			defer c.budget.give(c.uid, MaxMetadata)
		case c.client: // the connection has the calls of many
			return nil, c.skipHeaders()
		default:
			return nil, errNoRoom
		}
	}
	return c.framer.ReadFrame()
}

// skipHeaders reads headers that come in several frames and keeps of them only what those of other streams refer to. The error is that of
// their stream. A field of which it would have to keep more than a frame ends the connection.
func (c *conn) skipHeaders() error {
	decoder := c.framer.ReadMetaHeaders
	c.framer.ReadMetaHeaders = nil // or the framer would collect them
	defer func() { c.framer.ReadMetaHeaders = decoder }()
	decoder.SetEmitEnabled(false)
	decoder.SetMaxStringLength(maxFrame)
	for left := int(c.framer.MaxHeaderListSize); ; {
		f, err := c.framer.ReadFrame()
		if _, ok := errors.AsType[http2.StreamError](err); ok {
			return http2.ConnectionError(http2.ErrCodeProtocol) // the headers were not decoded
		}
		part, ok := f.(interface {
			HeaderBlockFragment() []byte
			HeadersEnded() bool
		})
		if err != nil || !ok {
			return errors.Join(err, errNoRoom) // the framer lets no other frame come in between
		}
		if left -= len(part.HeaderBlockFragment()); left < 0 {
			return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
		}
		_, err = decoder.Write(part.HeaderBlockFragment())
		if err == nil && part.HeadersEnded() {
			err = decoder.Close()
		}
		if err != nil {
			return http2.ConnectionError(http2.ErrCodeCompression)
		}
		if part.HeadersEnded() {
			return http2.StreamError{StreamID: f.Header().StreamID, Code: http2.ErrCodeEnhanceYourCalm, Cause: errNoRoom}
		}
	}
}

// introduced says whether both ends know what the other one takes. Until then it has a deadline anyway.
func (c *conn) introduced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return isClosed(c.settled) && c.acked
}
