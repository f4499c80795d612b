package h2proxy

import (
	"errors"
	"time"

	"golang.org/x/net/http2"
)

// readFrame reads a frame. The framer joins headers of several frames; they must arrive within the timeout, and the budget counts them as
// MaxMetadata while they do.
func (c *conn) readFrame() (http2.Frame, error) {
	const header, flags = 9, 4 // the size of a frame header, and the offset of the flags
	head, err := c.reader.Peek(header)
	if err != nil {
		return nil, err
	}
	if http2.FrameType(head[flags-1]) == http2.FrameHeaders && !http2.Flags(head[flags]).Has(http2.FlagHeadersEndHeaders) {
		if c.isEstablished() {
			_ = c.SetReadDeadline(time.Now().Add(c.timeout))
			defer func() { _ = c.SetReadDeadline(time.Time{}) }()
		}
		switch {
		case c.budget.take(c.uid, MaxMetadata):
			defer c.budget.give(c.uid, MaxMetadata)
		case c.client: // refuses only this call, because other users have calls on the connection
			return nil, c.skipHeaders()
		default:
			return nil, errNoRoom
		}
	}
	return c.framer.ReadFrame()
}

// skipHeaders reads headers of several frames without keeping them, except in the dynamic table, which later headers use. It returns the
// error of their stream, or an error of the connection, for example if a field is larger than a frame.
func (c *conn) skipHeaders() error {
	decoder := c.framer.ReadMetaHeaders
	c.framer.ReadMetaHeaders = nil // otherwise the framer joins them
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
			return errors.Join(err, errNoRoom) // the framer has checked that no other frame comes between them
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

// isEstablished reports whether both ends have sent and acknowledged settings. Before that, the connection has a read deadline anyway.
func (c *conn) isEstablished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return isClosed(c.settled) && c.acked
}
