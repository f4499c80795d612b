// Dradriver is a driver for dynamic resource allocation without devices, on the helper package that drivers for Kubernetes are built on.
// It announces itself as that package does it, in place of the API server it has a fake client set, and it prints the registration
// statuses that it is told. It prepares no resources.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	name := flag.String("driver-name", "", "name of the driver")
	registrarDir := flag.String("registrar-dir", "", "directory of the registration socket")
	dataDir := flag.String("data-dir", "", "directory of the socket of the DRA service")
	flag.Parse()
	if err := run(context.Background(), *name, *registrarDir, *dataDir); err != nil {
		fmt.Fprintln(os.Stderr, "dradriver:", err)
		os.Exit(1)
	}
}

// run serves until SIGTERM, the end of ctx, or the failure of a server.
func run(ctx context.Context, name, registrarDir, dataDir string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	helper, err := kubeletplugin.Start(ctx, driver{cancel},
		kubeletplugin.DriverName(name),
		kubeletplugin.KubeClient(fake.NewClientset()),
		kubeletplugin.RegistrarDirectoryPath(registrarDir),
		kubeletplugin.PluginDataDirectoryPath(dataDir),
		kubeletplugin.GRPCInterceptor(printStatus),
	)
	if err != nil {
		return err
	}
	<-ctx.Done()
	helper.Stop()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// driver has no devices: there is nothing to prepare.
type driver struct{ fail context.CancelCauseFunc }

func (driver) PrepareResourceClaims(
	context.Context, []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	return nil, errors.New("this driver has no devices")
}

func (driver) UnprepareResourceClaims(context.Context, []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	return nil, errors.New("this driver has no devices")
}

func (d driver) HandleError(_ context.Context, err error, msg string) {
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.fail(fmt.Errorf("%s: %w", msg, err))
	}
}

// printStatus prints each registration status before the helper sees it.
func printStatus(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if status, ok := request.(*registerapi.RegistrationStatus); ok {
		fmt.Printf("told registered=%t error=%q\n", status.PluginRegistered, status.Error)
	}
	return next(ctx, request)
}
