package goplugin

import (
	"context"
	"io"
	"strconv"
	"strings"
)

// process is the process of a plugin as the library sees it. It implements [runner.Runner].
type process struct {
	*life
	start func() error
}

// Start implements [runner.Runner].
func (p *process) Start(context.Context) error { return p.start() }

// Diagnose implements [runner.Runner]. The log has what there is to say.
func (*process) Diagnose(context.Context) string { return "" }

// Stdout has the first line only. It implements [runner.Runner].
func (p *process) Stdout() io.ReadCloser { return p.hello }

// Stderr has nothing: it goes into the log. It implements [runner.Runner].
func (*process) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Name implements [runner.Runner].
func (p *process) Name() string { return p.spec.Name }

// Wait implements [runner.Runner].
func (p *process) Wait(context.Context) error {
	select {
	case <-p.process.Done():
	case <-p.gone:
	}
	return nil
}

// Kill implements [runner.Runner].
func (p *process) Kill(context.Context) error {
	p.kill()
	return nil
}

// ID implements [runner.Runner]. A process that could not be started has none.
func (p *process) ID() string {
	if p.process == nil {
		return ""
	}
	return strconv.Itoa(p.process.PID())
}

// PluginToHost implements [runner.Runner]: the plugin sees the addresses that its host sees.
func (*process) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

// HostToPlugin implements [runner.Runner].
func (*process) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}
