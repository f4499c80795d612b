package host

import (
	"bytes"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/patchbay-dev/patchbay/internal/launch/cipd"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
)

// Protocol is what a launched plugin speaks with its host.
type Protocol string

const (
	// ProtocolPatchbay is that of api/patchbay/plugin/v1, on a Unix socket. It is the one of a plugin for which none is named.
	ProtocolPatchbay Protocol = "patchbay"
	// ProtocolCIPD is that of the plugins of CIPD: they call cipd.plugin.Host and, if they are granted admissions, cipd.plugin.Admissions.
	// They do so over TCP on 127.0.0.1, where the kernel does not tell who calls: whoever learns the ticket can call as the plugin until that
	// has ended. The host listens there only when such a plugin was launched, on one port for all of them.
	ProtocolCIPD Protocol = "cipd"
)

// protocolForeign is that of plugins with a [Foreign].
const protocolForeign Protocol = "foreign"

// orDefault fails for a protocol that is not known.
func (p Protocol) orDefault() (Protocol, error) {
	switch p {
	case "":
		return ProtocolPatchbay, nil
	case ProtocolPatchbay, ProtocolCIPD:
		return p, nil
	default:
		return "", fmt.Errorf("the protocol %q is not known: it is %q or %q", p, ProtocolPatchbay, ProtocolCIPD)
	}
}

// ticketKey is the metadata that carries the ticket.
func (p Protocol) ticketKey() string {
	if p == ProtocolCIPD {
		return cipd.TicketKey
	}
	return handshake.TicketKey
}

// notGranted is the code for a service that a plugin may not call.
func (p Protocol) notGranted() codes.Code {
	if p == ProtocolCIPD {
		return codes.Unimplemented
	}
	return codes.PermissionDenied
}

// maxCalls is how many calls of a plugin may run. A plugin of CIPD makes a call for each answer and loses those that are refused, so only
// its connections bound them.
func (p Protocol) maxCalls() int {
	if p == ProtocolCIPD {
		return maxConns * maxStreams
	}
	return maxCalls
}

// handshakeLine is what a plugin gets on its standard input.
func (p *PluginProcess) handshakeLine() ([]byte, error) {
	if p.protocol == protocolForeign {
		return nil, nil
	}
	var line bytes.Buffer
	if p.protocol == ProtocolCIPD {
		port, err := p.host.server.loopbackPort()
		if err == nil {
			err = cipd.WriteHandshake(&line, port, p.ticket.String())
		}
		return line.Bytes(), err
	}
	err := handshake.Write(&line, handshake.Handshake{
		HostSocket: p.host.server.path, Ticket: p.ticket.String(), PluginSocket: p.pluginSocket,
	})
	return line.Bytes(), err
}
