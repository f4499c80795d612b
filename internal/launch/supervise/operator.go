package supervise

import "fmt"

// None of the methods here blocks: they ask, and Run does. What they ask for while Run is not running, it finds when it is called.

// Restart ends the running life, if there is one, and has another one begin as soon as it has ended. Counts and back-off begin anew, and a
// plugin that is Failed or was stopped comes back.
func (s *Supervisor) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped, s.anew = false, true
	s.interrupt()
}

// Start is Restart for a plugin that does not run; one that does is left alone.
func (s *Supervisor) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil && !s.stopped {
		return
	}
	s.stopped, s.anew = false, true
	s.ask()
}

// Stop ends the running life, if there is one, and lets no other begin until Start or Restart.
func (s *Supervisor) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped, s.anew = true, false
	s.interrupt()
}

// Health takes what a Health has found out about the running life, and ends it as a failure if the policy says so. It is to be called
// for the running life only: a Runner that owns a Health waits for its end before it returns.
func (s *Supervisor) Health(status HealthStatus) {
	if status.State != Unresponsive || !s.policy.RestartUnresponsive {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil && s.failure == nil {
		s.failure = fmt.Errorf("the plugin is unresponsive: %w", status.Err)
		s.end()
	}
}

// interrupt ends the running life and has Run look at what was asked. The caller holds s.mu.
func (s *Supervisor) interrupt() {
	if s.end != nil {
		s.end()
	}
	s.ask()
}

// ask has Run look at what was asked. The caller holds s.mu.
func (s *Supervisor) ask() {
	select {
	case s.asked <- struct{}{}:
	default:
	}
}
