package reconciler_test

import (
	"slices"

	"github.com/patchbay-dev/patchbay/reconciler"
)

// registry notes what it is asked to keep; names only, for identifiers are random.
type registry struct{ w *world }

type staged struct {
	w     *world
	in    reconciler.Instance
	shown *reconciler.Instance // what is shown of it meanwhile
}

func (r registry) Stage(in reconciler.Instance) (reconciler.Staged, error) {
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
		known := slices.IndexFunc(w.saved, func(i reconciler.Instance) bool { return i.ID == in.ID })
		if known < 0 {
			w.saved = slices.Insert(w.saved, 0, reconciler.Instance{})
			known = 0
		} else if slices.Contains(w.registry[in.Name], in.ID) {
			shown := w.saved[known]
			s.shown = &shown
		}
		w.saved[known] = in
	}
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	w.note("saved %s %s", in.Name, in.Endpoint)
	return s, nil
}

// unsave takes an instance off the disk. w.mu is held.
func (w *world) unsave(id string) {
	w.saved = slices.DeleteFunc(w.saved, func(in reconciler.Instance) bool { return in.ID == id })
}

func (r registry) Remove(_, name, id string) error {
	w := r.w
	w.mu.Lock()
	w.did("remove")
	if err := w.failSave; err != nil {
		w.mu.Unlock()
		return err
	}
	w.unsave(id)
	w.registry[name] = slices.DeleteFunc(w.registry[name], func(s string) bool { return s == id })
	w.mu.Unlock()
	w.note("removed %s", name)
	return nil
}

func (r registry) Confirm(_, name, id string) { r.w.note("confirmed %s %s", name, id) }

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
	if !slices.Contains(s.w.registry[s.in.Name], s.in.ID) {
		s.w.registry[s.in.Name] = append([]string{s.in.ID}, s.w.registry[s.in.Name]...)
	}
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
	if s.shown == nil {
		w.unsave(s.in.ID)
	} else if known := slices.IndexFunc(w.saved, func(i reconciler.Instance) bool { return i.ID == s.in.ID }); known >= 0 {
		w.saved[known] = *s.shown
	}
	w.mu.Unlock()
	w.note("discarded %s", s.in.Name)
	return nil
}
