//go:build unix

package host

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
)

// registerAdmissionPlugins declares the admission plugins of the tests. Their first argument says what is wrong with them, if anything is.
func registerAdmissionPlugins() {
	modes["admission"] = func(args []string) {
		h, c := connect()
		client := pluginv1.NewAdmissionsClient(c)
		stream, err := client.Admit(as(h.Ticket))
		if err != nil {
			fatal(err)
		}
		hello := &pluginv1.Hello{ProtocolVersion: 1}
		switch strings.Join(args, " ") {
		case "":
		case "version":
			hello.ProtocolVersion = 2
		case "no hello":
			hello = nil
		case "silent":
			stop()
			return
		case "exit":
			os.Exit(5)
		case "close":
			_ = stream.CloseSend()
			stop()
			return
		}
		if err := stream.Send(&pluginv1.AdmitRequest{Hello: hello}); err != nil {
			fatal(err)
		}
		for {
			response, err := stream.Recv()
			if err != nil {
				fmt.Println("stream:", status.Code(err))
				stop()
				return
			}
			if request := answers(client, h.Ticket, response); len(request.GetResolutions()) > 0 {
				if err := stream.Send(request); err != nil {
					fatal(err)
				}
			}
		}
	}
	modes["admit all"] = func([]string) {
		h, c := connect()
		stream, err := pluginv1.NewAdmissionsClient(c).Admit(as(h.Ticket))
		if err == nil {
			err = stream.Send(&pluginv1.AdmitRequest{Hello: &pluginv1.Hello{ProtocolVersion: 1}})
		}
		for err == nil {
			var response *pluginv1.AdmitResponse
			if response, err = stream.Recv(); err != nil {
				break
			}
			request := &pluginv1.AdmitRequest{Resolutions: make([]*pluginv1.Resolution, len(response.GetAdmissions()))}
			for i, a := range response.GetAdmissions() {
				request.Resolutions[i] = &pluginv1.Resolution{Id: a.GetId()}
			}
			err = stream.Send(request)
		}
	}
	// mutters says a lot and answers nothing.
	modes["mutters"] = func([]string) {
		h, c := connect()
		stream, err := pluginv1.NewAdmissionsClient(c).Admit(as(h.Ticket))
		if err == nil {
			err = stream.Send(&pluginv1.AdmitRequest{Hello: &pluginv1.Hello{ProtocolVersion: 1}})
		}
		for err == nil {
			<-time.After(10 * time.Millisecond)
			err = stream.Send(&pluginv1.AdmitRequest{Resolutions: []*pluginv1.Resolution{{Id: 1 << 40}}})
		}
	}
}

// answers answers checks as the package's name asks for.
func answers(client pluginv1.AdmissionsClient, ticket string, response *pluginv1.AdmitResponse) *pluginv1.AdmitRequest {
	request := &pluginv1.AdmitRequest{}
	for _, a := range response.GetAdmissions() {
		r := &pluginv1.Resolution{Id: a.GetId(), Message: fmt.Sprintf("%s %d", a.GetServiceUrl(), os.Getpid())}
		switch what, _, _ := strings.Cut(a.GetPin().GetPackageName(), "/"); what {
		case "ok":
		case "no":
			r.Code = int32(codes.PermissionDenied)
		case "later":
			r.Code = int32(codes.Unavailable)
		case "strange":
			r.Code, r.Message = -7, strings.Repeat("é", maxRefusal)
		case "hang":
			continue
		case "stop":
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			select {} // the other threads stop a moment later
		case "crash":
			os.Exit(6)
		case "again":
			request.Hello = &pluginv1.Hello{ProtocolVersion: 1}
		case "second":
			stream, err := client.Admit(as(ticket))
			if err == nil {
				_, err = stream.Recv()
			}
			r.Code, r.Message = int32(codes.NotFound), status.Code(err).String()
		case "twice":
			request.Resolutions = append(request.Resolutions, r, &pluginv1.Resolution{Id: 1 << 40})
		}
		request.Resolutions = append(request.Resolutions, r)
	}
	return request
}
