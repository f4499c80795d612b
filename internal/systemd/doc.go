// Package systemd speaks with the service manager that started this process: it takes the sockets that were passed (sd_listen_fds(3)) and
// tells it what the process does (sd_notify(3)). What concerns this process alone is taken out of the environment, so that no descendant
// believes in it.
//
// It talks to no bus and manages no units. It imports nothing but the standard library and package unix, because plugins use it too.
package systemd
