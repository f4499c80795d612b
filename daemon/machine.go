package daemon

import (
	"errors"
	"fmt"
	"os/exec"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/trust"
)

// checkMachine says what of the configuration cannot be done on this machine, and concerns all: users and groups who are to have rights and
// do not exist, and an admission plugin that is not there.
func (c Config) checkMachine(check func(field string, err error)) {
	_, err := c.Roles.policy()
	for _, err := range joined(err) {
		field, _ := errors.AsType[*FieldError](err)
		check(field.Field, field.Err)
	}
	_, err = trust.New(c.Trust)
	for _, err := range joined(err) {
		field, _ := errors.AsType[*trust.FieldError](err)
		check("trust."+field.Field, field.Err)
	}
	if args := c.Admission.Args; len(args) > 0 && args[0] != "" {
		check("admission.command", checkProgram(args[0]))
	}
}

// CheckPlugins says which plugins cannot be launched on this machine as it is now: for want of a user, of a program, or of room in the path
// of a socket. A daemon runs with them all the same, and tries again: what is missing may come, and the others are not to wait for it. The
// error joins one *FieldError for each.
func (c Config) CheckPlugins() error {
	var wrong []error
	check := func(field string, err error) {
		if err != nil {
			wrong = append(wrong, &FieldError{field, err})
		}
	}
	launched := toLaunch(c.Catalogue, nil)
	for i, p := range c.Catalogue.List() {
		path := fmt.Sprintf("plugins[%d].", c.Catalogue.Index(p.Name))
		check(path+"user", host.CheckUser(p.User, p.Group))
		check(path+"group", host.CheckGroup(p.Group))
		if len(c.PluginDirs) > 0 {
			check(path+"name", launched[i].CheckSocket(c.PluginDirs[0]))
		}
		if !p.Autostart {
			continue // what is started by request may be installed until then
		}
		check(path+"command", checkProgram(p.Command[0]))
		if p.Interpreter != "" {
			check(path+"interpreter", checkProgram(p.Interpreter))
		}
	}
	return errors.Join(wrong...)
}

func checkProgram(program string) error {
	_, err := exec.LookPath(program)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*exec.Error](err); ok {
		err = e.Err // which does not name the program a second time
	}
	return fmt.Errorf("program %q cannot be run on this machine: %w; install it, or name another", program, err)
}

// joined returns the errors that were joined; none for nil.
func joined(err error) []error {
	all, _ := err.(interface{ Unwrap() []error })
	if all == nil {
		return nil
	}
	return all.Unwrap()
}
