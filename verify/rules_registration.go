package verify

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/foreign"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// kubeletPatience is how long the kubelet waits for GetInfo, which cannot be configured there.
const kubeletPatience = time.Second

func registrationRules() []Rule {
	return []Rule{
		{
			ID: "REG005", Title: "GetInfo answers in time",
			Why:    "GetInfo is how a host learns who the plugin is; the kubelet waits one second for it.",
			Remedy: "serve pluginregistration.Registration on the socket, and answer from memory: do slow work before the socket is made",
			check:  checkGetInfo,
		},
		{
			ID: "REG006", Title: "The type is a word that hosts can have a handler for",
			Why:    "Hosts choose the handler by the type; in TYPE/NAME the type ends at the first slash.",
			Remedy: "set PluginInfo.type, for example to CSIPlugin, DevicePlugin, DRAPlugin or the type that your host takes",
			check:  checkType,
		},
		{
			ID: "REG007", Title: "The name is one that the type allows",
			Why: "Hosts refuse other names: CSI wants a domain name of at most 63 characters, device plugins the name of an extended resource, " +
				"DRA a lower-case DNS subdomain of at most 63.",
			Remedy: "set PluginInfo.name accordingly, for example hostpath.csi.k8s.io, example.com/gpu or gpu.example.com",
			check:  checkName,
		},
		{
			ID: "REG008", Title: "The versions are those that the type's hosts support",
			Why: "Hosts talk to the plugin by a version that both know: CSI 1.x, v1beta1 of device plugins, the names of the services of DRA. " +
				"What is not listed is not used.",
			Remedy: "set PluginInfo.supported_versions: for example 1.9.0 for CSI, v1beta1 for device plugins, v1.DRAPlugin for DRA",
			check:  checkVersions,
		},
		{
			ID: "REG009", Title: "GetInfo says the same again",
			Why:    "Hosts ask again after each restart, and take another answer for another plugin.",
			Remedy: "answer with the same PluginInfo for as long as the socket is there",
			check:  checkGetInfoAgain,
		},
		{
			ID: "REG010", Title: "The endpoint can be reached",
			Why: "The plugin's services are called there. Hosts run in other directories, so a relative path leads elsewhere.",
			Remedy: "set PluginInfo.endpoint to the absolute path of a socket on which a server accepts before the registration socket is made, " +
				"or leave it empty",
			check: checkEndpoint,
		},
	}
}

func checkGetInfo(ctx context.Context, s *subject) outcome {
	s.asked = nil // ask now, so that the call is in the trace
	a := s.ask(ctx)
	switch {
	case a.err != nil:
		s.told = true
		return fail("GetInfo %s", clip(brief(a.err)))
	case a.after > kubeletPatience:
		return warn("GetInfo took %v; the kubelet waits %v", a.after.Round(time.Millisecond), kubeletPatience)
	}
	return pass("type %s, name %s", foreign.Quote(a.info.Type), foreign.Quote(a.info.Name))
}

// tellAnnounced adds to the trace what the plugin announced when it was asked first.
func (s *subject) tellAnnounced(what string) {
	s.trace.add("pluginregistration.Registration/GetInfo {}", what)
}

func checkType(ctx context.Context, s *subject) outcome {
	info, o := s.info(ctx)
	if info == nil {
		return o
	}
	s.tellAnnounced("type " + foreign.Quote(info.Type))
	if err := foreign.Name("the type", info.Type, maxText); err != nil {
		return fail("%v", err)
	}
	if !foreign.IsType(info.Type) {
		return fail("the type %s has a slash", foreign.Quote(info.Type))
	}
	return pass("the type is %s", foreign.Quote(info.Type))
}

func checkName(ctx context.Context, s *subject) outcome {
	info, o := s.info(ctx)
	if info == nil {
		return o
	}
	s.tellAnnounced("name " + foreign.Quote(info.Name))
	if err := foreign.Name("the name", info.Name, maxText); err != nil {
		return fail("%v", err)
	}
	if err := foreign.PluginName(info.Type, info.Name); err != nil {
		return fail("%v", err)
	}
	return pass("the name is %s", foreign.Quote(info.Name))
}

