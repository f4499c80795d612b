package dynamicplugins

import "sync"

// keptNames say whose names are. They are saved with the plugins of the same name, so that no crash leaves a name of which neither a plugin
// nor this is known.
type keptNames struct {
	restored []KeptName
	pending  sync.Map // key → *KeptName: not saved yet
}

// KeptNames returns what the storage held when the registry was opened, in no order.
func (r *Store) KeptNames() []KeptName { return r.kept.restored }

// KeepName says for whom a name is reserved. It does not block: the name is saved with the next change of its plugins, or by SaveName.
func (r *Store) KeepName(name KeptName) {
	r.kept.pending.Store(key{name.Type, name.Name}, &name)
}

// SaveName saves what KeepName said of a name, unless that is saved. A storage that does not keep names does nothing. The error
// matches [ErrNotSaved] if it could not be written.
func (r *Store) SaveName(ptype, name string) error {
	k, err := named(ptype, name, "save the name of")
	if err != nil {
		return err
	}
	return r.change(k, func(l *roster) error {
		if r.kept.unsaved(l.key) == nil {
			return nil
		}
		return r.put(l, l.saved)
	})
}

// unsaved returns what is to be saved of a name; nil if that is nothing.
func (n *keptNames) unsaved(k key) *KeptName {
	kept, _ := n.pending.Load(k)
	name, _ := kept.(*KeptName)
	return name
}

// saved forgets what was saved, unless something else was said meanwhile.
func (n *keptNames) saved(k key, kept *KeptName) { n.pending.CompareAndDelete(k, kept) }
