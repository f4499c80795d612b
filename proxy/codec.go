package proxy

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// message is one message on its way: its bytes, in the buffers into which they were received. Who holds one frees it, unless it was sent.
type message struct{ data mem.BufferSlice }

func (m *message) free() {
	m.data.Free()
	m.data = nil
}

// codec hands messages on as they are. It is an encoding.CodecV2.
type codec struct{}

// Marshal gives the buffers of a message away.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("the proxy cannot send a %T", v)
	}
	data := m.data
	m.data = nil
	return data, nil
}

// Unmarshal keeps the buffers.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fmt.Errorf("the proxy cannot receive into a %T", v)
	}
	data.Ref()
	m.data = data
	return nil
}

// Name is empty, so that the content type of a call gets no other subtype than the one that the caller chose.
func (codec) Name() string { return "" }
