//go:build never

package main

// What the tests compile is required by this module too.
import (
	_ "github.com/golang/protobuf/ptypes/empty"
	_ "github.com/hashicorp/go-plugin/test/grpc"
	_ "github.com/jhump/protoreflect/grpcreflect"
	_ "github.com/patchbay-dev/patchbay/host/goplugin/pluginclient"
)
