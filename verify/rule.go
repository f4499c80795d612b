package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Rule is one thing that a plugin has to do.
type Rule struct {
	// ID is the stable identifier: three letters that name the family, and three digits.
	ID string `json:"rule"`
	// Title says in one line what holds when the rule passes.
	Title string `json:"title"`
	// Why says what goes wrong on hosts otherwise.
	Why string `json:"why"`
	// Remedy says what to change in the plugin.
	Remedy string `json:"remedy"`
	// Type is the only plugin type that the rule is for; empty for all.
	Type string `json:"type,omitempty"`
	// Command says that the rule ends, refuses or starts the plugin, so that it needs [Target].Command.
	Command bool `json:"command"`

	check func(ctx context.Context, s *subject) outcome
}

// Family returns the letters that the identifier begins with.
func (r Rule) Family() string { return r.ID[:3] }

// outcome is what a check found.
type outcome struct {
	status Status
	reason string
	remedy string // in the stead of the rule's
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

// Rules returns all rules in the order in which they are checked.
func Rules() []Rule { return slices.Clone(rules) }

// selectRules returns the rules that only names, without those that skip names, by identifier or family.
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
	return strings.EqualFold(name, r.ID) || strings.EqualFold(name, r.Family())
}
