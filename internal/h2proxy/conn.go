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

// conn is a connection, of either side. What it has to write is collected and written by a goroutine of its own, so that many frames are
// one write and nobody but that goroutine waits for a peer that does not read.
type conn struct {
	net.Conn

	budget *Budget
	uid    uint32 // to whom what waits to be written counts
	client bool
	// callers are those of the streams, if the other end is one of the same program; else nil.
	callers *callers
	// opened takes a stream that the peer opens; nil on a client's side. It is called by the goroutine that reads.
	opened func(f *http2.MetaHeadersFrame, s *stream)
	// timeout bounds the time that headers of more than one frame take to come, and that the last frames take to be written.
	timeout time.Duration
	// changed is told, with mu held, when a stream is gone and when the connection takes no new ones.
	changed func()

	born  time.Time
	heard atomic.Int64 // how long after born the last frame came

	reader *bufio.Reader
	framer *http2.Framer // what it writes goes to out, with mu held
	wake   chan struct{} // there is something in out
	taken  chan struct{} // out was taken to be written
	// settled is closed when the peer has said what it takes, ended when the connection has ended.
	settled, ended chan struct{}

	mu      sync.Mutex
	out     outgoing
	writing int  // how much of it is being written
	deep    bool // both together may be deepOut, which counts to uid
	// lent is what budgets have lent for metadata that are in out, lentWriting for those that are being written.
	lent, lentWriting []loan
	// answers and updates are how many of each are in out, see maxAnswers and maxUpdates.
	answers, updates int
	encoder          *hpack.Encoder
	fields           outgoing // of the headers that are being encoded
	streams          map[uint32]*stream
	nextID           uint32 // of a stream that a client opens
	lastID           uint32 // of the streams that the peer opened
	blocked          []*stream
	slots            chan struct{} // of a client: closed when there may be room for another stream
	// What the peer takes.
	sendWindow, peerWindow             int64
	peerFrame, peerStreams, peerFields uint32
	// recvWindow is what the peer may send yet, owed what is to be given back to it; acked says that it knows of baseWindow.
	recvWindow, owed int64
	acked            bool
	asked            *time.Timer // the peer was told to open no more streams, and has so long to take notice
	goingAway        bool        // there will be no new streams
	// cancels are the calls that were canceled, because of which nothing is read before resume.
	cancels cancels
	resume  time.Time
	closing bool // once all is written
	err     error
}

// newConn returns a connection to which its settings are to be written. The caller runs read and write.
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
	c.framer.MaxHeaderListSize = MaxMetadata + MaxMetadata/8 // for what HTTP/2 and gRPC add
	c.encoder = hpack.NewEncoder(&c.fields)
	return c
}

// start writes the settings.
func (c *conn) start(more ...http2.Setting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.framer.WriteSettings(append(more, http2.Setting{ID: http2.SettingInitialWindowSize, Val: baseWindow})...)
	c.flush()
}

// fail ends the connection and all streams on it.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
		close(c.ended)
		if c.asked != nil {
			c.asked.Stop()
		}
		if !errors.Is(err, errClosed) {
			c.canceled(c.unanswered())
		}
		for _, s := range c.streams {
			s.end(&lostError{err})
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

// lostError ends the streams of a connection that has ended.
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

// awaitAnswers waits while the peer does not read what it has caused, or has canceled too many calls.
func (c *conn) awaitAnswers() {
	for {
		c.mu.Lock()
		answers, resume := c.answers, c.resume
		c.resume = time.Time{}
		c.mu.Unlock()
		if !resume.IsZero() {
			c.pause(time.Until(resume))
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

// refuse handles a frame with which something is wrong that is a matter of its stream.
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
		return nil // of a stream that has ended
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
	if c.err != nil { // a call that began now would not know
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
			c.lastCall()
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
		c.introduce()
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
		c.introduce()
	}
	_ = c.framer.WriteSettingsAck()
	c.changed()
	c.flushAnswer()
	return nil
}

// introduce lets a peer that has said what it takes, and knows what this end takes, be silent; mu is held.
func (c *conn) introduce() {
	if isClosed(c.settled) && c.acked {
		_ = c.SetReadDeadline(time.Time{})
	}
}

func (c *conn) onSetting(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID { //nolint:exhaustive // the others are no matter of this end
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
		return nil // of a stream that has ended
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
	if by, known := c.callers.take(s.id); known {
		s.budget, s.uid = by.budget, by.uid
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

// giveWindow gives the peer back the window of the connection; mu is held.
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

// onGoAway ends the streams that the peer has not begun to handle.
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

// watch ends the connection when nothing comes for a time of silence, nor an answer to the question whether the other end is there.
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
		case asked == heard: // and nothing since
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

// drain has the connection end when its streams have. The peer is told first, so that what it has sent meanwhile is taken too.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked != nil || c.err != nil {
		return
	}
	c.asked = time.AfterFunc(c.timeout, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lastCall()
	})
	_ = c.framer.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
	_ = c.framer.WritePing(false, [8]byte{'g', 'o', 'a', 'w', 'a', 'y'})
	c.flush()
}

// lastCall takes no more streams, after the peer has read that it should open none; mu is held.
func (c *conn) lastCall() {
	if c.asked != nil && !c.goingAway {
		c.goingAway = true
		_ = c.framer.WriteGoAway(c.lastID, http2.ErrCodeNo, nil)
		c.flush()
		c.changed()
	}
}

// closeUnused ends the connection when all is written, if it has no streams and will have none; mu is held. A peer that does not read has
// until the timeout.
func (c *conn) closeUnused() {
	if c.goingAway && len(c.streams) == 0 && !c.closing {
		c.closing = true
		_ = c.SetWriteDeadline(time.Now().Add(c.timeout))
		c.flush()
	}
}
