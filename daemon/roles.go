package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"os/user"
	"strconv"

	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/command/config"
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

// procedureRoles are the roles that the methods of the control API need.
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

// policyOf looks up the names. An error joins one [FieldError] for each that is not known.
func policyOf(r config.Roles) (policy, error) {
	p := policy{users: map[uint32]role{}, groups: map[uint32]role{}}
	var wrong []error
	for i, members := range []config.Members{r.Read, r.Operate, r.Admin} {
		granted := roleRead + role(i)
		for _, kind := range []struct {
			what   string
			names  []string
			lookUp func(string) (string, error)
			to     map[uint32]role
		}{{"user", members.Users, userID, p.users}, {"group", members.Groups, groupID, p.groups}} {
			for _, name := range kind.names {
				id, err := idOf(name, kind.lookUp)
				if err != nil {
					err = fmt.Errorf("%s %q is not known on this machine: %w; use a known name, or a number", kind.what, name, err)
					wrong = append(wrong, &FieldError{fmt.Sprintf("control.roles.%s.%ss", granted, kind.what), err})
					continue
				}
				kind.to[id] = max(kind.to[id], granted)
			}
		}
	}
	if len(p.users)+len(p.groups) == 0 {
		p.byGroup = roleOperate
	}
	return p, errors.Join(wrong...)
}

// idOf returns the number of a name that may be one itself.
func idOf(name string, lookUp func(string) (string, error)) (uint32, error) {
	found, unknown := lookUp(name)
	if unknown != nil {
		found = name
	}
	id, err := strconv.ParseUint(found, 10, 32)
	if err != nil {
		return 0, cmp.Or(unknown, err) // the latter where users have no numbers
	}
	return uint32(id), nil
}

func userID(name string) (string, error) {
	found, err := user.Lookup(name)
	if err != nil {
		return "", err
	}
	return found.Uid, nil
}

func groupID(name string) (string, error) {
	found, err := user.LookupGroup(name)
	if err != nil {
		return "", err
	}
	return found.Gid, nil
}
