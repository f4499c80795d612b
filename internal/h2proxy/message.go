package h2proxy

import (
	"encoding/binary"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// prefixLen is the size of the prefix of each message: a compression flag and the length.
const prefixLen = 5

// ReadMessage reads the only message of a call that is not forwarded. It must be uncompressed and have at most limit bytes. The error is
// the status for the caller.
func ReadMessage(caller grpc.ServerStream, limit int) ([]byte, error) {
	var message []byte
	for {
		if len(message) >= prefixLen {
			length := int(binary.BigEndian.Uint32(message[1:prefixLen]))
			switch {
			case message[0] != 0:
				return nil, status.Error(codes.Unimplemented, "the message is compressed, which is not understood here")
			case length > limit:
				return nil, status.Errorf(codes.ResourceExhausted, "the message has %d bytes; %d are allowed", length, limit)
			case len(message) == prefixLen+length:
				return message[prefixLen:], nil
			case len(message) > prefixLen+length:
				return nil, status.Error(codes.InvalidArgument, "there is more than one message")
			}
		}
		var part Fragment
		if err := caller.RecvMsg(&part); err != nil {
			if errors.Is(err, io.EOF) {
				err = status.Error(codes.InvalidArgument, "the message is not complete")
			}
			return nil, err
		}
		message = append(message, part.data...)
	}
}

// WriteMessage sends a message in a call that is not forwarded.
func WriteMessage(caller grpc.ServerStream, message []byte) error {
	data := binary.BigEndian.AppendUint32(make([]byte, 1, prefixLen+len(message)), uint32(len(message)))
	return caller.SendMsg(&Fragment{data: append(data, message...)})
}
