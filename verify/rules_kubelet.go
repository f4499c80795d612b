package verify

import (
	"context"
	"fmt"
	"slices"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// hesitation is how many times as long as its start a plugin may take to register again: some let the kubelet settle before.
const hesitation = 3

func kubeletRules() []Rule {
	rules := []Rule{
		{
			ID: "KUB001", Title: "The plugin registers on kubelet.sock with what the kubelet accepts",
			Why: "The kubelet refuses a registration with another version, a malformed resource name or an endpoint that is a path.",
			Remedy: "call Register with version v1beta1, an extended resource such as example.com/gpu, and the name of the socket without its " +
				"directory",
			check: checkRegistered,
		},
		{
			ID: "KUB002", Title: "The plugin registers again when the kubelet restarts",
			Why: "A kubelet that starts removes the sockets of device plugins and knows none of them. The node has no devices of the resource " +
				"until the plugin serves and registers again.",
			Remedy: "watch the directory of kubelet.sock; when kubelet.sock is made anew, make the plugin's socket again and call Register",
			check:  checkRegistersAgain,
		},
	}
	for i := range rules {
		rules[i].Type, rules[i].Command = registerapi.DevicePlugin, true
	}
	return rules
}

// asksOrTells are the rules about a host that asks and tells the plugin, which one that registers by itself is not.
func asksOrTells() []string {
	return []string{"REG005", "REG006", "REG009", "REG011", "REG012", "REG013"}
}

// fits says why a rule is not for the way in which the plugin registers, if it is not.
func (s *subject) fits(rule Rule) outcome {
	switch {
	case rule.Family() == "KUB" && !s.registersItself():
		return notApplicable("it is for device plugins that register on %s; verify the command with --kubelet-sock", kubeletSocket)
	case s.registersItself() && slices.Contains(asksOrTells(), rule.ID):
		return notApplicable("the plugin registers on %s, and is neither asked nor told", kubeletSocket)
	}
	return outcome{}
}

func checkRegistered(_ context.Context, s *subject) outcome {
	request := s.appeared.request
	s.trace.add("(the plugin called Register)", show(request))
	if err := checkRegister(request); err != nil {
		return fail("%v", err)
	}
	return pass("registered is %s at %s", foreign.Quote(request.ResourceName), foreign.Quote(request.Endpoint))
}

func checkRegistersAgain(ctx context.Context, s *subject) outcome {
	run := s.run
	s.trace.add("remove the plugin's socket, and make kubelet.sock anew", "")
	if err := s.bench.restartKubelet(); err != nil {
		return notApplicable("%v", err)
	}
	a, err := s.bench.awaitRegister(ctx, run, hesitation*s.options.StartTimeout)
	if err != nil {
		s.run = nil
		if run.hasEnded() {
			return warn("the plugin exits, and has to be started again: %s", run.end())
		}
		_ = run.kill() // so that the next rules find one that serves
		s.bench.sweep()
		return fail("%s", clip(err.Error()))
	}
	s.path = a.path
	if was := s.appeared.request.ResourceName; a.request.ResourceName != was {
		return fail("%s", fmt.Sprintf("the plugin registered %s, and now %s", foreign.Quote(was), foreign.Quote(a.request.ResourceName)))
	}
	return pass("registered again at %s", foreign.Quote(a.request.Endpoint))
}
