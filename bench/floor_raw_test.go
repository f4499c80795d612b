package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// The lines of a raw plugin: it is asked rawWho and answers with its name, and is told rawTold and answers rawDone.
const (
	rawWho  = "who"
	rawTold = "registered"
	rawDone = "done"
)

// registerRaw is a registrar for raw plugins: no HTTP/2 and no gRPC on either side, but the same turns.
func registerRaw(ctx context.Context, path string, registered func(string) error) (err error) {
	conn, err := dialListening(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	answers := bufio.NewScanner(conn)
	name, err := askRaw(conn, answers, rawWho)
	if err != nil {
		return err
	}
	if err := registered(name); err != nil {
		return err
	}
	_, err = askRaw(conn, answers, rawTold)
	return err
}

// askRaw sends a line and returns the one that answers it.
func askRaw(conn net.Conn, answers *bufio.Scanner, line string) (string, error) {
	if _, err := conn.Write([]byte(line + "\n")); err != nil {
		return "", err
	}
	if !answers.Scan() {
		return "", cmp.Or(answers.Err(), io.ErrUnexpectedEOF)
	}
	return answers.Text(), nil
}

// serveRaw serves a raw plugin until its listener is closed.
func (p *fake) serveRaw() error {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				answer := p.name
				if lines.Text() == rawTold {
					at, err := proc.Now()
					p.tell(told{at, err})
					answer = rawDone
				}
				if _, err := conn.Write([]byte(answer + "\n")); err != nil {
					p.tell(told{err: err})
					return
				}
			}
		}()
	}
}
