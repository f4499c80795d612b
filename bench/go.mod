module github.com/patchbay-dev/patchbay/bench

go 1.26.0

require (
	github.com/fsnotify/fsnotify v1.10.1
	github.com/patchbay-dev/patchbay v0.0.0
	go.etcd.io/bbolt v1.5.0
	golang.org/x/net v0.62.0
	golang.org/x/sys v0.49.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
	k8s.io/kubelet v0.36.3
)

require (
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
)

replace github.com/patchbay-dev/patchbay => ../
