//go:build unix

package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
)

// cipdHost is what a plugin of CIPD has of its host.
type cipdHost struct {
	*grpc.ClientConn
	ticket string
	line   string // of the handshake
}

// cipdConnect reads the handshake as CIPD's plugins do. If it has unknown fields, the plugin waits for the end of standard input and exits.
func cipdConnect() *cipdHost {
	line, err := bufio.NewReader(os.Stdin).ReadBytes('\n')
	if err != nil {
		fatal(err)
	}
	var handshake struct {
		Port   int    `json:"port"`
		Ticket string `json:"ticket"`
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&handshake); err != nil {
		_, _ = io.Copy(io.Discard, os.Stdin) // CIPD's own end no sooner, and write nothing before
		fatal(err)
	}
	c, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", handshake.Port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fatal(err)
	}
	return &cipdHost{c, handshake.Ticket, string(line)}
}

func (h *cipdHost) ctx() context.Context { return cipdAs(h.ticket) }

func cipdAs(ticket string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "x-plugin-ticket", ticket)
}

// admissions is the call of ListAdmissions.
func (h *cipdHost) admissions(version int32) (grpc.ClientStream, error) {
	stream, err := h.NewStream(h.ctx(), &grpc.StreamDesc{ServerStreams: true}, "/cipd.plugin.Admissions/ListAdmissions")
	if err == nil {
		err = stream.SendMsg(&cipdv1.ListAdmissionsRequest{ProtocolVersion: version, PluginVersion: "test"})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	return stream, err
}

func (h *cipdHost) resolve(id string, code codes.Code, message string) error {
	r := &cipdv1.ResolveAdmissionRequest{AdmissionId: id}
	if code != codes.OK {
		r.Status = &cipdv1.Status{Code: int32(code), Message: message}
	}
	return h.Invoke(h.ctx(), "/cipd.plugin.Admissions/ResolveAdmission", r, &emptypb.Empty{})
}

// serve calls answer for each check, in goroutines of which some run at once, until the host ends it. Errors that it does not expect make
// it panic.
func (h *cipdHost) serve(version int32, answer func(*cipdv1.Admission)) {
	stream, err := h.admissions(version)
	if err != nil {
		panic(err)
	}
	checks := make(chan *cipdv1.Admission, 1000)
	var workers sync.WaitGroup
	for range 64 {
		workers.Go(func() {
			for a := range checks {
				answer(a)
			}
		})
	}
	for {
		a := &cipdv1.Admission{}
		switch err := stream.RecvMsg(a); status.Code(err) {
		case codes.OK:
			checks <- a
			continue
		case codes.Aborted, codes.Canceled, codes.Unavailable:
			close(checks)
			workers.Wait()
			fmt.Println("ended:", status.Code(err))
			return
		default:
			panic(err)
		}
	}
}

// registerCIPDPlugins declares plugins that know nothing but CIPD's wire.
func registerCIPDPlugins() {
	modes["cipd"] = func(args []string) {
		h := cipdConnect()
		switch strings.Join(args, " ") {
		case "exit":
			os.Exit(5)
		case "silent":
			_, _ = io.Copy(io.Discard, os.Stdin)
		case "version":
			h.serve(2, h.answer)
		default:
			h.serve(1, h.answer)
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	modes["cipd all"] = func([]string) {
		h := cipdConnect()
		h.serve(1, func(a *cipdv1.Admission) {
			if err := h.resolve(a.GetAdmissionId(), codes.OK, ""); err != nil {
				panic(err)
			}
		})
	}
	modes["cipd calls"] = func([]string) { cipdConnect().callAll() }
	modes["cipd crowd"] = func([]string) { fmt.Println(cipdConnect().crowd()) }
	modes["cipd ticket"] = func([]string) { // gives away what it knows, and connects when it is told to end
		h := cipdConnect()
		fmt.Print(h.line)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
}

// answer answers a check as the package's name asks for.
func (h *cipdHost) answer(a *cipdv1.Admission) {
	code, message := codes.OK, ""
	switch what, _, _ := strings.Cut(a.GetPackage(), "/"); what {
	case "no":
		code, message = codes.PermissionDenied, fmt.Sprint(a.GetServiceUrl(), " ", a.GetInstance().GetHashAlgo(), " ",
			a.GetInstance().GetHexDigest(), " ", os.Getpid())
	case "later":
		code = codes.Unavailable
	case "hang":
		return
	case "crash":
		os.Exit(6)
	case "second":
		stream, err := h.admissions(1)
		if err == nil {
			err = stream.RecvMsg(&cipdv1.Admission{})
		}
		code, message = codes.NotFound, status.Code(err).String()
	case "unknown":
		err := errors.Join(h.resolve("4711", codes.OK, ""), h.resolve("4712", codes.Internal, "no"))
		code, message = codes.NotFound, fmt.Sprint("ignored: ", err, "; malformed: ", status.Code(h.resolve("x", codes.OK, "")))
	case "metadata":
		response := &cipdv1.ListMetadataResponse{}
		err := h.Invoke(h.ctx(), "/cipd.plugin.Host/ListMetadata", &cipdv1.ListMetadataRequest{
			ServiceUrl: a.GetServiceUrl(), Package: a.GetPackage(), Instance: a.GetInstance(), Keys: []string{"k"},
		}, response)
		code, message = codes.NotFound, fmt.Sprintf("%s %v", response.GetMetadata()[0].GetValue(), err)
	}
	if err := h.resolve(a.GetAdmissionId(), code, message); err != nil {
		panic(err)
	}
}

// callAll tries what the host of the tests has, and says what comes of it.
func (h *cipdHost) callAll() {
	say := func(what string, err error) { fmt.Println(what+":", status.Code(err)) }
	const digest = "da39a3ee5e6b4b0d3255bfef95601890afd80709"
	request := &cipdv1.ListMetadataRequest{
		ServiceUrl: "https://packages.example", Package: "p",
		Instance: &cipdv1.ObjectRef{HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA1, HexDigest: digest}, PageSize: 5, PageToken: "t",
	}
	list := func(ctx context.Context) (*cipdv1.ListMetadataResponse, error) {
		response := &cipdv1.ListMetadataResponse{}
		return response, h.Invoke(ctx, "/cipd.plugin.Host/ListMetadata", request, response)
	}
	response, err := list(h.ctx())
	say("metadata", err)
	fmt.Printf("%s %s\n", response.GetMetadata()[0].GetValue(), response.GetNextPageToken())
	request.ServiceUrl = ""
	_, err = list(h.ctx())
	say("no service", err)
	request.ServiceUrl = "https://other.example"
	_, err = list(h.ctx())
	say("other service", err)
	request.ServiceUrl, request.Instance = "https://packages.example", nil
	_, err = list(h.ctx())
	say("no instance", err)

	stream, err := h.admissions(1)
	if err == nil {
		err = stream.RecvMsg(&cipdv1.Admission{})
	}
	say("admissions not granted", err)
	say("resolve not granted", h.resolve("1", codes.OK, ""))
	say("no such service", h.Invoke(h.ctx(), "/no.Such/Method", &emptypb.Empty{}, &emptypb.Empty{}))
	say("no such method", h.Invoke(h.ctx(), "/cipd.plugin.Host/Method", &emptypb.Empty{}, &emptypb.Empty{}))
	say("the other host", h.Invoke(h.ctx(), "/patchbay.plugin.v1.Host/ListMetadata", &emptypb.Empty{}, &emptypb.Empty{}))
	_, err = list(context.Background())
	say("no ticket", err)
	_, err = list(as(h.ticket))
	say("the ticket elsewhere", err)
	for _, wrong := range []string{"", "1", "9." + strings.Repeat("A", 43), flip(h.ticket)} {
		_, err = list(cipdAs(wrong))
		say("wrong ticket", err)
	}
	for _, severity := range []string{"debug", "info", "warning", "error", "odd"} {
		err := h.Invoke(h.ctx(), "/cipd.plugin.Host/Log", &cipdv1.LogRequest{Severity: severity, Message: "a log of " + severity}, &emptypb.Empty{})
		if err != nil {
			fatal(err)
		}
	}
	request.Instance = &cipdv1.ObjectRef{HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA1, HexDigest: digest}
	_, err = list(h.ctx())
	say("after all", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// cipdCrowd is more than a plugin of Patchbay's own protocol may call at once.
const cipdCrowd = maxCalls + 36

// crowd makes many calls at once.
func (h *cipdHost) crowd() error {
	var callers sync.WaitGroup
	errs := make([]error, cipdCrowd)
	for i := range errs {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(h.ctx(), 20*time.Second)
			defer cancel()
			errs[i] = h.Invoke(ctx, "/cipd.plugin.Host/ListMetadata", &cipdv1.ListMetadataRequest{
				Package:  "p",
				Instance: &cipdv1.ObjectRef{HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA1, HexDigest: strings.Repeat("0", 40)},
			}, &cipdv1.ListMetadataResponse{})
		})
	}
	callers.Wait()
	return errors.Join(errs...)
}
