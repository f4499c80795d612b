package resolver

import (
	"slices"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
)

// plugins are plugins that a test lays down.
type plugins struct {
	Runtime

	all []plugin.Status
}

func (p plugins) Plugins() []plugin.Status { return p.all }

func (p plugins) PluginsNamed(name string) []plugin.Status {
	return slices.DeleteFunc(slices.Clone(p.all), func(s plugin.Status) bool { return s.Name != name })
}

type catalogue []plugin.LaunchStatus

func (c catalogue) Plugins() []plugin.LaunchStatus { return c }

// TestUnhealthy: a launched plugin that says that it does not serve, or does not answer, is known by its roles, too.
func TestUnhealthy(t *testing.T) {
	l := catalogue{
		{Socket: "/well", ServingStatus: "serving"}, {Socket: "/sick", ServingStatus: "not-serving"},
		{Socket: "/silent", ServingStatus: "unresponsive"},
		{Socket: "/none", ServingStatus: "not-offered"}, {ServingStatus: "not-serving"},
	}
	sick := plugin.Status{Type: "T", Name: "sick", Current: true, Launch: &l[1]}
	sick.Registration.Roles = []string{"role"}
	old := plugin.Status{Type: "T", Name: "well", Launch: &l[2]} // superseded
	known := plugins{all: []plugin.Status{sick, old, {Type: "T", Name: "well", Launch: &l[0], Current: true}}}
	for _, test := range []struct {
		ptype, name string
		want        bool
	}{{"T", "sick", true}, {"role", "sick", true}, {"other", "sick", false}, {"T", "well", false}, {"T", "none", false}} {
		if got := New(known, l, nil, nil).IsUnhealthy(test.ptype, test.name); got != test.want {
			t.Errorf("%s/%s: %t", test.ptype, test.name, got)
		}
	}
}
