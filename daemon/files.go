package daemon

import (
	"fmt"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay"
)

// filesCondition is the name of the condition of the limit of open files.
const filesCondition = "files"

// fileLimit says whether this process can open another file. Nobody tells when it can again, so it is tried whenever somebody asks.
type fileLimit struct {
	mu    sync.Mutex
	since time.Time // zero while it can
}

// condition tries.
func (f *fileLimit) condition() patchbay.Condition {
	err := openAnother()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.since = time.Time{}
		return patchbay.Condition{Name: filesCondition, OK: true}
	}
	if f.since.IsZero() {
		f.since = time.Now()
	}
	return patchbay.Condition{Name: filesCondition, Since: f.since, Message: fmt.Sprintf("no other file can be opened: %v; registered "+
		"plugins stay so, other plugins and callers wait; raise the limit of open files (ulimit -n, or LimitNOFILE= of the service)", err)}
}
