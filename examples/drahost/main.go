// Drahost is a host for drivers of dynamic resource allocation (DRA): it starts using those that appear in a plugin directory, and has
// them prepare and unprepare resource claims. It reads commands from its standard input, one a line, and answers each with a line of JSON:
//
//	wait DRIVER                                     until the driver is registered
//	prepare DRIVER NAMESPACE/NAME/UID ...           what the driver prepared for each claim, by UID
//	unprepare DRIVER NAMESPACE/NAME/UID ...         the error of each claim, by UID; empty for none
//	health DRIVER                                   what the driver last said of its devices
//
// It ends with its standard input. It leaves plugins of other types alone, so that the directory may belong to another host. A driver that
// several hosts use is told by each that it is registered.
//
//	go run ./drahost --plugin-dir /run/patchbay/plugins
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/handlers/dra"
	"github.com/patchbay-dev/patchbay/plugin"
)

func main() {
	dir := flag.String("plugin-dir", "", "directory in which drivers put their registration sockets")
	flag.Parse()
	if err := run(context.Background(), *dir, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "drahost:", err)
		os.Exit(1)
	}
}

// run obeys the commands of in until it ends.
func run(ctx context.Context, dir string, in io.Reader, out io.Writer) (err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	drivers := &dra.Handler{Logger: log}
	// The handler is closed when nobody calls it any more.
	defer func() { err = errors.Join(err, drivers.Close()) }()
	runtime, err := patchbay.New(patchbay.Config{PluginDirs: []string{dir}, IgnoreUnhandled: true, Logger: log})
	if err != nil {
		return err
	}
	runtime.AddHandler(registerapi.DRAPlugin, drivers)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		defer cancel() // nothing can be waited for any more
		ended <- runtime.Run(ctx)
	}()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()
	h := host{runtime: runtime, drivers: drivers}
	lines, answers := bufio.NewScanner(in), json.NewEncoder(out)
	for lines.Scan() && ctx.Err() == nil {
		answer, err := h.obey(ctx, strings.Fields(lines.Text()))
		if err != nil {
			answer = map[string]string{"error": err.Error()}
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

type host struct {
	runtime *patchbay.Runtime
	drivers *dra.Handler
}

var errUsage = errors.New("no such command: wait DRIVER, prepare DRIVER CLAIM..., unprepare DRIVER CLAIM... or health DRIVER")

// obey carries out one command.
func (h host) obey(ctx context.Context, command []string) (answer any, err error) {
	if len(command) < 2 {
		return nil, errUsage
	}
	driver := command[1]
	claims, err := claims(command[2:])
	if err != nil {
		return nil, err
	}
	switch command[0] {
	case "wait":
		name := plugin.Name{Type: registerapi.DRAPlugin, Name: driver}
		return name, h.runtime.WaitForPlugins(ctx, name)
	case "prepare":
		return h.prepare(ctx, driver, claims)
	case "unprepare":
		return h.unprepare(ctx, driver, claims)
	case "health":
		return h.drivers.Health(driver), nil
	default:
		return nil, errUsage
	}
}

type prepared struct {
	Devices []*drav1.Device `json:"devices,omitempty"`
	Error   string          `json:"error,omitempty"`
}

func (h host) prepare(ctx context.Context, driver string, claims []*drav1.Claim) (map[string]prepared, error) {
	results, err := h.drivers.Prepare(ctx, driver, claims...)
	if err != nil {
		return nil, err
	}
	answer := map[string]prepared{}
	for uid, result := range results {
		answer[uid] = prepared{Devices: result.Devices, Error: text(result.Err)}
	}
	return answer, nil
}

func (h host) unprepare(ctx context.Context, driver string, claims []*drav1.Claim) (map[string]string, error) {
	results, err := h.drivers.Unprepare(ctx, driver, claims...)
	if err != nil {
		return nil, err
	}
	answer := map[string]string{}
	for uid, err := range results {
		answer[uid] = text(err)
	}
	return answer, nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// claims reads NAMESPACE/NAME/UID.
func claims(texts []string) ([]*drav1.Claim, error) {
	var list []*drav1.Claim
	for _, text := range texts {
		parts := strings.Split(text, "/")
		if len(parts) != 3 {
			return nil, fmt.Errorf("%q is not a claim: write NAMESPACE/NAME/UID", text)
		}
		list = append(list, &drav1.Claim{Namespace: parts[0], Name: parts[1], Uid: parts[2]})
	}
	return list, nil
}
