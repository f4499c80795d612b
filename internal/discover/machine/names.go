package machine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// The bounds of the names that are kept. Of one user the oldest go first; beyond the sum nobody's names go for another one's.
const (
	namesPerUser = 256
	namesInTotal = 4096
)

// keptNames are bounded by user and in sum. The zero value is ready for use.
type keptNames struct {
	byKey map[plugin.Name]plugin.Reservation
	// byUser are the names of each user, the oldest first.
	byUser map[uint32][]plugin.Name
	// told are the users of whom it was told that they have too many; full is set when it was told that all have.
	told map[uint32]bool
	full bool
}

// at returns for whom a name is reserved at a time.
func (k *keptNames) at(key plugin.Name, now time.Time) (name plugin.Reservation, kept bool) {
	name, kept = k.byKey[key]
	return name, kept && now.Before(name.Until)
}

func (k *keptNames) drop(key plugin.Name) {
	uid := k.byKey[key].Owner.UID
	delete(k.byKey, key)
	k.byUser[uid] = slices.DeleteFunc(k.byUser[uid], func(o plugin.Name) bool { return o == key })
	if len(k.byUser[uid]) == 0 {
		delete(k.byUser, uid)
		delete(k.told, uid)
	}
}

// add keeps a name, and returns those that are kept no longer for that, or itself if there is no room for it.
func (k *keptNames) add(name plugin.Reservation, now time.Time) (dropped []plugin.Reservation) {
	if k.byKey == nil {
		k.byKey, k.byUser, k.told = map[plugin.Name]plugin.Reservation{}, map[uint32][]plugin.Name{}, map[uint32]bool{}
	}
	k.drop(name.Plugin)
	if len(k.byKey) >= namesInTotal {
		for _, o := range k.sorted() {
			if !now.Before(o.Until) {
				k.drop(o.Plugin)
				dropped = append(dropped, o)
			}
		}
	}
	mine := k.byUser[name.Owner.UID]
	full := len(k.byKey) >= namesInTotal
	switch {
	case len(mine) >= namesPerUser, full && len(mine) > 0:
		dropped = append(dropped, k.byKey[mine[0]])
		k.drop(mine[0])
	case full:
		return append(dropped, name)
	}
	k.byKey[name.Plugin] = name
	k.byUser[name.Owner.UID] = append(k.byUser[name.Owner.UID], name.Plugin)
	return dropped
}

func (k *keptNames) sorted() []plugin.Reservation {
	return slices.SortedFunc(maps.Values(k.byKey), func(a, b plugin.Reservation) int { return a.Plugin.Compare(b.Plugin) })
}

// restoreNames takes over what is kept from before a restart. None is kept longer than it would be from now on: the wall clock may have
// been wrong. How long it still is kept does not depend on that clock any more.
func (m *Machine) restoreNames(names []plugin.Reservation) {
	names = slices.Clone(names)
	slices.SortFunc(names, func(a, b plugin.Reservation) int {
		return cmp.Or(a.Until.Compare(b.Until), a.Plugin.Compare(b.Plugin))
	})
	for _, name := range names {
		if !m.Now.Before(name.Until) || !m.keepsNames(name.Plugin.Type, name.Owner) {
			m.forgetName(name)
			continue
		}
		name.Until = m.Now.Add(min(name.Until.Sub(m.Now), m.cfg.NameGrace))
		m.addName(name)
	}
}

// keepsNames says whether names of somebody's plugins of a type are kept.
func (m *Machine) keepsNames(ptype string, by plugin.Account) bool {
	return m.cfg.NameGrace > 0 && m.cfg.Trust != nil && m.cfg.Trust.KeepsNames(ptype, by)
}

// keepName has the name of an instance that the registry is about to lose stay its user's. That is of no effect as long as there is another
// one, which then leaves it to its own user.
func (m *Machine) keepName(in *instance) {
	if !in.recorded() || !m.keepsNames(in.announced.Type, in.account) {
		return
	}
	name := plugin.Reservation{Plugin: in.announced.PluginName(), Owner: in.account, Until: m.Now.Add(m.cfg.NameGrace)}
	m.do(Keep{name, false})
	m.addName(name)
}

// addName reserves a name, and reports when there is no room: once per user, and once for users who have no names.
func (m *Machine) addName(name plugin.Reservation) {
	for _, o := range m.names.add(name, m.Now) {
		m.forgetName(o)
		why, told := fmt.Sprintf("there are more than %d", namesInTotal), m.names.told[o.Owner.UID]
		if len(m.names.byUser[o.Owner.UID]) >= namesPerUser {
			why = fmt.Sprintf("that user has more than %d", namesPerUser)
		}
		if o == name {
			told, m.names.full = m.names.full, true
		} else {
			m.names.told[o.Owner.UID] = true
		}
		if !told && m.Now.Before(o.Until) {
			m.tellOfName(o, fmt.Sprintf("the name was released although it was reserved for user %d, because %s reserved names; "+
				"further releases are not reported",
				o.Owner.UID, why))
		}
	}
}

// forgetName has it saved that a name is nobody's.
func (m *Machine) forgetName(name plugin.Reservation) {
	m.do(Keep{plugin.Reservation{Plugin: name.Plugin}, true})
}

func (m *Machine) tellOfName(name plugin.Reservation, message string) {
	m.do(Emit{plugin.Event{Time: m.Now, Kind: plugin.EventReleased, Type: name.Plugin.Type, Name: name.Plugin.Name, Message: message}})
}

// releaseName ends what is kept of a name, and has those tried at once who were refused for it.
func (m *Machine) releaseName(key plugin.Name) {
	name, kept := m.names.at(key, m.Now)
	if !kept {
		return
	}
	m.names.drop(key)
	m.forgetName(name)
	m.tellOfName(name, fmt.Sprintf("the name was reserved for user %d, and was released by request", name.Owner.UID))
	m.urge(key)
}

// Reservation returns the reservation of a name, if it is reserved and no plugin of that name is registered.
func (m *Machine) Reservation(key plugin.Name) (name plugin.Reservation, kept bool) {
	if name, kept = m.names.at(key, m.Now); !kept || m.registered(key) {
		return plugin.Reservation{}, false
	}
	return name, true
}

func (m *Machine) registered(key plugin.Name) bool {
	l := m.lanes[key]
	return l != nil && slices.ContainsFunc(l.members, func(in *instance) bool { return in.phase != Gone && in.recorded() })
}

// barsName says why somebody's plugin may not have a name: another user's has it, may be back from before a restart any moment, or had it
// last and nobody has taken it since.
func (m *Machine) barsName(l *lane, in *instance, by plugin.Account) error {
	judge, key, taken := m.cfg.Trust, l.key, false
	for _, o := range l.members {
		claims := o.recorded() || o.held() || o.phase == Ready || o.phase == Walking
		if o == in || o.phase == Gone || !claims {
			continue
		}
		if err := judge.Supersede(key.Type, key.Name, by, o.account); err != nil {
			return err
		}
		taken = taken || o.recorded() && o.account.Known
	}
	for _, known := range m.remembered[key] {
		o := m.restored[known.socket]
		if o == nil || o.lane != nil || o.announced.PluginName() != key {
			continue
		}
		if err := judge.Supersede(key.Type, key.Name, by, o.account); err != nil {
			return err
		}
		taken = taken || o.account.Known
	}
	if name, kept := m.names.at(key, m.Now); kept && !taken {
		return judge.Inherit(key.Type, key.Name, by, name.Owner, name.Until)
	}
	return nil
}
