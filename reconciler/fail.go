package reconciler

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// turnedDown takes over that an instance was not taken. Unless that only asks for patience, the plugin is told.
func (r *Reconciler) turnedDown(ctx context.Context, in *instance, conn Conn, err error) {
	r.withdraw(ctx, in, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case in.gone || ctx.Err() != nil:
		r.closeConn(conn)
	case errors.Is(err, cache.ErrRetry):
		r.closeConn(conn)
		r.failed(in, err)
	default:
		r.reject(ctx, in, conn, err)
	}
}

// withdraw takes an instance that was not taken out of the registry, where it may stand from before, or has it wait there if err only asks
// for patience. At the end of the reconciler it stays: the error may be a result of that. It is called in the instance's lane.
func (r *Reconciler) withdraw(ctx context.Context, in *instance, err error) {
	switch {
	case !r.stays(ctx, in):
	case errors.Is(err, cache.ErrRetry):
		r.mu.Lock()
		defer r.mu.Unlock()
		r.hide(in, err)
	default:
		r.forget(ctx, in, err.Error())
	}
}

// forget takes a living instance out of the registry, if it is there. It is called in the instance's lane.
func (r *Reconciler) forget(ctx context.Context, in *instance, why string) {
	r.mu.Lock()
	recorded := in.recorded && !in.gone
	if recorded {
		in.recorded, in.hidden = false, false
	}
	ptype, name, id := in.announced.Type, in.announced.Name, in.id
	r.mu.Unlock()
	if !recorded {
		return
	}
	err := r.cfg.Registry.Remove(ptype, name, id)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observe(EventDeregistered, in, why)
	if err != nil {
		r.cfg.Registry.Unreachable(ptype, name, id, errors.New(why))
		r.untilDone(ctx, "remove a plugin from the registry", in, func() error { return r.cfg.Registry.Remove(ptype, name, id) })
		// What registers from now on must not be what is being removed.
		in.id = ""
	}
}

// hide has an instance not given out, if the registry has it, until it is registered again or rests behind a newer one. Its record stays:
// the same process serves the same socket, so that it is the same instance then. mu is held.
func (r *Reconciler) hide(in *instance, why error) {
	if !in.recorded || in.hidden || in.gone {
		return
	}
	in.hidden = true
	r.cfg.Registry.Unreachable(in.announced.Type, in.announced.Name, in.id, why)
	r.observe(EventUnreachable, in, why.Error())
}

// hideMoved hides an instance that the registry has where it is no longer. mu is held.
func (r *Reconciler) hideMoved(in *instance) {
	if in.listed != in.endpoint() {
		r.hide(in, fmt.Errorf("it is no longer at %s", in.listed))
	}
}

// rests has an instance that has answered, and rests behind a newer one, given out in its stead unless the registry has it where it is no
// longer. mu is held.
func (r *Reconciler) rests(in *instance) {
	if r.hideMoved(in); in.recorded && in.listed == in.endpoint() {
		in.hidden = false
		r.cfg.Registry.Confirm(in.announced.Type, in.announced.Name, in.id) // with mu held, or it might confirm what has gone meanwhile
	}
}

// reject tells a plugin that it is not registered, and why, and tries again later unless there is no handler to try. It takes
// the connection over. mu is held.
func (r *Reconciler) reject(ctx context.Context, in *instance, conn Conn, err error) {
	in.settling = true
	in.lastErr = err
	r.end(in, ResultRefused, err)
	in.attempts++
	if r.distrusted(err) || in.unclaimed {
		in.set(StateRefused)
	} else {
		in.progress(StateBackoff)
	}
	r.keepRefusal(in)
	if in.tells(err) {
		r.observe(EventRefused, in, err.Error())
	}
	timeout, path := r.timeouts(in.announced.Type).Notify, in.info.SocketPath
	r.spawn(func() {
		callCtx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		// Some plugins exit inside this call, so an error says little: the refusal counts as delivered.
		if err := conn.Notify(callCtx, false, err.Error()); err != nil {
			r.log.Debug("plugin did not acknowledge its refusal", "socket", path, "error", err)
		}
		r.closeConn(conn)
		r.mu.Lock()
		defer r.mu.Unlock()
		in.settling = false
		switch {
		case in.gone || ctx.Err() != nil:
		case !in.unclaimed:
			r.retryLater(in)
		case r.handlers[in.announced.Type] != nil:
			r.ask(ctx, in)
		}
	})
}

// ignores says that plugins of a type are left alone. mu is held.
func (r *Reconciler) ignores(ptype string) bool {
	return r.cfg.IgnoreUnhandled && r.handlers[ptype] == nil
}

