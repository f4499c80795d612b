package h2proxy

import (
	"context"
	"encoding/binary"
	"io"
	"slices"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// stream is one call on a connection of a client or server. The connection's mu guards its fields.
type stream struct {
	c  *conn
	id uint32
	// budget counts the data in memory for the user uid, the caller of the call, also on the client's side.
	uid    uint32
	budget *Budget

	readable, writable chan struct{} // signals: data or the end has arrived; sending may be possible

	// headers and trailers were received. A response without data has only trailers.
	headers, trailers []hpack.HeaderField
	gotHeaders        bool
	data              incoming
	recvEnded         bool
	// The peer may send recvWindow more bytes. It may have sent at most window bytes that were not read. For owed bytes, which were read, a
	// window update is still to be sent.
	recvWindow, window, owed int64
	metadata                 int // bytes that the budget counts for headers
	// declared is the caller's content-length, -1 without one, and received the number of bytes of data so far.
	declared, received int64

	sendWindow int64
	answered   bool // response headers or trailers were sent
	sentEnd    bool
	queued     bool // in c.blocked

	err  error // why the stream ended early
	gone bool
	// onEnd is called, with mu held, when the stream has ended early.
	onEnd func()
}

// newStream returns a stream that is not in c.streams yet; c.mu is held.
func newStream(c *conn, id uint32) *stream {
	return &stream{
		c: c, id: id, uid: c.uid, budget: c.budget, readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
		recvWindow: baseWindow, window: baseWindow, declared: -1, sendWindow: c.peerWindow, onEnd: func() {},
	}
}

// resetError is the error of a stream that either end has reset.
type resetError struct{ code http2.ErrCode }

func (e *resetError) Error() string { return "the stream was reset: " + e.code.String() }

// end ends a stream early: nothing is received or sent on it any more. A complete response stays readable. c.mu is held.
func (s *stream) end(err error) {
	if s.err != nil || s.gone {
		return
	}
	if s.c.client && s.recvEnded {
		s.sentEnd = true
		signal(s.writable)
		return
	}
	s.err = err
	s.data.drop()
	s.remove()
	signal(s.readable)
	signal(s.writable)
	s.onEnd()
}

// charge counts a stream as a canceled call, unless it was answered. It is called before the peer's action ends the stream; c.mu is held.
func (s *stream) charge() {
	if s.err == nil && !s.gone && !s.answered {
		s.c.canceled(1)
	}
}

// refuse resets a stream on which the peer has sent something wrong, and counts it as canceled; c.mu is held.
func (s *stream) refuse(code http2.ErrCode, err error) {
	s.charge()
	s.reset(code, err)
}

// reset ends a stream early and sends RST_STREAM; c.mu is held.
func (s *stream) reset(code http2.ErrCode, err error) {
	if s.err == nil && !s.gone {
		_ = s.c.framer.WriteRSTStream(s.id, code)
		s.c.flushAnswer()
	}
	s.end(err)
}

// remove removes an ended stream from the connection; c.mu is held.
func (s *stream) remove() {
	if s.gone {
		return
	}
	s.gone = true
	delete(s.c.streams, s.id)
	s.unqueue()
	s.c.passRoom()
	s.budget.give(s.uid, int(s.window-baseWindow))
	s.window = baseWindow
	s.c.changed()
}

// close releases a stream, and resets it if it has not ended.
func (s *stream) close(code http2.ErrCode) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if !s.recvEnded || !s.sentEnd {
		s.reset(code, &resetError{code})
	}
	s.remove()
	if len(s.data.chunks) > 0 && s.err == nil {
		s.err = &resetError{code} // unread data is discarded
	}
	s.data.drop()
	s.budget.give(s.uid, s.metadata) // not before: the call has used the headers
	s.metadata = 0
}

