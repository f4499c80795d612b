package proc

import (
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
)

// None is the argument or the reply of a call that has none.
type None bool

// Serve serves the methods of the receiver, in the form of net/rpc, on standard input and output until the input ends.
func Serve(receiver any) error {
	server := rpc.NewServer()
	if err := server.Register(receiver); err != nil {
		return fmt.Errorf("cannot serve calls: %w", err)
	}
	server.ServeConn(pipe{os.Stdin, os.Stdout})
	return nil
}

// NewClient returns a client of a process whose standard output is in and whose standard input is out.
func NewClient(in io.ReadCloser, out io.WriteCloser) *rpc.Client { return rpc.NewClient(pipe{in, out}) }

// pipe makes one connection of an input and an output.
type pipe struct {
	io.ReadCloser
	out io.WriteCloser
}

func (p pipe) Write(b []byte) (int, error) { return p.out.Write(b) }

func (p pipe) Close() error { return errors.Join(p.ReadCloser.Close(), p.out.Close()) }
