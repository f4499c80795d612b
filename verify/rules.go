package verify

import (
	"context"
	_ "embed" // rules.md
	"fmt"
	"slices"
	"strings"
	"sync"

	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

// Rule is one requirement for a plugin.
type Rule struct {
	// ID is the stable identifier: three letters that name the family, and three digits.
	ID string `json:"rule"`
	// Title is one line that is true of a plugin that passes.
	Title string `json:"title"`
	// Why is what goes wrong with hosts otherwise.
	Why string `json:"why"`
	// Remedy is what to change in the plugin.
	Remedy string `json:"remedy"`
	// Source is the specification that requires it; empty if the rule comes from experience with hosts and plugins.
	Source string `json:"source,omitempty"`
	// Type is the only plugin type to which the rule applies; empty for all.
	Type string `json:"type,omitempty"`
	// Command means that the rule stops, refuses or starts the plugin and so needs [Target].Command.
	Command bool `json:"command"`

	check func(ctx context.Context, s *subject) outcome
}

func (r Rule) family() string { return r.ID[:3] }

type outcome struct {
	status Status
	reason string
	remedy string // instead of the rule's
}

func pass(format string, args ...any) outcome {
	return outcome{status: Passed, reason: fmt.Sprintf(format, args...)}
}

func fail(format string, args ...any) outcome {
	return outcome{status: Failed, reason: fmt.Sprintf(format, args...)}
}

func warn(format string, args ...any) outcome {
	return outcome{status: Warned, reason: fmt.Sprintf(format, args...)}
}

func notApplicable(format string, args ...any) outcome {
	return outcome{status: NotApplicable, reason: fmt.Sprintf(format, args...)}
}

// ended is the panic of a check that ends before it returns an outcome.
type ended struct{ outcome }

// end ends the running check with an outcome. It does not return.
func end(o outcome) { panic(ended{o}) }

// require ends the check with a failure unless ok.
func require(ok bool, format string, args ...any) {
	if !ok {
		end(fail(format, args...))
	}
}

// requireCall ends the check with a failure if the call of a method failed.
func requireCall(method string, err error) {
	require(err == nil, "%s %s", method, brief(err))
}

// requireValid ends the check with a failure unless err is nil.
func requireValid(err error) { require(err == nil, "%v", err) }

// expect ends the check with a warning unless ok.
func expect(ok bool, format string, args ...any) {
	if !ok {
		end(warn(format, args...))
	}
}

// assume ends the check as not applicable unless ok.
func assume(ok bool, format string, args ...any) {
	if !ok {
		end(notApplicable(format, args...))
	}
}

// outcomeOf calls check and returns its outcome, also if the check ends early.
func outcomeOf(check func() outcome) (o outcome) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case ended:
			o = r.outcome
		default:
			panic(r)
		}
	}()
	return check()
}

// Rules returns all rules in the order in which they are checked.
func Rules() []Rule { return slices.Clone(rules()) }

// selectRules returns the rules in only, or all if it is empty, except those in skip. Both contain identifiers or families.
func selectRules(only, skip []string) ([]Rule, error) {
	rules := Rules()
	for _, name := range slices.Concat(only, skip) {
		if !slices.ContainsFunc(rules, func(r Rule) bool { return r.named(name) }) {
			return nil, fmt.Errorf("there is no rule or family %q; name an identifier such as REG001 or a family such as REG", name)
		}
	}
	in := func(names []string, r Rule) bool { return slices.ContainsFunc(names, r.named) }
	rules = slices.DeleteFunc(rules, func(r Rule) bool { return len(only) > 0 && !in(only, r) || in(skip, r) })
	if len(rules) == 0 {
		return nil, fmt.Errorf("no rule is left to check; name others, or skip fewer")
	}
	return rules, nil
}

func (r Rule) named(name string) bool {
	return strings.EqualFold(name, r.ID) || strings.EqualFold(name, r.family())
}