func (s *stream) onHeaders(f *http2.MetaHeadersFrame) {
	if status := f.PseudoValue("status"); !f.StreamEnded() && len(status) == 3 && status[0] == '1' {
		return // an informational response
	}
	size := sizeOf(f.Fields)
	announced := true
	if !s.c.client && !s.gotHeaders {
		s.declared, announced = declaredLength(f.Fields)
	}
	switch {
	case s.recvEnded && s.gotHeaders, s.gotHeaders && !f.StreamEnded(), // only trailers may follow headers, and nothing the end
		!announced, s.isContradictory(f.StreamEnded()):
		s.refuse(http2.ErrCodeProtocol, &resetError{http2.ErrCodeProtocol})
		return
	case f.Truncated:
		s.refuse(http2.ErrCodeCancel, errTooLarge)
		return
	case size > freeMetadata && !s.budget.take(s.uid, size):
		s.refuse(http2.ErrCodeEnhanceYourCalm, errNoRoom)
		return
	case size > freeMetadata:
		s.metadata += size
	}
	if f.StreamEnded() {
		s.trailers = f.Fields
		s.ended()
	} else {
		s.headers = f.Fields
	}
	s.gotHeaders = true
	signal(s.readable)
}

// ended is called when the peer has half-closed the stream. It returns the unused part of the window to the budget; c.mu is held.
func (s *stream) ended() {
	s.recvEnded = true
	s.shrink(s.recvWindow + s.owed)
}

// shrink reduces the window by at most unneeded bytes, not below baseWindow, and returns by how many; c.mu is held.
func (s *stream) shrink(unneeded int64) (less int64) {
	less = max(0, min(unneeded, s.window-baseWindow))
	s.window -= less
	s.budget.give(s.uid, int(less))
	return less
}

func (s *stream) onData(f *http2.DataFrame) error {
	s.recvWindow -= int64(f.Length)
	if s.recvWindow < 0 || s.recvEnded || s.c.client && !s.gotHeaders {
		code := http2.ErrCodeFlowControl
		if s.recvWindow >= 0 {
			code = http2.ErrCodeProtocol
		}
		s.refuse(code, &resetError{code})
		return nil
	}
	data := f.Data()
	if s.received += int64(len(data)); s.isContradictory(f.StreamEnded()) {
		s.refuse(http2.ErrCodeProtocol, &resetError{http2.ErrCodeProtocol})
		return nil
	}
	s.data.add(data)
	s.giveBack(int64(f.Length) - int64(len(data)))
	if f.StreamEnded() {
		s.ended()
	}
	signal(s.readable)
	return nil
}

// giveBack returns the window of read bytes to the peer: more while the budget has room, so that the window grows, and less if the budget
// is tight. c.mu is held.
func (s *stream) giveBack(read int64) {
	if s.gone {
		return
	}
	if s.recvEnded {
		s.shrink(read)
		return
	}
	s.owed += read
	if s.window > baseWindow && s.budget.isTight(s.uid) {
		s.owed -= s.shrink(s.owed)
	}
	if s.owed < s.window/2 {
		return
	}
	if more := min(s.window, maxWindow-s.window); more > 0 && s.budget.take(s.uid, int(more)) {
		s.window += more
		s.owed += more
	}
	_ = s.c.framer.WriteWindowUpdate(s.id, uint32(s.owed))
	s.recvWindow += s.owed
	s.owed = 0
	s.c.flushUpdate()
}

