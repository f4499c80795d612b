package process

import (
	"fmt"
	"strconv"
	"strings"
)

// A record is what a host tells its watchdog: one line of words, each of which is quoted as in Go, so that any path fits.
//
//	cgroup DIR                      all processes are in this cgroup or below it
//	start ID SINCE IN OUT ERR FILE… a process is about to start: its earliest start time, the inodes of its pipes, the files to remove;
//	                                the inodes are 0 if it is in a cgroup
//	pid ID PID                      it has this process ID; only told if it is in no cgroup
//	end ID                          it has ended and nothing is left of it
type record []string

const (
	recordCgroup = "cgroup"
	recordStart  = "start"
	recordPID    = "pid"
	recordEnd    = "end"
)

// encode returns the record as a line with its newline.
func (r record) encode() []byte {
	var line []byte
	for i, word := range r {
		if i > 0 {
			line = append(line, ' ')
		}
		line = strconv.AppendQuote(line, word)
	}
	return append(line, '\n')
}

// parseRecord reads a line without its newline.
func parseRecord(line string) (record, error) {
	var r record
	for line != "" {
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return nil, fmt.Errorf("word %d of a record: %w", len(r)+1, err)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("word %d of a record: %w", len(r)+1, err)
		}
		r = append(r, word)
		line = strings.TrimPrefix(line[len(quoted):], " ")
	}
	return r, nil
}

// number returns word i as a number, and 0 if it is none.
func (r record) number(i int) uint64 {
	if i >= len(r) {
		return 0
	}
	n, err := strconv.ParseUint(r[i], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
