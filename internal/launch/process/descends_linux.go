package process

// Descends reports whether a process descends from another one, now. Either may be gone already, and its number be another's.
func Descends(pid, from int) bool {
	s, ok := readStat(pid)
	return ok && isDescendant(pid, s, from)
}
