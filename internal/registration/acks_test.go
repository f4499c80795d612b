package registration

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// frames reads n frames of a client and returns their types, with "ack" for what acknowledges one.
func (p *peer) frames(n int) (types []string) {
	_ = p.SetReadDeadline(time.Now().Add(20 * time.Second)) // a test that fails ends
	for range n {
		f, err := p.ReadFrame()
		if err != nil {
			return append(types, err.Error())
		}
		kind := f.Header().Type.String()
		if f.Header().Flags.Has(http2.FlagSettingsAck) && (f.Header().Type == http2.FrameSettings || f.Header().Type == http2.FramePing) {
			kind += " ack"
		}
		types = append(types, kind)
	}
	return types
}

// TestAcknowledgementsComeAlone: a plugin that waits for an acknowledgement during a call gets it, and those after it too; and after that,
// the end of the call's context still counts.
func TestAcknowledgementsComeAlone(t *testing.T) {
	got, answered := make(chan []string, 1), make(chan struct{})
	client := pair(t, func(p *peer) {
		p.request()
		_ = p.WriteSettings()
		during := p.frames(1)
		_ = p.WritePing(false, [8]byte{1})
		during = append(during, p.frames(1)...)
		p.headers(false, ":status", "200", "content-type", "application/grpc")
		p.finish(infoMessage())
		<-answered
		_ = p.WritePing(false, [8]byte{1})
		got <- during
		p.request()
		_ = p.WriteSettings()
		got <- p.frames(1)
		p.untilClosed()
	})
	if _, err := client.GetInfo(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	close(answered)
	if during := <-got; len(during) != 2 || during[0] != "SETTINGS ack" || during[1] != "PING ack" {
		t.Errorf("during a call came %v", during)
	}
	ctx, cancel := context.WithCancel(t.Context())
	canceled := make(chan error, 1)
	go func() { canceled <- client.Notify(ctx, 0, true, "") }()
	if during := <-got; len(during) != 1 || during[0] != "SETTINGS ack" && during[0] != "PING ack" {
		t.Errorf("during a call came %v", during)
	}
	cancel()
	if err := <-canceled; status.Code(err) != codes.Canceled {
		t.Errorf("a call that was canceled returned %v", err)
	}
}

// TestAcknowledgementsComeWithTheNextCall: a plugin is not woken for an acknowledgement that the next call can take along.
func TestAcknowledgementsComeWithTheNextCall(t *testing.T) {
	alone, with, read := make(chan error, 1), make(chan []string, 1), make(chan struct{})
	client := pair(t, func(p *peer) {
		p.request()
		p.start()
		_ = p.WritePing(false, [8]byte{1})
		p.finish(infoMessage())
		<-read
		_ = p.SetReadDeadline(time.Now().Add(moment))
		_, err := p.Read(make([]byte, 1))
		alone <- err
		with <- p.frames(4)
		p.finish(nil)
	})
	if _, err := client.GetInfo(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	close(read)
	if err := <-alone; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an acknowledgement came alone: %v", err)
	}
	_ = client.Notify(t.Context(), patience, true, "") // it fails: the answer has no headers
	want := []string{"SETTINGS ack", "PING ack", "HEADERS", "DATA"}
	if got := <-with; !slices.Equal(got, want) {
		t.Errorf("with the next call came %v, want %v", got, want)
	}
}

// TestAcknowledgementsBetweenCalls: those that are owed when a call ends are written though no other call follows.
func TestAcknowledgementsBetweenCalls(t *testing.T) {
	got := make(chan []string, 1)
	client := pair(t, func(p *peer) {
		p.request()
		p.start()
		_ = p.WritePing(false, [8]byte{1})
		p.finish(infoMessage())
		got <- p.frames(2)
	})
	if _, err := client.GetInfo(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if after := <-got; len(after) != 2 || after[0] != "SETTINGS ack" || after[1] != "PING ack" {
		t.Errorf("after a call came %v", after)
	}
}
