// Package machine decides what happens to one launched plugin: when a process of it is started, when it is ready, what follows its end,
// when one replaces another and when it is given up. It is pure: it takes what happens and the time, and returns what is to be done. What
// does it is package supervise. Whose processes they are, and what is a plugin's readiness, it does not know.
package machine
