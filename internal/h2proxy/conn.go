package h2proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conn is a connection of a client or server. Frames to send are queued, and one goroutine writes them, so that many frames need one write,
// and only that goroutine blocks on a peer that does not read.
type conn struct {
	net.Conn

	budget *Budget
	uid    uint32 // the user for whom the budget counts queued data
	client bool
	// callers are the accounts of the streams of a Pipe; nil for other connections.
	callers *callers
	// opened is called by read, with mu held, when the peer opens a stream; nil for a client.
	opened func(f *http2.MetaHeadersFrame, s *stream)
	// timeout bounds how long headers of several frames may take to arrive, and how long the last write may take.
	timeout time.Duration
	// changed is called, with mu held, when a stream was removed, new settings arrived, or the connection accepts no more streams.
	changed func()

	born  time.Time
	heard atomic.Int64 // when the last frame arrived, in nanoseconds after born

	reader *bufio.Reader
	framer *http2.Framer // writes to out, with mu held
	wake   chan struct{} // signals that out is not empty
	taken  chan struct{} // signals that out was taken to be written
	// settled is closed when the peer's settings have arrived, ended when the connection has ended.
	settled, ended chan struct{}

	mu      sync.Mutex
	out     outgoing
	writing int  // the number of bytes that are being written
	deep    bool // the limit of queued bytes is deepOut, which the budget counts
	// lent has the loans for metadata in out, lentWriting for metadata that is being written.
	lent, lentWriting []loan
	// answers and updates are the numbers of such frames in out, see maxAnswers and maxUpdates.
	answers, updates int
	encoder          *hpack.Encoder
	fields           outgoing // the output of encoder
	streams          map[uint32]*stream
	nextID           uint32        // of the next stream that a client opens
	lastID           uint32        // of the last stream that the peer opened
	blocked          []*stream     // in the order in which they get room
	slots            chan struct{} // of a client: closed when another stream may be allowed
	// The window of the connection, and the settings of the peer.
	sendWindow, peerWindow             int64
	peerFrame, peerStreams, peerFields uint32
	// The peer may send recvWindow more bytes; a window update for owed bytes is still to be sent. acked: it has acknowledged the settings.
	recvWindow, owed int64
	acked            bool
	draining         *time.Timer // set after the first GOAWAY; calls refuseStreams
	goingAway        bool        // no more streams are opened
	// cancels counts canceled calls; because of them, nothing is read before resume.
	cancels cancels
	resume  time.Time
	closing bool // the connection is closed when everything is written
	err     error
}

// newConn returns a connection. The caller calls start, and then read and write, each in a goroutine.
func newConn(nc net.Conn, budget *Budget, uid uint32, readBuffer int) *conn {
	c := &conn{
		Conn: nc, budget: budget, uid: uid, wake: make(chan struct{}, 1), taken: make(chan struct{}, 1),
		settled: make(chan struct{}), ended: make(chan struct{}),
		streams: map[uint32]*stream{}, sendWindow: protocolWindow, peerWindow: protocolWindow, peerFrame: maxFrame, peerStreams: 1<<32 - 1,
		peerFields: 1<<32 - 1,
		recvWindow: protocolWindow, nextID: 1, changed: func() {}, born: time.Now(),
	}
	if p, ok := nc.(*pipeEnd); ok {
		c.callers = p.callers
	}
	c.reader = bufio.NewReaderSize(nc, readBuffer)
	c.framer = http2.NewFramer(&c.out, c.reader)
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(maxFrame)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.MaxHeaderListSize = MaxMetadata + MaxMetadata/8 // for the fields that HTTP/2 and gRPC add
	c.encoder = hpack.NewEncoder(&c.fields)
	return c
}

// start queues the settings.
func (c *conn) start(more ...http2.Setting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.framer.WriteSettings(append(more, http2.Setting{ID: http2.SettingInitialWindowSize, Val: baseWindow})...)
	c.flush()
}

// fail ends the connection and all its streams. Only the first call has an effect.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
		close(c.ended)
		if c.draining != nil {
			c.draining.Stop()
		}
		unanswered := 0
		for _, s := range c.streams {
			if !s.answered {
				unanswered++
			}
			s.end(&lostError{err})
		}
		if !errors.Is(err, errClosed) {
			c.canceled(unanswered)
		}
		for _, s := range c.blocked {
			signal(s.writable)
		}
		c.out.data = nil
		c.shallow()
		c.repay(c.lent)
		c.repay(c.lentWriting)
		c.lent, c.lentWriting = nil, nil
		c.changed()
	}
	c.mu.Unlock()
	_ = c.Close()
}

