package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"

	"github.com/patchbay-dev/patchbay/bench/internal/manager"
)

// registerRaw is a registrar for raw plugins: no HTTP/2 and no gRPC on either side, but the same turns.
func registerRaw(ctx context.Context, path string, registered func(string) error) (err error) {
	conn, err := dialListening(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	answers := bufio.NewScanner(conn)
	name, err := askRaw(conn, answers, manager.RawWho)
	if err != nil {
		return err
	}
	if err := registered(name); err != nil {
		return err
	}
	_, err = askRaw(conn, answers, manager.RawTold)
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
