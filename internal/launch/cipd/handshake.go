package cipd

import (
	"encoding/json"
	"fmt"
	"io"
)

// TicketKey is the gRPC metadata that carries the ticket with each call.
const TicketKey = "x-plugin-ticket"

// handshake has no other fields: plugins refuse those that they do not know.
type handshake struct {
	Port   int    `json:"port"`
	Ticket string `json:"ticket"`
}

// WriteHandshake writes the line that a plugin reads from its standard input. The host listens on this TCP port of 127.0.0.1.
func WriteHandshake(w io.Writer, port int, ticket string) error {
	line, err := json.Marshal(handshake{port, ticket})
	if err != nil {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("cannot hand the plugin its ticket: %w", err)
	}
	return nil
}
