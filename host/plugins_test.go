//go:build unix

package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
)

// registerPlugins declares the plugins of the tests of launching.
func registerPlugins() {
	modes["polite"] = func([]string) {
		_, c := connect()
		fmt.Println("up")
		stop()
		_ = c.Close()
	}
	modes["exit"] = func(args []string) {
		var code int
		_, _ = fmt.Sscan(args[0], &code)
		os.Exit(code)
	}
	modes["deaf"] = func([]string) { // never reads its standard input, and ignores SIGTERM
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("up")
		select {}
	}
	modes["abort"] = func([]string) { // dies without reading its standard input
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	modes["caller"] = callAll
	modes["ticket"] = func([]string) { // gives away what it knows
		h, _ := connect()
		fmt.Println(h.HostSocket)
		fmt.Println(h.Ticket)
		stop()
	}
	modes["stream"] = openStream
	modes["watcher"] = func([]string) { // has a call open
		h, c := connect()
		watch, err := grpc_health_v1.NewHealthClient(c).Watch(as(h.Ticket), &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			fatal(err)
		}
		for err == nil {
			_, err = watch.Recv()
		}
		fatal(err)
	}
	modes["one call"] = func([]string) {
		h, c := connect()
		_, _ = pluginv1.NewHostClient(c).ListMetadata(as(h.Ticket), &pluginv1.ListMetadataRequest{
			Pin: &pluginv1.Pin{PackageName: "p", InstanceId: "i"},
		})
	}
	modes["call and fail"] = func([]string) {
		modes["one call"](nil)
		os.Exit(3)
	}
	modes["family"] = func([]string) { // has a child that calls with its ticket
		h, err := handshake.Read(os.Stdin)
		if err != nil {
			fatal(err)
		}
		cmd := exec.Command(os.Args[0], h.HostSocket, h.Ticket)
		cmd.Env = append(os.Environ(), modeEnv+"=child")
		cmd.Stdout = os.Stdout
		if err := cmd.Run(); err != nil {
			fatal(err)
		}
		stop()
	}
	modes["child"] = func(args []string) {
		_, err := pluginv1.NewHostClient(dial(args[0])).ListMetadata(as(args[1]), &pluginv1.ListMetadataRequest{
			Pin: &pluginv1.Pin{PackageName: "p", InstanceId: "i"},
		})
		fmt.Println("child:", status.Code(err))
	}
	modes["flood"] = func([]string) {
		go func() {
			w := bufio.NewWriterSize(os.Stdout, 64<<10)
			for {
				_, _ = w.WriteString(strings.Repeat("x", 100) + "\n")
			}
		}()
		stop()
	}
	modes["holder"] = func([]string) { // leaves a process behind that holds its output
		cmd := exec.Command("sleep", "600")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			fatal(err)
		}
		fmt.Println(cmd.Process.Pid)
		os.Exit(4)
	}
	modes["connections"] = func([]string) { // opens more connections than it may
		h, err := handshake.Read(os.Stdin)
		if err != nil {
			fatal(err)
		}
		open := 0
		for range 2 * maxConns {
			ctx, cancel := context.WithTimeout(as(h.Ticket), 10*time.Second)
			_, err := grpc_health_v1.NewHealthClient(dial(h.HostSocket)).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			cancel()
			if err == nil {
				open++
			}
		}
		fmt.Println(open)
		stop()
	}
}

// callAll tries what the host of the tests has, and says what comes of it.
func callAll([]string) {
	h, c := connect()
	ctx := as(h.Ticket)
	say := func(what string, err error) { fmt.Println(what+":", status.Code(err)) }

	client := pluginv1.NewHostClient(c)
	request := &pluginv1.ListMetadataRequest{
		Pin: &pluginv1.Pin{PackageName: "p", InstanceId: "i"}, Keys: []string{"k"}, PageSize: 5000, PageToken: "t",
	}
	response, err := client.ListMetadata(ctx, request)
	say("metadata", err)
	fmt.Printf("%s %s\n", response.GetMetadata()[0].GetValue(), response.GetNextPageToken())
	request.ServiceUrl = "https://other.example"
	_, err = client.ListMetadata(ctx, request)
	say("other service", err)
	_, err = client.ListMetadata(ctx, &pluginv1.ListMetadataRequest{})
	say("no pin", err)

	health := grpc_health_v1.NewHealthClient(c)
	_, err = health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	say("granted", err)
	watch, err := health.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	say("granted stream", err)
	say("no such method", c.Invoke(ctx, "/grpc.health.v1.Health/Nothing", &pluginv1.LogResponse{}, &pluginv1.LogResponse{}))
	admit, err := pluginv1.NewAdmissionsClient(c).Admit(ctx)
	if err == nil {
		_, err = admit.Recv()
	}
	say("not granted", err)
	say("no such service", c.Invoke(ctx, "/no.Such/Method", &pluginv1.LogResponse{}, &pluginv1.LogResponse{}))
	_, err = health.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	say("no ticket", err)
	for _, wrong := range []string{"", "1", "9." + strings.Repeat("A", 43), flip(h.Ticket)} {
		_, err = health.Check(as(wrong), &grpc_health_v1.HealthCheckRequest{})
		say("wrong ticket", err)
	}
	_, err = health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", maxMessage)})
	say("giant", err)
	_, err = health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	say("after all", err)
	stop()
}

// flip changes one character of a ticket's secret.
func flip(ticket string) string {
	b := []byte(ticket)
	i := len(b) - 2
	if b[i] == 'A' {
		b[i] = 'B'
	} else {
		b[i] = 'A'
	}
	return string(b)
}

// openStream logs over a stream, and then is stuck.
func openStream([]string) {
	h, c := connect()
	stream, err := pluginv1.NewHostClient(c).Log(as(h.Ticket))
	if err != nil {
		fatal(err)
	}
	err = stream.Send(&pluginv1.LogRequest{Records: []*pluginv1.LogRecord{
		{Level: 8, Message: "it failed", Attributes: []*pluginv1.Attribute{
			{Key: "n", Value: &pluginv1.Attribute_Integer{Integer: 7}},
			{Key: "s", Value: &pluginv1.Attribute_Text{Text: "text"}},
			{Key: "t", Value: &pluginv1.Attribute_Truth{Truth: true}},
		}},
	}})
	if err != nil {
		fatal(err)
	}
	stop()
	if _, err := stream.CloseAndRecv(); err != nil && !errors.Is(err, io.EOF) {
		fatal(err)
	}
}

// echoHealth is a service that controllers of the tests grant.
type echoHealth struct {
	grpc_health_v1.UnimplementedHealthServer
	called chan struct{} // if it is set, Watch says so and waits for the end of its context
	ended  chan context.Context
}

func (echoHealth) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

func (e echoHealth) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	if err := stream.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil || e.called == nil {
		return err
	}
	close(e.called)
	<-stream.Context().Done()
	e.ended <- stream.Context()
	return stream.Context().Err()
}

func grantHealth(impl grpc_health_v1.HealthServer) *Controller {
	return &Controller{Services: func(s grpc.ServiceRegistrar) { grpc_health_v1.RegisterHealthServer(s, impl) }}
}
