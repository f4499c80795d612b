// Package handshake is the line by which a host tells a plugin that it launched where the host is and who the plugin is. It travels on the
// plugin's standard input, which then stays open: its end asks the plugin to stop. What a plugin prints cannot disturb it. The
// protocol that the two speak afterwards is in api/patchbay/plugin/v1.
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
	// Env is the environment variable that tells a plugin that a handshake waits on its standard input.
	Env = "PATCHBAY_HANDSHAKE"
	// EnvValue is then its value.
	EnvValue = "stdin"
	// TicketKey is the gRPC metadata that carries the ticket with each call.
	TicketKey = "patchbay-ticket"

	// maxLine bounds what is read while no newline comes.
	maxLine = 64 << 10
	// maxIntroduction is how much Linux writes to a pipe as a whole or not at all.
	maxIntroduction = 4 << 10
)

// Handshake is what the host tells.
type Handshake struct {
	Version int `json:"version"`
	// HostSocket is the path of the Unix socket on which the host serves this plugin.
	HostSocket string `json:"hostSocket"`
	// Ticket proves to the host which plugin calls.
	Ticket string `json:"ticket"`
	// PluginSocket is where the plugin is to serve; empty if it is not asked to.
	PluginSocket string `json:"pluginSocket,omitempty"`
	// Listener is the socket that the host has made for it; nil if the plugin has to make its own.
	Listener *Listener `json:"listener,omitempty"`
}

// Listener is a stream socket that a plugin inherits, bound but not listening. The plugin listens on it and then renames Path to the
// PluginSocket, so that nobody meets it before. One that knows nothing of it makes a socket at PluginSocket.
type Listener struct {
	FD   int    `json:"fd"`
	Path string `json:"path"`
	// Introduction is the descriptor of a pipe to which the plugin may write who it is before it serves; 0 if there is none.
	Introduction int `json:"introduction,omitempty"`
}

// Introduce says who the plugin is, with its encoded answer to GetInfo. What is too long for that is not said: the host will ask.
func Introduce(pipe *os.File, info []byte) {
	if len(info) <= maxIntroduction {
		_, _ = pipe.Write(info) // a host that does not hear it asks
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

// Read reads a handshake and nothing of what follows it. It blocks until the line is there or r ends. Unknown fields are ignored, so that
// a newer host may say more.
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

// readLine reads byte by byte, because what follows the line is not its own.
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
