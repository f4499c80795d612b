// Command reference uses every name of the systems whose documented APIs this module offers, with the documented signatures. A test compiles
// it; it does not call them.
package main

import (
	"container/list"
	"context"
	"fmt"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// uses are the names of each system.
var uses = map[string]func(){
	"the kubelet's pluginmanager cache": useCache, "the kubelet's pluginwatcher": usePluginwatcher,
	"Nomad's dynamicplugins": useDynamicplugins, "CIPD's plugin host": useHost,
}

func main() { fmt.Println(len(uses), "systems") }

// fakeHandler has exactly the methods of the kubelet's handler.
type fakeHandler struct{}

func (fakeHandler) ValidatePlugin(string, string, []string) error { return nil }

func (fakeHandler) RegisterPlugin(string, string, []string, *time.Duration) error { return nil }

func (fakeHandler) DeRegisterPlugin(string) {}

func useCache() {
	var _ cache.PluginHandler = fakeHandler{}
	desired, actual := cache.NewDesiredStateOfWorld(), cache.NewActualStateOfWorld()
	_ = []cache.DesiredStateOfWorld{desired}
	_ = []cache.ActualStateOfWorld{actual}
	_ = desired.AddOrUpdatePlugin("/p.sock")
	desired.RemovePlugin("/p.sock")
	_ = desired.PluginExists("/p.sock")
	var all []cache.PluginInfo = desired.GetPluginsToRegister()
	all = append(all, actual.GetRegisteredPlugins()...)
	info := cache.PluginInfo{SocketPath: "/p.sock", Timestamp: time.Now(), Handler: fakeHandler{}, Name: "p"}
	_ = info == all[0]
	_ = actual.AddPlugin(info)
	actual.RemovePlugin("/p.sock")
	_ = actual.PluginExistsWithCorrectTimestamp(info)
	var simpleErr, detailedErr error = info.GenerateError("prefix", nil)
	detailedErr = info.GenerateErrorDetailed("prefix", simpleErr)
	_ = detailedErr
	var simple, detailed string = info.GenerateMsg("prefix", "suffix")
	detailed = info.GenerateMsgDetailed(simple, detailed)
	_ = detailed
}

// fakeOlderHandler has exactly the methods of the handler of the kubelet's pluginwatcher of March 2019.
type fakeOlderHandler struct{}

func (fakeOlderHandler) ValidatePlugin(string, string, []string, bool) error { return nil }

func (fakeOlderHandler) RegisterPlugin(string, string, []string) error { return nil }

func (fakeOlderHandler) DeRegisterPlugin(string) {}

func usePluginwatcher() {
	var w *pluginwatcher.Watcher = pluginwatcher.NewWatcher("/dir", "/deprecated")
	var h pluginwatcher.PluginHandler = fakeOlderHandler{}
	w.AddHandler("CSIPlugin", h)
	w.AddHandler("DevicePlugin", pluginwatcher.NewExampleHandler([]string{"v1beta1"}, true))
	var _ error = w.Start()
	var _ error = w.Stop()
	p := pluginwatcher.NewExamplePlugin()
	p = pluginwatcher.NewTestExamplePlugin("name", "type", "/endpoint", "v1beta1", "v1beta2")
	var _ error = p.Serve("v1beta1")
	var _ error = p.Stop()
}

// fakeStorage has exactly the methods of Nomad's storage.
type fakeStorage struct{}

func (fakeStorage) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	plugins := list.New()
	plugins.PushBack(&dynamicplugins.PluginInfo{})
	return &dynamicplugins.RegistryState{Plugins: map[string]map[string]*list.List{"type": {"name": plugins}}}, nil
}

func (fakeStorage) PutDynamicPluginRegistryState(*dynamicplugins.RegistryState) error { return nil }

func useDynamicplugins() {
	const _, _ = dynamicplugins.PluginTypeCSIController, dynamicplugins.PluginTypeCSINode
	_ = []dynamicplugins.EventType{dynamicplugins.EventTypeRegistered, dynamicplugins.EventTypeDeregistered}
	var dispenser dynamicplugins.PluginDispenser = func(*dynamicplugins.PluginInfo) (any, error) { return nil, nil }
	var storage dynamicplugins.StateStorage = fakeStorage{}
	var r dynamicplugins.Registry = dynamicplugins.NewRegistry(storage, map[string]dynamicplugins.PluginDispenser{"type": dispenser})
	info := &dynamicplugins.PluginInfo{
		Name: "name", Type: "type", Version: "1.0.0", AllocID: "alloc", Options: map[string]string{"key": "value"},
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/p.sock"},
	}
	_ = r.RegisterPlugin(info)
	_ = r.DeregisterPlugin("type", "name", "alloc")
	_ = append(r.ListPlugins("type"), info)
	_, _ = r.DispensePlugin("type", "name")
	info, _ = r.PluginForAlloc("type", "name", "alloc")
	var events <-chan *dynamicplugins.PluginUpdateEvent = r.PluginsUpdatedCh(context.Background(), "type")
	event := <-events
	_, _ = event.EventType == dynamicplugins.EventTypeRegistered, event.Info == info
	r.StubDispenserForType("type", dispenser)
	r.Shutdown()
}

func useHost() {
	ctx := context.Background()
	h := &host.Host{PluginsContext: ctx}
	var asHost plugin.Host = h
	var _ error = asHost.Initialize(plugin.Config{ServiceURL: "https://example.com"})
	var _ plugin.Config = asHost.Config()
	var admission plugin.AdmissionPlugin
	admission, _ = asHost.NewAdmissionPlugin([]string{"/bin/admission"})
	asHost.Close(ctx)
	var p *host.AdmissionPlugin = host.NewAdmissionPlugin(ctx, h, []string{"/bin/admission"})
	var promise plugin.Promise = p.CheckAdmission(plugin.Pin{PackageName: "package", InstanceID: "instance"})
	p.ClearCache()
	p.Close(ctx)
	_ = admission.CheckAdmission(plugin.Pin{}).Wait(ctx) == host.ErrAborted
	_ = []any{promise.(*host.Promise)}
	var process *host.PluginProcess
	process, _ = h.LaunchPlugin(ctx, []string{"/bin/plugin"}, &host.Controller{Admissions: nil})
	<-process.Done()
	_ = process.Err() == host.ErrTerminated
	var _ error = process.Terminate(ctx)
}
