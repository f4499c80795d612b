module github.com/patchbay-dev/patchbay/bench/ttrpc

go 1.26.0

require (
	github.com/containerd/ttrpc v1.2.10
	github.com/patchbay-dev/patchbay v0.0.0
	github.com/patchbay-dev/patchbay/bench v0.0.0
)

require (
	github.com/containerd/log v0.1.0 // indirect
	github.com/sirupsen/logrus v1.9.4 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	github.com/patchbay-dev/patchbay => ../..
	github.com/patchbay-dev/patchbay/bench => ..
)
