// Dradriver is a driver for dynamic resource allocation on the helper package that drivers for Kubernetes are built on. It announces itself
// as that package does it, and in place of the API server it has a fake client set, which knows the claims that are named on the command
// line. For each of them it prepares one device. It prints the registration statuses that it is told, and what it is asked to do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type config struct {
	name, registrarDir, dataDir string
	// device is the name of the device that is prepared for every claim.
	device string
	// claims are NAMESPACE/NAME/UID, separated by commas.
	claims string
	// uid makes the driver one that may run beside another instance of itself.
	uid string
	// health makes it offer the health service; v1 and v1beta1 are the versions of the service for claims.
	health, v1, v1beta1 bool
	// block makes it prepare nothing and not answer.
	block bool
}

func main() {
	var c config
	flag.StringVar(&c.name, "driver-name", "", "name of the driver")
	flag.StringVar(&c.registrarDir, "registrar-dir", "", "directory of the registration socket")
	flag.StringVar(&c.dataDir, "data-dir", "", "directory of the socket of the DRA service")
	flag.StringVar(&c.device, "device", "device-0", "name of the device that is prepared for every claim")
	flag.StringVar(&c.claims, "claims", "", "claims that exist, NAMESPACE/NAME/UID,...")
	flag.StringVar(&c.uid, "rolling-update-uid", "", "UID of this instance, with which it may run beside another one")
	flag.BoolVar(&c.health, "health", false, "offer the health service")
	flag.BoolVar(&c.v1, "v1", true, "offer v1 of the service for claims")
	flag.BoolVar(&c.v1beta1, "v1beta1", true, "offer v1beta1 of the service for claims")
	flag.BoolVar(&c.block, "block", false, "never answer when a claim is to be prepared")
	flag.Parse()
	if err := run(context.Background(), c); err != nil {
		fmt.Fprintln(os.Stderr, "dradriver:", err)
		os.Exit(1)
	}
}

// run serves until SIGTERM, the end of ctx, or the failure of a server.
func run(ctx context.Context, c config) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	claims, err := c.resourceClaims()
	if err != nil {
		return err
	}
	d := &driver{config: c, fail: cancel}
	var plugin kubeletplugin.DRAPlugin = d
	if c.health {
		plugin = &healthDriver{driver: d}
	}
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(c.name),
		kubeletplugin.KubeClient(fake.NewClientset(claims...)),
		kubeletplugin.RegistrarDirectoryPath(c.registrarDir),
		kubeletplugin.PluginDataDirectoryPath(c.dataDir),
		kubeletplugin.NodeV1(c.v1),
		kubeletplugin.NodeV1beta1(c.v1beta1),
		kubeletplugin.GRPCInterceptor(printStatus),
	}
	if c.uid != "" {
		options = append(options, kubeletplugin.RollingUpdate(types.UID(c.uid)))
	}
	if c.block {
		// The lock that keeps instances apart would be held forever.
		options = append(options, kubeletplugin.Serialize(false))
	}
	helper, err := kubeletplugin.Start(ctx, plugin, options...)
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

// resourceClaims returns the claims that exist. One that is allocated to nothing would not be prepared.
func (c config) resourceClaims() ([]runtime.Object, error) {
	var claims []runtime.Object
	for _, text := range strings.FieldsFunc(c.claims, func(r rune) bool { return r == ',' }) {
		parts := strings.Split(text, "/")
		if len(parts) != 3 {
			return nil, fmt.Errorf("%q is not NAMESPACE/NAME/UID", text)
		}
		claims = append(claims, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: parts[0], Name: parts[1], UID: types.UID(parts[2])},
			Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
		})
	}
	return claims, nil
}

// driver prepares one device for every claim, except for those whose name begins with "broken".
type driver struct {
	config
	fail context.CancelCauseFunc
}

func (d *driver) PrepareResourceClaims(
	ctx context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		fmt.Println("prepare", claim.UID)
		if d.block {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if strings.HasPrefix(claim.Name, "broken") {
			results[claim.UID] = kubeletplugin.PrepareResult{Err: errors.New("this claim is broken")}
			continue
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: []kubeletplugin.Device{{
			Requests: []string{"gpu"}, PoolName: "node-1", DeviceName: d.device, CDIDeviceIDs: []string{"example.com/gpu=" + d.device},
		}}}
	}
	return results, nil
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		fmt.Println("unprepare", claim.UID)
		results[claim.UID] = nil
	}
	return results, nil
}

func (d *driver) HandleError(_ context.Context, err error, msg string) {
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
