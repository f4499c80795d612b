package reconciler_test

import (
	"slices"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// registry notes what it is asked to keep; names only, for identifiers are random.
type registry struct{ w *world }

type staged struct {
	w     *world
	in    plugin.Instance
	shown []plugin.Instance // what is shown of it meanwhile, and all that was saved behind it; empty if nothing is
}

func (r registry) Stage(instances []plugin.Instance) (stages []reconciler.Stage) {
	if r.w.saving != nil {
		r.w.saving()
	}
	for _, in := range instances {
		staged, err := r.stage(in)
		stages = append(stages, reconciler.Stage{Staged: staged, Err: err})
	}
	return stages
}

func (r registry) stage(in plugin.Instance) (reconciler.Staged, error) {
	w := r.w
	w.mu.Lock()
	w.did("save")
	if w.staging != nil {
		w.staging(in)
	}
	s := &staged{w: w, in: in}
	err := w.failSave
	if err == nil {
		w.stages[in.ID] = s
		if known := w.find(in.ID); known >= 0 {
			if slices.Contains(w.registry[in.Name], in.ID) {
				s.shown = slices.Clone(w.saved[known:])
			}
			w.saved = slices.Delete(w.saved, known, known+1)
		}
		w.saved = slices.Insert(w.saved, 0, in)
	}
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	w.note("saved %s %s", in.Name, in.Endpoint)
	return s, nil
}

// find returns the index of an instance on the disk, or -1. w.mu is held.
func (w *world) find(id string) int {
	return slices.IndexFunc(w.saved, func(in plugin.Instance) bool { return in.ID == id })
}

// unsave takes an instance off the disk. w.mu is held.
func (w *world) unsave(id string) {
	w.saved = slices.DeleteFunc(w.saved, func(in plugin.Instance) bool { return in.ID == id })
}

func (r registry) Remove(ptype, name, id string) error {
	w := r.w
	w.mu.Lock()
	w.did("remove")
	if known := w.find(id); known >= 0 && w.removing != nil {
		w.removing(w.saved[known])
	}
	if err := w.failSave; err != nil {
		w.mu.Unlock()
		return err
	}
	w.unsave(id)
	w.keep(ptype, name)
	w.registry[name] = slices.DeleteFunc(w.registry[name], func(s string) bool { return s == id })
	w.mu.Unlock()
	w.note("removed %s", name)
	return nil
}

// Reserve and SaveReservation implement [reconciler.Registry].
func (r registry) Reserve(name plugin.Reservation) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.said[name.Plugin] = name
}

func (r registry) SaveReservation(name plugin.Name) error {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if r.w.failSave == nil {
		r.w.keep(name.Type, name.Name)
	}
	return r.w.failSave
}

// keep puts what is said of a name on disk. w.mu is held.
func (w *world) keep(ptype, name string) {
	key := plugin.Name{Type: ptype, Name: name}
	said, is := w.said[key]
	delete(w.said, key)
	switch {
	case is && said.Until.IsZero():
		delete(w.names, key)
	case is:
		w.names[key] = said
	}
}

func (r registry) Confirm(_, name, id string) {
	r.w.note("confirmed %s %s", name, id)
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	delete(r.w.unreachable, id)
}

func (r registry) Unreachable(_, _, id string, _ error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.unreachable[id] = true
}

func (s *staged) Publish() {
	s.w.note("published %s", s.in.Name)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	delete(s.w.unreachable, s.in.ID)
	delete(s.w.stages, s.in.ID)
	if s.w.publishing != nil {
		s.w.publishing(s.in)
	}
	others := slices.DeleteFunc(s.w.registry[s.in.Name], func(id string) bool { return id == s.in.ID })
	s.w.registry[s.in.Name] = slices.Insert(others, 0, s.in.ID)
}

func (s *staged) Discard() error {
	w := s.w
	w.mu.Lock()
	w.did("discard")
	if err := w.failSave; err != nil || w.stages[s.in.ID] != s {
		w.mu.Unlock()
		return err
	}
	delete(w.stages, s.in.ID)
	known := w.find(s.in.ID) >= 0
	w.unsave(s.in.ID)
	if known && len(s.shown) > 0 {
		at := slices.IndexFunc(w.saved, func(in plugin.Instance) bool {
			return slices.ContainsFunc(s.shown, func(behind plugin.Instance) bool { return in.ID == behind.ID })
		})
		if at < 0 {
			at = len(w.saved)
		}
		w.saved = slices.Insert(w.saved, at, s.shown[0])
	}
	w.mu.Unlock()
	w.note("discarded %s", s.in.Name)
	return nil
}
