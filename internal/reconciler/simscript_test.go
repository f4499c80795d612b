package reconciler_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// script is one scenario: how the world is, and what disturbs it.
type script struct {
	// seed decides everything that the script leaves open: what runs next, how long things take, what chance says.
	seed  uint64
	mix   string
	set   settings
	steps []step
}

// settings is how a world is, in words: some say yes, some have a value.
type settings map[string]string

func (s settings) has(word string) bool {
	_, yes := s[word]
	return yes
}

func (s settings) duration(word string) time.Duration {
	d, err := time.ParseDuration(s[word])
	if err != nil {
		return 0
	}
	return d
}

// step is one disturbance of a world.
type step struct {
	Op       string
	Path, To string
	Name     string
	Type     string
	User     int
	// Pause is the time to the next step; if it is negative, the next one does not even wait for this one's consequences.
	Pause time.Duration
}

func (s step) String() string {
	pause := s.Pause.String()
	if s.Pause < 0 {
		pause = "none"
	}
	return fmt.Sprintf("%s | %s %s %s %s %d | %s", s.Op, s.Path, s.To, s.Name, s.Type, s.User, pause)
}

// String writes a script as parseScript reads it.
func (s script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", s.seed)
	words := []string{}
	for _, word := range slices.Sorted(maps.Keys(s.set)) {
		if value := s.set[word]; value != "" {
			word += "=" + value
		}
		words = append(words, word)
	}
	fmt.Fprintf(&b, "set %s\n", strings.Join(words, " "))
	for _, step := range s.steps {
		fmt.Fprintln(&b, step)
	}
	return b.String()
}

// parseScript reads a script. Lines that begin with # say what it is about.
func parseScript(text string) (s script, err error) {
	s.set = settings{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		first, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "" || first == "#":
		case first == "seed":
			_, err = fmt.Sscan(rest, &s.seed)
		case first == "set" && !strings.Contains(line, "|"):
			for word := range strings.FieldsSeq(rest) {
				name, value, _ := strings.Cut(word, "=")
				s.set[name] = value
			}
		default:
			var at step
			parts := strings.Split(line, " | ")
			if len(parts) != 3 {
				return s, fmt.Errorf("%q is no step", line)
			}
			at.Op, at.Pause = parts[0], -1
			if _, err = fmt.Sscan(parts[1], &at.Path, &at.To, &at.Name, &at.Type, &at.User); err == nil && parts[2] != "none" {
				at.Pause, err = time.ParseDuration(parts[2])
			}
			s.steps = append(s.steps, at)
		}
		if err != nil {
			return s, fmt.Errorf("%q: %w", line, err)
		}
	}
	return s, nil
}

// The disturbances. What is written more than once is drawn more often.
var (
	sockets = []string{
		"make", "make", "make bare", "make bare", "make slow", "make late", "make hung", "make garbage", "make unavailable",
		"make untellable", "make reluctant", "make hidden", "make strange", "make touchy", "make sulky", "make shared",
		"make full", "make early", "make early",
		"remove", "remove", "rename", "rename", "rename", "kill", "kill", "heal", "change peer",
	}
	announcements = []string{
		"make", "make bare", "make bare", "make bare sulky", "make bare sulky", "make shared", "make bare hidden", "make bare touchy",
		"rename", "rename", "rename", "remove", "kill",
		"announce name", "announce type", "announce endpoint", "announce socket", "announce shared", "announce versions", "announce nonsense",
		"announce nonsense", "announce too much", "announce relative", "announce slash", "announce abstract", "heal", "heal", "unavailable",
	}
	handling = []string{
		"fail validate", "retry validate", "panic validate", "slow validate", "block validate",
		"fail register", "retry register", "panic register", "slow register", "block register",
		"panic deregister", "slow deregister", "block deregister", "panic gone", "slow gone", "slow keep", "panic keep",
		"fail admit", "retry admit", "slow admit", "block admit",
		"clear handler", "clear handler", "release", "remove handler", "set handler", "set handler", "reconsider", "urge",
	}
	storage  = []string{"fail save", "flaky save", "mend save", "mend save", "restart", "restart", "crash", "crash", "die lost", "die kept"}
	places   = []string{"swap", "swap", "swap", "circle", "rename", "rename", "make bare", "make", "hold facts", "tell facts"}
	facts    = []string{"hold facts", "hold facts", "tell facts", "tell facts", "tell facts"}
	clocks   = []string{"clock back", "clock forward", "clock right"}
	watching = []string{"make watched", "make watched", "make watched hidden", "deaf", "deaf", "kill",
		"unlink api", "heal", "busy", "hint", "rob", "rob", "end robbed", "quit robbed"}
	users = []string{"make", "make bare", "make", "make forbidden", "make distrusted", "remove", "kill", "heal", "rename", "reconsider",
		"make foreign", "foreign", "withdraw"}
	names = []string{"make", "make", "make bare", "make entry", "make strange", "remove", "remove", "kill", "kill", "rename", "restart", "crash",
		"release name", "release name", "announce name", "fail save", "mend save", "heal", "pause"}
	choosy = []string{"make unfit", "make unwelcome", "make bare unfit", "make unwelcome", "make", "make", "remove", "kill", "urge"}
	old    = []string{"rename", "rename", "make", "make bare", "swap"}
)