// lostError is the error of streams whose connection has ended.
type lostError struct{ err error }

func (e *lostError) Error() string {
	if errors.Is(e.err, io.EOF) {
		return "the other end closed the connection"
	}
	return e.err.Error()
}

// read handles frames until the connection ends.
func (c *conn) read() {
	for {
		f, err := c.readFrame()
		c.heard.Store(int64(time.Since(c.born)))
		if broken, ok := errors.AsType[http2.StreamError](err); ok {
			err = c.refuse(broken)
		} else if err == nil {
			err = c.handle(f)
		}
		if err != nil {
			if _, ok := errors.AsType[http2.ConnectionError](err); ok {
				err = fmt.Errorf("the other end does not speak HTTP/2 as it should: %w", err)
			}
			c.fail(err)
			return
		}
		c.awaitAnswers()
	}
}

// awaitAnswers blocks while too many answers to frames of the peer are queued, or if the peer has canceled too many calls.
func (c *conn) awaitAnswers() {
	for {
		c.mu.Lock()
		answers, resume := c.answers, c.resume
		c.resume = time.Time{}
		c.mu.Unlock()
		if !resume.IsZero() {
			sleep(time.Until(resume), c.ended)
		}
		if answers < maxAnswers {
			return
		}
		select {
		case <-c.taken:
		case <-c.ended:
			return
		}
	}
}

// refuse handles a frame that is an error of its stream, not of the connection.
func (c *conn) refuse(broken http2.StreamError) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if s := c.streams[broken.StreamID]; s != nil {
		why := broken.Cause
		if !errors.Is(why, errNoRoom) {
			why = &resetError{broken.Code}
		}
		s.refuse(broken.Code, why)
		return nil
	}
	if c.client && broken.StreamID < c.nextID {
		return nil // the stream has ended
	}
	if c.client || broken.StreamID%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.lastID = max(c.lastID, broken.StreamID)
	_ = c.framer.WriteRSTStream(broken.StreamID, broken.Code)
	c.flushAnswer()
	return nil
}

func (c *conn) handle(f http2.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil { // a new stream would not be notified
		return c.err
	}
	if f, ok := f.(*http2.SettingsFrame); ok {
		return c.onSettings(f)
	}
	if !isClosed(c.settled) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		return c.onHeaders(f)
	case *http2.DataFrame:
		return c.onData(f)
	case *http2.RSTStreamFrame:
		if s := c.streams[f.StreamID]; s != nil {
			s.charge()
			s.end(&resetError{f.ErrCode})
		}
	case *http2.PingFrame:
		if f.IsAck() {
			c.refuseStreams()
			return nil
		}
		_ = c.framer.WritePing(true, f.Data)
		c.flushAnswer()
	case *http2.GoAwayFrame:
		c.onGoAway(f)
	case *http2.WindowUpdateFrame:
		return c.onWindow(f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

func (c *conn) onSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		if !c.client && !c.acked {
			for _, s := range c.streams {
				s.recvWindow += baseWindow - protocolWindow
			}
			c.owed += connWindow - protocolWindow
			c.giveWindow()
		}
		c.acked = true
		c.clearDeadline()
		return nil
	}
	before := c.peerWindow
	if err := f.ForeachSetting(c.onSetting); err != nil {
		return err
	}
	if more := c.peerWindow - before; more != 0 {
		for _, s := range c.streams {
			if s.sendWindow += more; s.sendWindow > 1<<31-1 {
				return http2.ConnectionError(http2.ErrCodeFlowControl)
			}
			signal(s.writable)
		}
	}
	if !isClosed(c.settled) {
		close(c.settled)
		c.clearDeadline()
	}
	_ = c.framer.WriteSettingsAck()
	c.changed()
	c.flushAnswer()
	return nil
}

// clearDeadline removes the read deadline if the settings of both ends are known; mu is held.
func (c *conn) clearDeadline() {
	if isClosed(c.settled) && c.acked {
		_ = c.SetReadDeadline(time.Time{})
	}
}

func (c *conn) onSetting(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID { //nolint:exhaustive // the others do not concern this end
	case http2.SettingInitialWindowSize:
		c.peerWindow = int64(s.Val)
	case http2.SettingMaxFrameSize:
		c.peerFrame = min(s.Val, maxFrame)
	case http2.SettingMaxConcurrentStreams:
		c.peerStreams = s.Val
	case http2.SettingMaxHeaderListSize:
		c.peerFields = s.Val
	case http2.SettingHeaderTableSize:
		c.encoder.SetMaxDynamicTableSizeLimit(min(s.Val, 4096))
	}
	return nil
}

