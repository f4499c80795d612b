package access

import (
	"errors"

	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/trust"
)

// Role is a set of permissions on the control socket. Each role includes the permissions of the roles before it.
type Role int

// The roles.
const (
	None Role = iota
	Read
	Operate
	Admin
)

func (r Role) String() string { return [...]string{"none", "read", "operate", "admin"}[r] }

var procedureRoles = map[string]Role{
	patchbayv1connect.ControlServiceGetVersionProcedure:         Read,
	patchbayv1connect.ControlServiceListPluginsProcedure:        Read,
	patchbayv1connect.ControlServiceStreamPluginsProcedure:      Read,
	patchbayv1connect.ControlServiceGetPluginProcedure:          Read,
	patchbayv1connect.ControlServiceWatchEventsProcedure:        Read,
	patchbayv1connect.ControlServiceWaitForPluginProcedure:      Read,
	patchbayv1connect.ControlServiceListConditionsProcedure:     Read,
	patchbayv1connect.ControlServiceListRefusalsProcedure:       Read,
	patchbayv1connect.ControlServiceGetConfigurationProcedure:   Read,
	patchbayv1connect.ControlServiceListLaunchedProcedure:       Read,
	patchbayv1connect.ControlServiceReadLogsProcedure:           Read,
	patchbayv1connect.ControlServiceLaunchPluginProcedure:       Operate,
	patchbayv1connect.ControlServiceStopPluginProcedure:         Operate,
	patchbayv1connect.ControlServiceRestartPluginProcedure:      Operate,
	patchbayv1connect.ControlServiceRetryPluginProcedure:        Operate,
	patchbayv1connect.ControlServiceReleaseNameProcedure:        Operate,
	patchbayv1connect.ControlServiceReloadProcedure:             Admin,
	patchbayv1connect.ControlServiceDiagnoseProcedure:           Admin,
	patchbayv1connect.DeviceServiceListDevicesProcedure:         Read,
	patchbayv1connect.DeviceServiceGetPreferredDevicesProcedure: Read,
	patchbayv1connect.DeviceServiceAllocateDevicesProcedure:     Operate,
	patchbayv1connect.DeviceServiceReleaseDevicesProcedure:      Operate,
	patchbayv1connect.FleetServiceListNodesProcedure:            Read,
	patchbayv1connect.FleetServiceListFleetPluginsProcedure:     Read,
	patchbayv1connect.FleetServiceListFleetVersionsProcedure:    Read,
	patchbayv1connect.FleetServiceWatchFleetProcedure:           Read,
	patchbayv1connect.FleetServiceWaitForFleetPluginProcedure:   Read,
	patchbayv1connect.FleetServiceListLocksProcedure:            Read,
	patchbayv1connect.FleetServiceDrainNodeProcedure:            Admin,
	patchbayv1connect.FleetServiceUncordonNodeProcedure:         Admin,
	patchbayv1connect.FleetServiceForgetNodeProcedure:           Admin,
}

// CallRole is the role that a call of any method of a plugin needs.
const CallRole = Operate

// RoleFor returns the role that a method of the control API needs; [Admin] for methods without an entry.
func RoleFor(procedure string) Role {
	if needed, ok := procedureRoles[procedure]; ok {
		return needed
	}
	return Admin
}

// Policy maps user and group IDs to roles.
type Policy struct {
	users, groups map[uint32]Role
	// byGroup is the role of the members of the control socket's group.
	byGroup Role
}

// NewPolicy returns the policy of the configured roles. An error joins one [trustjudge.FieldError] for each name that is not known.
func NewPolicy(r config.Roles) (Policy, error) {
	p := Policy{users: map[uint32]Role{}, groups: map[uint32]Role{}}
	var wrong []error
	for i, members := range []config.Members{r.Read, r.Operate, r.Admin} {
		granted := Read + Role(i)
		users, groups, unknown := trustjudge.Resolve(trust.Accounts(members), "control.roles."+granted.String())
		wrong = append(wrong, unknown...)
		for uid := range users {
			p.users[uid] = granted // overwrites lower roles
		}
		for gid := range groups {
			p.groups[gid] = granted
		}
	}
	if len(p.users)+len(p.groups) == 0 {
		p.byGroup = Operate
	}
	return p, errors.Join(wrong...)
}
