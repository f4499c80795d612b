package dynamicplugins

import "sync"

// keptNames are the reservations of names for users. A reservation is saved together with the plugins of the name, so that a crash loses
// neither or both.
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

// unsaved returns the reservation that is to be saved for a name, or nil.
func (n *keptNames) unsaved(k key) *KeptName {
	kept, _ := n.pending.Load(k)
	name, _ := kept.(*KeptName)
	return name
}

// saved drops a pending reservation that was saved, unless a newer one has replaced it.
func (n *keptNames) saved(k key, kept *KeptName) { n.pending.CompareAndDelete(k, kept) }