func checkVersions(ctx context.Context, s *subject) outcome {
	info, o := s.info(ctx)
	if info == nil {
		return o
	}
	versions := info.SupportedVersions
	s.tellAnnounced("supported_versions " + foreign.QuoteAll(versions))
	if len(versions) > maxVersions {
		return fail("%d versions are announced, and hosts accept %d at most", len(versions), maxVersions)
	}
	for i, v := range versions {
		if err := foreign.Name("version "+strconv.Itoa(i+1), v, maxText); err != nil {
			return fail("%v", err)
		}
		if slices.Contains(versions[:i], v) {
			return warn("version %s is announced twice", foreign.Quote(v))
		}
	}
	switch info.Type {
	case registerapi.CSIPlugin:
		return judgeCSIVersions(versions)
	case registerapi.DevicePlugin:
		return judgeKnown(versions, deviceVersions())
	case registerapi.DRAPlugin:
		return judgeKnown(versions, draServiceNames())
	}
	if len(versions) == 0 {
		return pass("none is announced, and the type %s demands none", foreign.Quote(info.Type))
	}
	return pass("announced are %s", foreign.QuoteAll(versions))
}

func judgeCSIVersions(versions []string) outcome {
	var strange []string
	found := false
	for _, v := range versions {
		m := csiVersion.FindStringSubmatch(v)
		switch {
		case m == nil:
			strange = append(strange, v)
		case m[1] == "1":
			found = true
		}
	}
	switch {
	case !found:
		return fail("none of the announced versions %s is 1.x, the only ones that hosts support", foreign.QuoteAll(versions))
	case len(strange) > 0:
		return warn("%s are no versions, and are passed over", foreign.QuoteAll(strange))
	}
	return pass("announced are %s", foreign.QuoteAll(versions))
}

// judgeKnown wants one of the announced versions to be known.
func judgeKnown(versions, known []string) outcome {
	var strange []string
	for _, v := range versions {
		if !slices.Contains(known, v) {
			strange = append(strange, v)
		}
	}
	switch {
	case len(strange) == len(versions):
		return fail("none of the announced versions %s is one of %s", foreign.QuoteAll(versions), foreign.QuoteAll(known))
	case len(strange) > 0:
		return warn("%s are not known for this type, and are passed over", foreign.QuoteAll(strange))
	}
	return pass("announced are %s", foreign.QuoteAll(versions))
}

func checkGetInfoAgain(ctx context.Context, s *subject) outcome {
	first, o := s.info(ctx)
	if first == nil {
		return o
	}
	again, err := s.getInfo(ctx)
	switch {
	case err != nil:
		return fail("a later GetInfo %s", clip(brief(err)))
	case !proto.Equal(first, again):
		s.trace.add("(the first GetInfo)", show(first))
		return fail("a later GetInfo says something else than the first one")
	}
	return pass("two answers are equal")
}

func checkEndpoint(ctx context.Context, s *subject) outcome {
	info, o := s.info(ctx)
	if info == nil {
		return o
	}
	if info.Endpoint == "" {
		return pass("the endpoint is empty, so it is the registration socket itself")
	}
	s.tellAnnounced("endpoint " + foreign.Quote(info.Endpoint))
	path, err := s.endpoint(info)
	if err != nil {
		return fail("%v: %s", err, foreign.Quote(info.Endpoint))
	}
	if _, err := sock.Probe(ctx, path); err != nil {
		return fail("nobody can be reached at the endpoint: %s", clip(err.Error()))
	}
	if clean := filepath.Clean(path); clean != path {
		return warn("the endpoint %s is another way to write %s; hosts that compare paths see two", foreign.Quote(path), foreign.Quote(clean))
	}
	return pass("a process accepts at %s", foreign.Quote(path))
}