// ignore leaves an instance alone until there is a handler for its type. It takes the connection over. mu is held.
func (r *Reconciler) ignore(in *instance, conn Conn) {
	r.closeConn(conn)
	in.attempts, in.lastErr, in.toldText = 0, nil, ""
	in.set(StateIgnored)
	r.end(in, ResultIgnored, nil)
	r.log.Info("plugin ignored, no handler is registered for its type", "type", in.announced.Type, "name", in.announced.Name,
		"socket", in.info.SocketPath)
	r.observe(EventIgnored, in, "no handler is registered for its type; it is left alone")
}

// failed takes over that an attempt failed and arranges the next one. mu is held.
func (r *Reconciler) failed(in *instance, err error) {
	in.attempts++
	in.lastErr = err
	kind, result := EventFailed, ResultFailed
	switch {
	case r.distrusted(err):
		kind, result = EventRefused, ResultRefused
		in.progress(StateRefused)
		r.keepRefusal(in)
	case r.cfg.Transport.Refused(err) && in.announced.Type != "":
		in.progress(StateUnreachable)
	default:
		in.progress(StateBackoff)
	}
	r.end(in, result, err)
	if in.tells(err) {
		r.observe(kind, in, err.Error())
	}
	r.retryLater(in)
}

// retryLater arranges the next attempt. mu is held.
func (r *Reconciler) retryLater(in *instance) {
	in.stopRetry()
	wait := backoff(in.attempts)
	if _, endpoint := errors.AsType[notYet](in.lastErr); endpoint {
		wait = min(wait, probeInterval) // whoever serves it may be back without its registrar noticing
	}
	in.nextRetry = time.Now().Add(wait)
	in.retry = r.after(wait, func(ctx context.Context) { r.ask(ctx, in) })
}

// tells says whether a failure makes an event: when it changes and then when it was repeated four times, sixteen times, and so on. mu is
// held.
func (in *instance) tells(err error) bool {
	text := err.Error()
	if text == in.toldText && (bits.OnesCount(uint(in.attempts)) != 1 || bits.TrailingZeros(uint(in.attempts))%2 != 0) {
		return false
	}
	in.toldText = text
	return true
}

func (r *Reconciler) logError(err error) {
	if err != nil {
		r.log.Error("plugin could not be taken back cleanly", "error", err)
	}
}

// naming returns the part of an announcement that names the plugin, if that can be shown.
func (b Bounds) naming(info Info) Info {
	named := Info{Type: info.Type, Name: info.Name}
	if b.check(named) != nil {
		return Info{}
	}
	return named
}

// check says what is wrong with an announcement.
func (b Bounds) check(info Info) error {
	if len(info.Versions) > b.Versions {
		return fmt.Errorf("the plugin announces %d versions; at most %d are allowed", len(info.Versions), b.Versions)
	}
	for _, field := range append([]struct{ name, text string }{
		{"type", info.Type}, {"name", info.Name}, {"endpoint", info.Endpoint},
	}, versionFields(info.Versions)...) {
		switch {
		case field.text == "" && field.name != "endpoint":
			return fmt.Errorf("the plugin announces no %s", field.name)
		case len(field.text) > b.Text:
			return fmt.Errorf("the plugin announces its %s with %d bytes; at most %d are allowed", field.name, len(field.text), b.Text)
		case !utf8.ValidString(field.text) || strings.ContainsFunc(field.text, unicode.IsControl):
			return fmt.Errorf("the plugin announces its %s with control characters or invalid UTF-8: %q", field.name, field.text)
		}
	}
	if !foreign.IsType(info.Type) {
		return fmt.Errorf("the plugin announces the type %q; a type must not contain a slash", info.Type)
	}
	if strings.HasPrefix(info.Endpoint, "@") { // what connects takes it for that
		return fmt.Errorf("the plugin announces the endpoint %q; it must not be an abstract socket, which every user may serve: "+
			"announce the path of a socket", info.Endpoint)
	}
	if info.Endpoint != "" && !filepath.IsAbs(info.Endpoint) { // it would be relative to a directory that only the plugin knows
		return fmt.Errorf("the plugin announces the endpoint %q; it must be an absolute path: announce where the socket is from the root "+
			"directory, or no endpoint for the socket on which it registers", info.Endpoint)
	}
	return nil
}

func versionFields(versions []string) []struct{ name, text string } {
	fields := make([]struct{ name, text string }, len(versions))
	for i, v := range versions {
		fields[i] = struct{ name, text string }{"version", v}
	}
	return fields
}