// mixes are the ways in which worlds are disturbed: with everything, and with more of what meets seldom.
var mixes = map[string][]string{
	"everything":    slices.Concat(sockets, announcements, handling, storage, places, facts, clocks, watching, users, names, choosy, old),
	"announcements": announcements,
	"failures":      slices.Concat([]string{"make", "make", "make bare", "remove", "kill", "rename"}, handling, storage),
	"sockets":       sockets,
	"restarts":      slices.Concat(sockets, announcements, storage, storage, storage, []string{"change peer", "change peer", "change peer"}),
	"moves": {"make", "make bare", "make bare sulky", "make bare sulky", "rename", "rename", "rename", "remove", "heal", "announce nonsense",
		"announce nonsense"},
	"replacements": {"make", "make", "make bare", "make slow", "make late", "rename", "rename", "rename", "slow register", "block register",
		"release"},
	"handlers": {"make", "make bare", "remove", "kill", "remove handler", "set handler", "set handler", "slow deregister", "announce nonsense",
		"announce nonsense", "heal", "announce name"},
	"late handlers": {"make bare", "make bare sulky", "make bare untellable", "make hidden", "rename", "hint", "hint", "hold facts",
		"hold facts",
		"tell facts", "remove handler", "remove handler", "set handler", "set handler", "kill", "remove", "slow register", "heal"},
	"deaths at work": {"make", "make bare", "make touchy", "kill", "remove", "slow register", "slow validate", "fail register"},
	"places":         slices.Concat(places, places, []string{"remove", "kill", "slow register", "clear handler", "make slow"}),
	"late facts":     slices.Concat(sockets, facts, facts, facts, places),
	"watching":       slices.Concat(watching, watching, sockets, []string{"restart", "crash"}),
	"users":          slices.Concat(users, users, sockets, []string{"restart", "crash", "remove handler", "set handler"}),
	"names": slices.Concat(names, names, clocks, []string{"remove handler", "set handler", "set handler", "urge", "make unfit",
		"die lost"}),
	"newcomers": slices.Concat(choosy, choosy, []string{"clear handler", "fail validate", "restart", "set handler", "slow register"}),
	"storage": slices.Concat(storage, storage, []string{"make", "make", "make bare", "remove", "rename", "kill",
		"announce name", "announce versions", "slow register"}),
}

var (
	somePaths  = []string{"/d/a", "/d/a", "/d/b", "/d/b", "/d/c", "/d/e", "/old/a"}
	somePauses = []time.Duration{-1, 0, 0, time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond, 3 * time.Second}
	longPauses = []time.Duration{3 * time.Second, 20 * time.Second, 4 * time.Minute}
)

// draw makes the script of a seed.
func draw(seed uint64) script {
	r := rand.New(rand.NewPCG(seed, 1))
	s := script{seed: seed, set: settings{}}
	s.mix = pick(r, slices.Sorted(maps.Keys(mixes)))
	s.set["walks"] = fmt.Sprint(1 + r.IntN(3))
	for _, one := range []struct {
		of   int
		word string
	}{
		{3, "grace=1s"}, {2, "handlertimeout=1s"}, {2, "keeps"}, {2, "contexts"}, {2, "stays"}, {2, "changes"}, {4, "roles"}, {6, "plain"},
		{3, "trust"}, {4, "ignores"}, {3, "dirs"}, {5, "modern"}, {6, "traced"}, {3, "jumpy"},
		{3, "slowdisk"}, {3, "slowscan"}, {3, "choosy"}, {8, "patient"}, {2, "namegrace=1m"}, {3, "gathers"},
	} {
		if r.IntN(one.of) == 0 {
			name, value, _ := strings.Cut(one.word, "=")
			s.set[name] = value
		}
	}
	switch s.mix {
	case "users":
		s.set["trust"] = ""
	case "names":
		s.set["trust"], s.set["namegrace"] = "", "1m"
	case "watching":
		s.set["contexts"] = ""
	case "late handlers":
		s.set["keeps"], s.set["grace"] = "", "1s"
	case "places":
		s.set["jumpy"] = ""
	}
	ops := append([]string{"pause"}, mixes[s.mix]...)
	for range 20 + r.IntN(41) {
		at := step{
			Op: pick(r, ops), Path: pick(r, somePaths), To: pick(r, somePaths),
			Name: pick(r, []string{"foo", "foo", "foo", "bar"}), Type: pick(r, []string{"T", "T", "T", "U", "unclaimed"}),
			Pause: pick(r, somePauses),
		}
		if r.IntN(3) == 0 || s.mix == "names" && r.IntN(3) > 0 {
			at.User = 60001 + r.IntN(2)
		}
		if r.IntN(40) == 0 || s.mix == "names" && r.IntN(10) == 0 {
			at.Pause = pick(r, longPauses)
		}
		s.steps = append(s.steps, at)
	}
	return s
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }
