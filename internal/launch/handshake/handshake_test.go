package handshake

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
)

func TestReadTakesOnlyTheLine(t *testing.T) {
	want := Handshake{Version: Version, HostSocket: "/run/h.sock", Ticket: "t", PluginSocket: "/run/p.sock"}
	var pipe bytes.Buffer
	if err := Write(&pipe, want); err != nil {
		t.Fatal(err)
	}
	pipe.WriteString("rest")
	got, err := Read(&pipe)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("read %+v, want %+v", got, want)
	}
	if rest := pipe.String(); rest != "rest" {
		t.Errorf("what follows the handshake is %q, want it untouched", rest)
	}
}

func TestReadRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ input, want string }{
		"nothing":         {"", "EOF"},
		"half a line":     {`{"version":1`, "unexpected EOF"},
		"no JSON":         {"hello\n", "invalid character"},
		"another version": {`{"version":2,"hostSocket":"s","ticket":"t"}` + "\n", "version 2"},
		"no ticket":       {`{"version":1,"hostSocket":"s"}` + "\n", "no ticket"},
		"no socket":       {`{"version":1,"ticket":"t"}` + "\n", "no host socket"},
		"no end":          {strings.Repeat("x", maxLine+1), "no newline"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(strings.NewReader(tc.input))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one that says %q", err, tc.want)
			}
		})
	}
}

func TestReadTellsTheEndOfInput(t *testing.T) {
	if _, err := Read(strings.NewReader("")); !errors.Is(err, io.EOF) {
		t.Errorf("error is %v, want io.EOF", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version":1,"hostSocket":"s","ticket":"t"}` + "\n"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		h, err := Read(bytes.NewReader(input))
		if err == nil && (h.Ticket == "" || h.HostSocket == "") {
			t.Errorf("%q gave an incomplete handshake without an error", input)
		}
	})
}
