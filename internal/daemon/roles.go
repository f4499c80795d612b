package daemon

import (
	"errors"

	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/trust"
)

// role says how much a caller of the control socket may do. Each includes those before it.
type role int

const (
	roleNone role = iota
	roleRead
	roleOperate
	roleAdmin
)

func (r role) String() string { return [...]string{"none", "read", "operate", "admin"}[r] }

var procedureRoles = map[string]role{
	patchbayv1connect.ControlServiceGetVersionProcedure:         roleRead,
	patchbayv1connect.ControlServiceListPluginsProcedure:        roleRead,
	patchbayv1connect.ControlServiceStreamPluginsProcedure:      roleRead,
	patchbayv1connect.ControlServiceGetPluginProcedure:          roleRead,
	patchbayv1connect.ControlServiceWatchEventsProcedure:        roleRead,
	patchbayv1connect.ControlServiceWaitForPluginProcedure:      roleRead,
	patchbayv1connect.ControlServiceListConditionsProcedure:     roleRead,
	patchbayv1connect.ControlServiceListRefusalsProcedure:       roleRead,
	patchbayv1connect.ControlServiceGetConfigurationProcedure:   roleRead,
	patchbayv1connect.ControlServiceListLaunchedProcedure:       roleRead,
	patchbayv1connect.ControlServiceReadLogsProcedure:           roleRead,
	patchbayv1connect.ControlServiceLaunchPluginProcedure:       roleOperate,
	patchbayv1connect.ControlServiceStopPluginProcedure:         roleOperate,
	patchbayv1connect.ControlServiceRestartPluginProcedure:      roleOperate,
	patchbayv1connect.ControlServiceRetryPluginProcedure:        roleOperate,
	patchbayv1connect.ControlServiceReleaseNameProcedure:        roleOperate,
	patchbayv1connect.ControlServiceReloadProcedure:             roleAdmin,
	patchbayv1connect.ControlServiceDiagnoseProcedure:           roleAdmin,
	patchbayv1connect.DeviceServiceListDevicesProcedure:         roleRead,
	patchbayv1connect.DeviceServiceGetPreferredDevicesProcedure: roleRead,
	patchbayv1connect.DeviceServiceAllocateDevicesProcedure:     roleOperate,
	patchbayv1connect.DeviceServiceReleaseDevicesProcedure:      roleOperate,
	patchbayv1connect.FleetServiceListNodesProcedure:            roleRead,
	patchbayv1connect.FleetServiceListFleetPluginsProcedure:     roleRead,
	patchbayv1connect.FleetServiceListFleetVersionsProcedure:    roleRead,
	patchbayv1connect.FleetServiceWatchFleetProcedure:           roleRead,
	patchbayv1connect.FleetServiceWaitForFleetPluginProcedure:   roleRead,
	patchbayv1connect.FleetServiceListLocksProcedure:            roleRead,
	patchbayv1connect.FleetServiceDrainNodeProcedure:            roleAdmin,
	patchbayv1connect.FleetServiceUncordonNodeProcedure:         roleAdmin,
	patchbayv1connect.FleetServiceForgetNodeProcedure:           roleAdmin,
}

// callRole is the role that a call to a plugin needs, of whatever method: what that does, only the plugin knows.
const callRole = roleOperate

// roleFor returns the role that a method needs. One that has none is for administrators.
func roleFor(procedure string) role {
	if needed, ok := procedureRoles[procedure]; ok {
		return needed
	}
	return roleAdmin
}

// policy is who has which role, by number.
type policy struct {
	users, groups map[uint32]role
	// byGroup is the role of the members of the socket's group.
	byGroup role
}

// policyOf looks up the names. An error joins one [trust.FieldError] for each that is not known.
func policyOf(r config.Roles) (policy, error) {
	p := policy{users: map[uint32]role{}, groups: map[uint32]role{}}
	var wrong []error
	for i, members := range []config.Members{r.Read, r.Operate, r.Admin} {
		granted := roleRead + role(i)
		users, groups, unknown := trust.Accounts(members).Resolve("control.roles." + granted.String())
		wrong = append(wrong, unknown...)
		for uid := range users {
			p.users[uid] = granted // which is higher than those before
		}
		for gid := range groups {
			p.groups[gid] = granted
		}
	}
	if len(p.users)+len(p.groups) == 0 {
		p.byGroup = roleOperate
	}
	return p, errors.Join(wrong...)
}
