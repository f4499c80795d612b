package bench

import (
	"bufio"
	"errors"
	"net"

	"github.com/patchbay-dev/patchbay/bench/internal/manager"
	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

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
				if lines.Text() == manager.RawTold {
					at, err := proc.Now()
					p.tell(told{at, err})
					answer = manager.RawDone
				}
				if _, err := conn.Write([]byte(answer + "\n")); err != nil {
					p.tell(told{err: err})
					return
				}
			}
		}()
	}
}