// next waits for data and returns it, and whether it is the last; io.EOF at the end. It releases before, which it returned last.
func (s *stream) next(ctx context.Context, before []byte) (data []byte, last bool, err error) {
	for {
		s.c.mu.Lock()
		if before != nil {
			s.giveBack(int64(len(before)))
			giveBuffer(before)
			before = nil
		}
		data, last = s.data.take(), s.recvEnded && len(s.data.chunks) == 0
		if len(data) == 0 {
			if err = s.err; err == nil && last {
				err = io.EOF
			}
		}
		s.c.mu.Unlock()
		if len(data) > 0 || err != nil {
			return data, last, err
		}
		select {
		case <-s.readable:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// send sends data, and half-closes the stream if end is set. It blocks until the window of the peer and the queue of the connection have
// had room for all of it.
func (s *stream) send(ctx context.Context, data []byte, end bool) error {
	for {
		rest, err := s.sendSome(data, end)
		if err != nil || rest == nil {
			return err
		}
		data = rest
		if err := s.await(ctx); err != nil {
			return err
		}
	}
}

// sendSome sends what can be sent without waiting and returns the rest; nil if nothing is left. If the connection has no room, the stream
// is queued for it.
func (s *stream) sendSome(data []byte, end bool) (rest []byte, err error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.passRoom()
	s.unqueue()
	for {
		if err := s.unsendable(); err != nil {
			return nil, err
		}
		n := max(0, int(min(int64(len(data)), s.sendWindow, int64(c.peerFrame)))) // a window may be negative
		if n > 0 {
			n = min(n, int(c.sendWindow))
			if n <= 0 || !c.makeRoom() {
				s.queue()
				return data, nil
			}
		} else if len(data) > 0 {
			return data, nil
		}
		last := n == len(data)
		if n > 0 || end {
			c.writeData(s.id, data[:n], last && end)
		}
		s.sendWindow -= int64(n)
		c.sendWindow -= int64(n)
		if data = data[n:]; last {
			s.sentEnd = end
			return nil, nil
		}
	}
}

// unsendable returns an error if nothing can be sent any more; c.mu is held.
func (s *stream) unsendable() error {
	switch {
	case s.err != nil:
		return s.err
	case s.gone || s.sentEnd:
		return &resetError{http2.ErrCodeStreamClosed}
	}
	return nil
}

func (s *stream) queue() {
	if !s.queued {
		s.queued = true
		s.c.blocked = append(s.c.blocked, s)
	}
}

// unqueue removes a stream from the queue for room on the connection; c.mu is held.
func (s *stream) unqueue() {
	if i := slices.Index(s.c.blocked, s); s.queued && i >= 0 {
		s.c.blocked = slices.Delete(s.c.blocked, i, i+1)
	}
	s.queued = false
}

// writeData queues a DATA frame. It does not use the framer, which would copy the data again. mu is held.
func (c *conn) writeData(id uint32, data []byte, end bool) {
	var flags byte
	if end {
		flags = byte(http2.FlagDataEndStream)
	}
	n := len(data)
	header := binary.BigEndian.AppendUint32(make([]byte, 0, 9), uint32(n)<<8|uint32(http2.FrameData))
	header = binary.BigEndian.AppendUint32(append(header, flags), id)
	_, _ = c.out.Write(header)
	_, _ = c.out.Write(data)
	c.flush()
}

// await blocks until sending may be possible. It returns an error if the stream or ctx has ended.
func (s *stream) await(ctx context.Context) error {
	var err error
	select {
	case <-s.writable:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if err == nil {
		err = s.err
	}
	if err != nil {
		s.c.passRoom() // this stream may have been woken for room that it does not use
	}
	return err
}

// sendFields sends headers or, with end, trailers. It blocks until the connection has room. Large fields fail with errNoRoom if the budget
// is exhausted.
func (s *stream) sendFields(ctx context.Context, fields []hpack.HeaderField, end bool) error {
	for {
		if sent, err := s.trySendFields(fields, end); err != nil || sent {
			return err
		}
		if err := s.await(ctx); err != nil {
			return err
		}
	}
}

func (s *stream) trySendFields(fields []hpack.HeaderField, end bool) (sent bool, err error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	defer s.c.passRoom()
	s.unqueue()
	if err := s.unsendable(); err != nil {
		return false, err
	}
	if !s.c.makeRoom() {
		s.queue()
		return false, nil
	}
	if size := sizeOf(fields); size > freeMetadata && !s.c.borrow(s.budget, s.uid, size) {
		return false, errNoRoom
	}
	s.answered, s.sentEnd = true, end
	s.c.writeFields(s.id, fields, end)
	return true, nil
}

// writeFields queues headers; mu is held.
func (c *conn) writeFields(id uint32, fields []hpack.HeaderField, end bool) {
	for _, f := range fields {
		_ = c.encoder.WriteField(f)
	}
	block := c.fields.data
	c.fields.data = nil
	defer giveBuffer(block)
	first := block[:min(len(block), int(c.peerFrame))]
	block = block[len(first):]
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: len(block) == 0})
	for len(block) > 0 {
		next := block[:min(len(block), int(c.peerFrame))]
		block = block[len(next):]
		_ = c.framer.WriteContinuation(id, len(block) == 0, next)
	}
	c.flush()
}