// checks are the checks in their order: the refusal may end the plugin, and the process rules do, so they are last.
var checks = []struct {
	rule  string
	check func(ctx context.Context, s *subject) outcome
}{
	{"ENV001", checkAlone},
	{"PRC001", checkStart},
	{"PRC002", checkAppearance},
	{"REG001", checkPlace},
	{"REG002", checkMode},
	{"REG003", checkOwner},
	{"REG004", checkDirectory},
	{"REG005", checkGetInfo},
	{"REG006", answering(checkType)},
	{"REG007", answering(checkName)},
	{"REG008", answering(checkVersions)},
	{"REG009", answering(checkGetInfoAgain)},
	{"REG010", answering(checkEndpoint)},
	{"SVC001", onEndpoint(checkHealth)},
	{"SVC002", onEndpoint(checkReflection)},
	{"CSI001", onEndpoint(checkPluginInfo)},
	{"CSI002", onEndpoint(checkPluginCapabilities)},
	{"CSI003", onEndpoint(checkProbe)},
	{"CSI004", onEndpoint(checkNodeCapabilities)},
	{"CSI005", onEndpoint(checkNodeInfo)},
	{"CSI006", onEndpoint(checkController)},
	{"CSI007", onEndpoint(checkTopology)},
	{"CSI008", onEndpoint(checkTopologyAnnounced)},
	{"CSI009", onEndpoint(checkExpansion)},
	{"CSI010", onEndpoint(checkManifest)},
	{"CSI011", onEndpoint(checkGroupController)},
	{"CSI012", onEndpoint(checkCapabilitiesTogether)},
	{"CSI015", onEndpoint(checkCapacity)},
	{"DEV001", onEndpoint(checkDeviceOptions)},
	{"DEV002", onEndpoint(checkDevices)},
	{"DEV003", onEndpoint(checkDevicesLast)},
	{"DEV004", onEndpoint(checkDevicesAgain)},
	{"DEV005", onEndpoint(checkLaterLists)},
	{"DEV010", onEndpoint(checkChange)},
	{"DEV006", onEndpoint(checkPreferred)},
	{"DEV007", onEndpoint(checkAllocate)},
	{"DEV008", onEndpoint(checkAllocateSick)},
	{"DEV009", onEndpoint(checkPreStart)},
	{"KUB001", checkRegistered},
	{"KUB002", checkRegistersAgain},
	{"DRA001", answersIn("NodePrepareResources", &drav1.NodePrepareResourcesRequest{}, &drav1.NodePrepareResourcesResponse{})},
	{"DRA002", answersIn("NodeUnprepareResources", &drav1.NodeUnprepareResourcesRequest{}, &drav1.NodeUnprepareResourcesResponse{})},
	{"DRA003", onEndpoint(checkByClaim)},
	{"DRA004", withClaims(checkPrepareAgain)},
	{"DRA005", withClaims(checkPreparedDevices)},
	{"DRA006", withClaims(checkUnprepareAgain)},
	{"DRA007", withClaims(checkRestartBetween)},
	{"DRA008", withClaims(checkErrorsByClaim)},
	{"DRA009", onEndpoint(checkRollOver)},
	{"DRA010", onEndpoint(checkDeviceHealth)},
	{"CON001", answering(checkCrowd)},
	{"CON002", answering(checkSilence)},
	{"CON003", answering(checkSlowReader)},
	{"CON004", answering(checkGarbage)},
	{"REG011", answering(checkTold)},
	{"REG012", answering(checkHostRestart)},
	{"REG013", answering(checkRefusal)},
	{"PRC003", checkTerminate},
	{"PRC004", checkSocketRemoved},
	{"PRC005", checkNothingLeft},
	{"PRC006", checkStale},
	{"PRC007", checkSecond},
}

//go:embed rules.md
var rulesText string

// rules returns the checks together with their descriptions in rules.md.
var rules = sync.OnceValue(func() (rules []Rule) {
	for _, c := range checks {
		_, text, _ := strings.Cut(rulesText, "#### "+c.rule+"\n")
		text, _, _ = strings.Cut(text, "\n#")
		between := func(begin, end string) string {
			_, rest, _ := strings.Cut(text, begin)
			found, _, _ := strings.Cut(rest, end)
			return found
		}
		rules = append(rules, Rule{
			ID: c.rule, Title: between("**", ".**"), Why: between("- Why: ", "\n"), Remedy: between("- What to change: ", ".\n"),
			Source: between("- Source: ", ".\n"), Type: between("For plugins of type ", "."), Command: strings.Contains(text, " Needs a command."),
			check: c.check,
		})
	}
	return rules
})
