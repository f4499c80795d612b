package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// admissionEnv makes the test binary an admission plugin of CIPD, which refuses plugins whose names begin with "no", as long as the file
// does not exist that the variable names.
const admissionEnv = "PATCHBAY_TEST_ADMISSION"

func TestMain(m *testing.M) {
	if file := os.Getenv(admissionEnv); file != "" {
		fmt.Println(serveAdmissions(file))
		os.Exit(0)
	}
	leaktest.Main(m)
}

func serveAdmissions(file string) error {
	var handshake struct {
		Port   int
		Ticket string
	}
	line, err := bufio.NewReader(os.Stdin).ReadBytes('\n')
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(line))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(&handshake)
	}
	if err != nil {
		_, _ = io.Copy(io.Discard, os.Stdin) // CIPD's own end no sooner, and write nothing before
		return err
	}
	host, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", handshake.Port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer host.Close()
	ctx := grpcmetadata.AppendToOutgoingContext(context.Background(), "x-plugin-ticket", handshake.Ticket)
	stream, err := host.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/cipd.plugin.Admissions/ListAdmissions")
	if err == nil {
		err = stream.SendMsg(&cipdv1.ListAdmissionsRequest{ProtocolVersion: 1})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	for err == nil {
		var check cipdv1.Admission
		if err = stream.RecvMsg(&check); err != nil {
			break
		}
		// As CIPD's own do, it looks at the metadata of every package before it decides.
		known := &cipdv1.ListMetadataResponse{}
		request := &cipdv1.ListMetadataRequest{ServiceUrl: check.GetServiceUrl(), Package: check.GetPackage(), Instance: check.GetInstance()}
		answer := &cipdv1.ResolveAdmissionRequest{AdmissionId: check.GetAdmissionId()}
		if err := host.Invoke(ctx, "/cipd.plugin.Host/ListMetadata", request, known); err != nil || len(known.GetMetadata()) > 0 {
			answer.Status = &cipdv1.Status{Code: int32(codes.PermissionDenied), Message: fmt.Sprintf("its metadata is %v, %v", known, err)}
		}
		if _, serr := os.Stat(file); serr != nil && strings.HasPrefix(check.GetPackage(), "no") {
			answer.Status = &cipdv1.Status{Code: int32(codes.PermissionDenied), Message: "it is not on the list"}
		}
		err = host.Invoke(ctx, "/cipd.plugin.Admissions/ResolveAdmission", answer, &emptypb.Empty{})
	}
	return err
}
