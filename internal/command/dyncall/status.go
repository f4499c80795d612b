package dyncall

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	_ "google.golang.org/genproto/googleapis/rpc/errdetails" // the usual types of details
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
)

// How much of the details of an error is shown.
const (
	maxDetails     = 8
	maxDetailBytes = 2000
)

// StatusError is the error with which a server, or what is on the way to it, ended a call.
type StatusError struct {
	// Method is SERVICE/METHOD.
	Method string
	Code   codes.Code
	// Message is what the server says about it. It may hold any characters.
	Message string
	// Details are what the server added, as JSON.
	Details []string
	// Late says that the call ended because the deadline of its context passed.
	Late bool

	err error
}

func newStatusError(types resolver, method string, err error) *StatusError {
	st, _ := status.FromError(err) // anything else is Unknown, with the text of the error
	e := &StatusError{Method: method, Code: st.Code(), Message: st.Message(), err: err}
	details := st.Proto().GetDetails()
	for _, detail := range details[:min(len(details), maxDetails)] {
		e.Details = append(e.Details, sayDetail(types, detail))
	}
	if more := len(details) - maxDetails; more > 0 {
		e.Details = append(e.Details, fmt.Sprintf("and %d more", more))
	}
	return e
}

func sayDetail(types resolver, detail *anypb.Any) string {
	text, err := protojson.MarshalOptions{Resolver: types}.Marshal(detail)
	var compact bytes.Buffer
	if err != nil || json.Compact(&compact, text) != nil {
		return fmt.Sprintf("%.200s (%d bytes)", detail.GetTypeUrl(), len(detail.GetValue()))
	}
	if compact.Len() > maxDetailBytes {
		return fmt.Sprintf("%s… (%d bytes)", compact.Bytes()[:maxDetailBytes], compact.Len())
	}
	return compact.String()
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("cannot call %s: %v", e.Method, e.Code)
	if e.Message != "" {
		text += ": " + e.Message
	}
	if len(e.Details) > 0 {
		text += "; details: " + strings.Join(e.Details, ", ")
	}
	return text
}

// Unwrap returns the error of the gRPC library.
func (e *StatusError) Unwrap() error { return e.err }
