package controlapi

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"slices"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// diagnosePart is how many bytes of a file one message has.
const diagnosePart = 1 << 20

func (c *API) Diagnose(
	_ context.Context, _ *patchbayv1.DiagnoseRequest, stream *connect.ServerStream[patchbayv1.DiagnoseResponse],
) error {
	for _, file := range []struct {
		name  string
		write func(*bytes.Buffer) error
	}{
		{"metrics.txt", c.Metrics.WriteText},
		{"goroutines.txt", func(b *bytes.Buffer) error { return pprof.Lookup("goroutine").WriteTo(b, 1) }},
		{"heap.pprof", func(b *bytes.Buffer) error { return pprof.Lookup("heap").WriteTo(b, 0) }},
	} {
		var content bytes.Buffer
		if err := file.write(&content); err != nil {
			fmt.Fprintf(&content, "\ncannot write %s: %v\n", file.name, err) // the other files may still be useful
		}
		for part := range slices.Chunk(content.Bytes(), diagnosePart) {
			if err := stream.Send(&patchbayv1.DiagnoseResponse{Name: file.name, Content: part}); err != nil {
				return err
			}
		}
	}
	return nil
}
