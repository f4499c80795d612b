package h2proxy

import "sync"

// Buffers of three sizes are pooled: for received data, and for connections with little and with much to write. The garbage collector frees
// buffers of other sizes.
const chunkSize, outSize, deepSize = baseWindow, 2*baseOut + maxFrame, deepOut + 2*maxFrame

var chunks, outs, deeps = pool(chunkSize), pool(outSize), pool(deepSize)

func pool(size int) *sync.Pool {
	return &sync.Pool{New: func() any { b := make([]byte, 0, size); return &b }}
}

func takeFrom(p *sync.Pool) []byte { return (*p.Get().(*[]byte))[:0] } //nolint:forcetypeassert,errcheck // nothing else is put there

func giveBuffer(b []byte) {
	switch cap(b) {
	case chunkSize:
		chunks.Put(&b)
	case outSize:
		outs.Put(&b)
	case deepSize:
		deeps.Put(&b)
	}
}

// outgoing is a buffer of data to be written.
type outgoing struct{ data []byte }

// Write implements [io.Writer]. It never fails.
func (o *outgoing) Write(b []byte) (int, error) {
	switch n := len(o.data) + len(b); {
	case o.data == nil:
		o.data = takeFrom(outs)
	case n > cap(o.data) && n <= deepSize:
		before := o.data
		o.data = append(takeFrom(deeps), before...)
		giveBuffer(before)
	}
	o.data = append(o.data, b...)
	return len(b), nil
}

// incoming is a queue of received data in chunks.
type incoming struct{ chunks [][]byte }

func (i *incoming) add(b []byte) {
	for len(b) > 0 {
		last := len(i.chunks) - 1
		if last < 0 || len(i.chunks[last]) == cap(i.chunks[last]) {
			i.chunks = append(i.chunks, takeFrom(chunks))
			last++
		}
		c := i.chunks[last]
		n := min(len(b), cap(c)-len(c))
		i.chunks[last] = append(c, b[:n]...)
		b = b[n:]
	}
}

// take removes and returns the first chunk; nil if there is none. The caller releases it with giveBuffer.
func (i *incoming) take() []byte {
	if len(i.chunks) == 0 {
		return nil
	}
	c := i.chunks[0]
	i.chunks[0] = nil
	i.chunks = i.chunks[1:]
	return c
}

func (i *incoming) drop() {
	for c := i.take(); c != nil; c = i.take() {
		giveBuffer(c)
	}
}
