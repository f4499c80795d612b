package call

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/dyncall"
)

// TestRequestsEndWithTheCall reads requests from an input that stays open without data.
func TestRequestsEndWithTheCall(t *testing.T) {
	schema := dyncall.Builtin(nil)
	for _, selector := range []string{"GetInfo", "Watch"} {
		method, err := schema.Method(selector)
		if err != nil {
			t.Fatal(err)
		}
		reader, writer := io.Pipe()
		in := &callInput{Reader: reader, Closer: reader}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := in.requests(ctx, schema, method, true)(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v", selector, err)
		}
		writer.Close()
	}
}

// TestLearnInTime lists the methods of a plugin that accepts connections and never answers.
func TestLearnInTime(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "silent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := dyncall.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = learn(ctx, conn, "GetInfo", nil)
	if want := "cannot list the plugin's services: DeadlineExceeded: the call has timed out; set a longer --timeout"; err == nil ||
		err.Error() != want {
		t.Errorf("got %v", err)
	}
}

// TestSplit checks the line on which each request of a stream begins.
func TestSplit(t *testing.T) {
	texts := make(chan requestText, 10)
	in := &callInput{Reader: strings.NewReader("{\"a\":\n1}\n\n  {}{}\n\n[\n3] x")}
	in.split(t.Context(), texts)
	var got []string
	var lines []int
	for text := range texts {
		if text.err != nil {
			if !strings.HasPrefix(text.err.Error(), "line 7: invalid character 'x'") {
				t.Errorf("the end is %v", text.err)
			}
			break
		}
		got, lines = append(got, string(text.text)), append(lines, text.line)
	}
	if strings.Join(got, " ") != "{\"a\":\n1} {} {} [\n3]" {
		t.Errorf("got %q", got)
	}
	for i, want := range []int{1, 4, 4, 6} {
		if lines[i] != want {
			t.Errorf("request %d is on line %d, want %d", i, lines[i], want)
		}
	}
}

func TestDepth(t *testing.T) {
	for text, want := range map[string]int{`1`: 0, `{}`: 1, `{"a":[{"b":1},[]]}`: 3, `["}}}","\"{{",{}]`: 2} {
		if got := depth([]byte(text)); got != want {
			t.Errorf("%s is %d deep, want %d", text, got, want)
		}
	}
}

func TestPrintAnswer(t *testing.T) {
	var out bytes.Buffer
	c := &callCommand{output: &command.Choice{Value: "json"}}
	if err := c.print(&out, []byte(`{"b": "\u009b", "a": [1]}`)); err != nil || out.String() != `{"b":"\u009b","a":[1]}`+"\n" {
		t.Errorf("got %q, %v", &out, err)
	}
}