func (c *conn) onHeaders(f *http2.MetaHeadersFrame) error {
	if s := c.streams[f.StreamID]; s != nil {
		s.onHeaders(f)
		return nil
	}
	switch {
	case c.client && f.StreamID < c.nextID, !c.client && f.StreamID <= c.lastID:
		return nil // the stream has ended
	case c.client || f.StreamID%2 == 0:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.lastID = f.StreamID
	if c.goingAway {
		_ = c.framer.WriteRSTStream(f.StreamID, http2.ErrCodeRefusedStream)
		c.flushAnswer()
		return nil
	}
	s := newStream(c, f.StreamID)
	if !c.acked {
		s.recvWindow = protocolWindow
	}
	if a, ok := c.callers.take(s.id); ok {
		s.budget, s.uid = a.budget, a.uid
	}
	s.recvEnded = f.StreamEnded()
	c.streams[s.id] = s
	c.opened(f, s)
	return nil
}

func (c *conn) onData(f *http2.DataFrame) error {
	size := int64(f.Length)
	if c.recvWindow -= size; c.recvWindow < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	if c.owed += size; c.owed > connWindow/4 {
		c.giveWindow()
	}
	s := c.streams[f.StreamID]
	if s != nil {
		return s.onData(f)
	}
	if c.client && f.StreamID >= c.nextID || !c.client && f.StreamID > c.lastID {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// giveWindow sends a window update for the connection; mu is held.
func (c *conn) giveWindow() {
	_ = c.framer.WriteWindowUpdate(0, uint32(c.owed))
	c.recvWindow += c.owed
	c.owed = 0
	c.flushUpdate()
}

func (c *conn) onWindow(f *http2.WindowUpdateFrame) error {
	if f.StreamID == 0 {
		if c.sendWindow += int64(f.Increment); c.sendWindow > 1<<31-1 {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.passRoom()
		return nil
	}
	if s := c.streams[f.StreamID]; s != nil {
		if s.sendWindow += int64(f.Increment); s.sendWindow > 1<<31-1 {
			s.refuse(http2.ErrCodeFlowControl, &resetError{http2.ErrCodeFlowControl})
			return nil
		}
		signal(s.writable)
	}
	return nil
}

// onGoAway ends the streams that the peer does not handle.
func (c *conn) onGoAway(f *http2.GoAwayFrame) {
	c.goingAway = true
	if c.client {
		for id, s := range c.streams {
			if id > f.LastStreamID {
				s.end(&resetError{http2.ErrCodeRefusedStream})
			}
		}
	}
	c.changed()
}

// watch pings the peer after a time of silence, and ends the connection if nothing arrives within the time for an answer.
func (c *conn) watch(silence, answer time.Duration) {
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for asked := time.Duration(-1); ; {
		select {
		case <-timer.C:
		case <-c.ended:
			return
		}
		switch heard := time.Duration(c.heard.Load()); {
		case time.Since(c.born)-heard < silence:
			asked = -1
			timer.Reset(silence - (time.Since(c.born) - heard))
		case asked == heard: // nothing has arrived since the ping
			c.fail(fmt.Errorf("the other end has sent nothing for %v and does not answer", silence+answer))
			return
		default:
			asked = heard
			c.mu.Lock()
			_ = c.framer.WritePing(false, [8]byte{'s', 'i', 'l', 'e', 'n', 'c', 'e'})
			c.flush()
			c.mu.Unlock()
			timer.Reset(answer)
		}
	}
}

// drain closes the connection after its streams have ended. Streams are accepted until the peer has acknowledged the GOAWAY, or until the
// timeout, because it may have sent some already.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining != nil || c.err != nil {
		return
	}
	c.draining = time.AfterFunc(c.timeout, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refuseStreams()
	})
	_ = c.framer.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
	_ = c.framer.WritePing(false, [8]byte{'g', 'o', 'a', 'w', 'a', 'y'})
	c.flush()
}

// refuseStreams accepts no more streams on a draining connection; mu is held.
func (c *conn) refuseStreams() {
	if c.draining != nil && !c.goingAway {
		c.goingAway = true
		_ = c.framer.WriteGoAway(c.lastID, http2.ErrCodeNo, nil)
		c.flush()
		c.changed()
	}
}

// closeUnused closes the connection after everything is written, or after the timeout, if it has no streams and accepts none; mu is held.
func (c *conn) closeUnused() {
	if c.goingAway && len(c.streams) == 0 && !c.closing {
		c.closing = true
		_ = c.SetWriteDeadline(time.Now().Add(c.timeout))
		c.flush()
	}
}
