package verify

import (
	"context"

	"google.golang.org/grpc"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/discover/registration"
)

// asker is a connection on which the plugin's socket is asked something that has no effect.
type asker interface {
	ask(ctx context.Context) error
	Close() error
}

// question returns the path of the method that askers call: one that each plugin has on its socket.
func (s *subject) question() string {
	if s.registersItself() {
		return deviceapi.DevicePlugin_GetDevicePluginOptions_FullMethodName
	}
	return registerapi.Registration_GetInfo_FullMethodName
}

// openAsker connects to the plugin.
func (s *subject) openAsker(ctx context.Context) (asker, error) {
	if s.registersItself() {
		conn, err := s.dial(s.path)
		if err != nil {
			return nil, err
		}
		conn.Connect()
		return optionsAsker{conn}, nil
	}
	client, err := registration.Dial(ctx, s.path)
	if err != nil {
		return nil, err
	}
	return infoAsker{client}, nil
}

// try connects to the plugin and asks it once.
func (s *subject) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.options.CallTimeout)
	defer cancel()
	a, err := s.openAsker(ctx)
	if err != nil {
		return err
	}
	defer a.Close()
	return a.ask(ctx)
}

type infoAsker struct{ *registration.Client }

func (a infoAsker) ask(ctx context.Context) error {
	_, err := a.GetInfo(ctx)
	return err
}

type optionsAsker struct{ *grpc.ClientConn }

func (a optionsAsker) ask(ctx context.Context) error {
	_, err := deviceapi.NewDevicePluginClient(a.ClientConn).GetDevicePluginOptions(ctx, &deviceapi.Empty{})
	return err
}
