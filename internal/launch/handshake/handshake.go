// Package handshake writes and reads the line with which a host gives a launched plugin the host's address and the plugin's identity. The
// line is written to the plugin's standard input, which then stays open; closing it asks the plugin to stop. The package does not know the
// protocol that follows, which is in api/patchbay/plugin/v1.
package handshake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	// Version is the version of the handshake that this package writes and reads.
	Version = 1
	// Env is an environment variable of the plugin. It is set if a handshake is on standard input.
	Env = "PATCHBAY_HANDSHAKE"
	// EnvValue is the value of Env.
	EnvValue = "stdin"
	// TicketKey is the gRPC metadata key of the ticket, which the plugin sends with each call.
	TicketKey = "patchbay-ticket"

	// maxLine is the maximum length of the line.
	maxLine = 64 << 10
	// maxIntroduction is the size up to which Linux writes to a pipe atomically.
	maxIntroduction = 4 << 10
)

// Handshake is the content of the line.
type Handshake struct {
	Version int `json:"version"`
	// HostSocket is the path of the Unix socket on which the host serves this plugin.
	HostSocket string `json:"hostSocket"`
	// Ticket is the secret with which the plugin authenticates to the host.
	Ticket string `json:"ticket"`
	// PluginSocket is the path at which the plugin must serve; empty if it does not have to.
	PluginSocket string `json:"pluginSocket,omitempty"`
	// Listener is the socket that the host has created for the plugin; nil if the plugin creates its own.
	Listener *Listener `json:"listener,omitempty"`
}

// Listener is a stream socket that a plugin inherits, bound but not listening. The plugin listens on it and then renames Path to
// PluginSocket, so that it is not discovered earlier. A plugin that does not know this field creates a socket at PluginSocket.
type Listener struct {
	FD   int    `json:"fd"`
	Path string `json:"path"`
	// Introduction is the descriptor of a pipe to which the plugin may write its identity before it serves; 0 if there is none.
	Introduction int `json:"introduction,omitempty"`
}

// Introduce writes the plugin's identity, its encoded answer to GetInfo, to the pipe and closes the pipe. If the answer is too long,
// nothing is written, and the host calls GetInfo.
func Introduce(pipe *os.File, info []byte) {
	if len(info) <= maxIntroduction {
		_, _ = pipe.Write(info) // without it, the host calls GetInfo
	}
	_ = pipe.Close()
}

// Write writes the handshake as one line of JSON.
func Write(w io.Writer, h Handshake) error {
	h.Version = Version
	line, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("cannot hand the plugin its ticket: %w", err)
	}
	return nil
}

// Read reads a handshake, and nothing after the line. It blocks until the line is complete or r ends. It ignores unknown fields, which a
// newer host may send.
func Read(r io.Reader) (Handshake, error) {
	line, err := readLine(r)
	if err != nil {
		return Handshake{}, fmt.Errorf("cannot read the host's handshake from standard input: %w", err)
	}
	var h Handshake
	if err := json.Unmarshal(line, &h); err != nil {
		return Handshake{}, fmt.Errorf("cannot read the host's handshake: the line on standard input is not a handshake: %w", err)
	}
	if h.Version != Version {
		return Handshake{}, fmt.Errorf("cannot read the host's handshake: it has version %d, this plugin knows version %d; "+
			"build the plugin with the SDK of the host's version", h.Version, Version)
	}
	if h.HostSocket == "" || h.Ticket == "" {
		return Handshake{}, errors.New("cannot read the host's handshake: it names no host socket or no ticket")
	}
	return h, nil
}

// readLine reads a line byte by byte, so that nothing after it is consumed.
func readLine(r io.Reader) ([]byte, error) {
	var line bytes.Buffer
	var b [1]byte
	for line.Len() < maxLine {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			if line.Len() > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if b[0] == '\n' {
			return line.Bytes(), nil
		}
		line.WriteByte(b[0])
	}
	return nil, fmt.Errorf("no newline within %d bytes", maxLine)
}
