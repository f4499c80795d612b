package machine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/trust"
)

// The bounds of the names that are kept. Of one user the oldest go first; beyond the sum nobody's names go for another one's.
const (
	namesPerUser = 256
	namesInTotal = 4096
)

// KeptName is a name that stays a user's until a time, though no plugin of it is registered. With the zero time it is nobody's.
type KeptName struct {
	Type, Name string
	By         trust.Account
	Until      time.Time
}

func (n KeptName) key() Key { return Key{n.Type, n.Name} }

// keptNames are bounded by user and in sum. The zero value is ready for use.
type keptNames struct {
	byKey map[Key]KeptName
	// byUser are the names of each user, the oldest first.
	byUser map[uint32][]Key
	// told are the users of whom it was told that they have too many; full is set when it was told that all have.
	told map[uint32]bool
	full bool
}

// at returns for whom a name is reserved at a time.
func (k *keptNames) at(key Key, now time.Time) (name KeptName, kept bool) {
	name, kept = k.byKey[key]
	return name, kept && now.Before(name.Until)
}

func (k *keptNames) drop(key Key) {
	uid := k.byKey[key].By.UID
	delete(k.byKey, key)
	k.byUser[uid] = slices.DeleteFunc(k.byUser[uid], func(o Key) bool { return o == key })
	if len(k.byUser[uid]) == 0 {
		delete(k.byUser, uid)
		delete(k.told, uid)
	}
}

// add keeps a name, and returns those that are kept no longer for that, or itself if there is no room for it.
func (k *keptNames) add(name KeptName, now time.Time) (dropped []KeptName) {
	if k.byKey == nil {
		k.byKey, k.byUser, k.told = map[Key]KeptName{}, map[uint32][]Key{}, map[uint32]bool{}
	}
	k.drop(name.key())
	if len(k.byKey) >= namesInTotal {
		for _, o := range k.sorted() {
			if !now.Before(o.Until) {
				k.drop(o.key())
				dropped = append(dropped, o)
			}
		}
	}
	mine := k.byUser[name.By.UID]
	full := len(k.byKey) >= namesInTotal
	switch {
	case len(mine) >= namesPerUser, full && len(mine) > 0:
		dropped = append(dropped, k.byKey[mine[0]])
		k.drop(mine[0])
	case full:
		return append(dropped, name)
	}
	k.byKey[name.key()] = name
	k.byUser[name.By.UID] = append(k.byUser[name.By.UID], name.key())
	return dropped
}

func (k *keptNames) sorted() []KeptName {
	return slices.SortedFunc(maps.Values(k.byKey), func(a, b KeptName) int { return a.key().compare(b.key()) })
}

// restoreNames takes over what is kept from before a restart. None is kept longer than it would be from now on: the wall clock may have
// been wrong. How long it still is kept does not depend on that clock any more.
func (m *Machine) restoreNames(names []KeptName) {
	names = slices.Clone(names)
	slices.SortFunc(names, func(a, b KeptName) int {
		return cmp.Or(a.Until.Compare(b.Until), a.key().compare(b.key()))
	})
	for _, name := range names {
		if !m.Now.Before(name.Until) || !m.keepsNames(name.Type, name.By) {
			m.forgetName(name)
			continue
		}
		name.Until = m.Now.Add(min(name.Until.Sub(m.Now), m.cfg.NameGrace))
		m.addName(name)
	}
}

// keepsNames says whether names of somebody's plugins of a type are kept.
func (m *Machine) keepsNames(ptype string, by trust.Account) bool {
	return m.cfg.NameGrace > 0 && m.cfg.Trust != nil && m.cfg.Trust.KeepsNames(ptype, by)
}

// keepName has the name of an instance that the registry is about to lose stay its user's. That is of no effect as long as there is another
// one, which then leaves it to its own user.
func (m *Machine) keepName(in *instance) {
	if !in.recorded() || !m.keepsNames(in.announced.Type, in.account) {
		return
	}
	name := KeptName{Type: in.announced.Type, Name: in.announced.Name, By: in.account, Until: m.Now.Add(m.cfg.NameGrace)}
	m.do(Keep{name, false})
	m.addName(name)
}

// addName reserves a name, and reports when there is no room: once per user, and once for users who have no names.
func (m *Machine) addName(name KeptName) {
	for _, o := range m.names.add(name, m.Now) {
		m.forgetName(o)
		why, told := fmt.Sprintf("there are more than %d", namesInTotal), m.names.told[o.By.UID]
		if len(m.names.byUser[o.By.UID]) >= namesPerUser {
			why = fmt.Sprintf("that user has more than %d", namesPerUser)
		}
		if o == name {
			told, m.names.full = m.names.full, true
		} else {
			m.names.told[o.By.UID] = true
		}
		if !told && m.Now.Before(o.Until) {
			m.tellOfName(o, fmt.Sprintf("the name was released although it was reserved for user %d, because %s reserved names; "+
				"further releases are not reported",
				o.By.UID, why))
		}
	}
}

// forgetName has it saved that a name is nobody's.
func (m *Machine) forgetName(name KeptName) {
	m.do(Keep{KeptName{Type: name.Type, Name: name.Name}, true})
}

func (m *Machine) tellOfName(name KeptName, message string) {
	m.do(Emit{Event{Time: m.Now, Kind: EventReleased, Type: name.Type, Name: name.Name, Message: message}})
}

// releaseName ends what is kept of a name, and has those tried at once who were refused for it.
func (m *Machine) releaseName(key Key) {
	name, kept := m.names.at(key, m.Now)
	if !kept {
		return
	}
	m.names.drop(key)
	m.forgetName(name)
	m.tellOfName(name, fmt.Sprintf("the name was reserved for user %d, and was released by request", name.By.UID))
	m.urge(key)
}

// KeptName returns for whom a name is reserved, if it is kept for somebody, and no plugin of it is registered.
func (m *Machine) KeptName(key Key) (name KeptName, kept bool) {
	if name, kept = m.names.at(key, m.Now); !kept || m.registered(key) {
		return KeptName{}, false
	}
	return name, true
}

func (m *Machine) registered(key Key) bool {
	l := m.lanes[key]
	return l != nil && slices.ContainsFunc(l.members, func(in *instance) bool { return in.phase != Gone && in.recorded() })
}

// barsName says why somebody's plugin may not have a name: another user's has it, may be back from before a restart any moment, or had it
// last and nobody has taken it since.
func (m *Machine) barsName(l *lane, in *instance, by trust.Account) error {
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
		if o == nil || o.lane != nil || o.announced.key() != key {
			continue
		}
		if err := judge.Supersede(key.Type, key.Name, by, o.account); err != nil {
			return err
		}
		taken = taken || o.account.Known
	}
	if name, kept := m.names.at(key, m.Now); kept && !taken {
		return judge.Inherit(key.Type, key.Name, by, name.By, name.Until)
	}
	return nil
}
