package browser

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/patchbay-dev/patchbay/integration/internal/rig"
)

var lifePage = rig.NewPage("../../docs/explanation/life.md")

const crasher = `- name: crasher
  serve: false
  autostart: false
  restart: {limit: 1, backoff: {min: 1ms, max: 1ms}}
  command: [/bin/sh, -c, "echo cannot find the flux >&2; exit 3"]
log: {format: text}
`

const lifeHead = `# The life of a plugin

What the log, the events, the status and the status page show while a plugin is registered, upgraded and killed, another is refused, and a
launched one keeps crashing. Times, paths and identifiers are replaced. ` + "`TestLife` in `integration/browser`" + ` writes this page and checks it.
`

// TestLife follows plugins from their registration to their end, and sees what is said of it everywhere.
func TestLife(t *testing.T) {
	d := newDaemon(t, crasher)
	l := &life{browser: open(t, "http://"+d.addr+"/"), d: d}
	l.page.WriteString(lifeHead)
	old := l.start("disk-1.sock", "ExamplePlugin", "disk")
	l.step("Registered", "ExamplePlugin/disk", "event=registered.*disk-1")
	young := l.start("disk-2.sock", "ExamplePlugin", "disk")
	l.step("Upgraded: a newer instance starts next to it", "ExamplePlugin/disk", "event=superseded.*disk-1")
	l.end(old, syscall.SIGTERM)
	l.run("wait", "ExamplePlugin/disk")
	l.end(young, syscall.SIGKILL)
	l.step("Killed", "ExamplePlugin/disk", "event=failed.*disk-2")
	l.start("printer.sock", "OtherType", "printer")
	l.step("Refused: nobody handles its type", "OtherType/printer", "event=refused.*printer")
	l.run("launch", "crasher")
	l.step("Given up: a launched plugin that ends again and again", "crasher", "event=failed.*crasher")
	lifePage.Check(t, l.page.Bytes())
}

// life is the transcript of lives.
type life struct {
	*browser
	d     *daemon
	page  bytes.Buffer
	lines int      // of the log that were shown
	ids   []string // of instances, in the order in which they were met
}

func (l *life) start(file, ptype, name string) *exec.Cmd {
	l.t.Helper()
	cmd := exec.CommandContext(context.Background(), filepath.Join(bin, "plugin"), filepath.Join(l.d.dir, "plugins", file), ptype, name)
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { l.end(cmd, syscall.SIGTERM) })
	return cmd
}

func (l *life) end(cmd *exec.Cmd, with os.Signal) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Signal(with)
		_ = cmd.Wait()
	}
}

// run runs a command beside the daemon, and returns what it prints.
func (l *life) run(args ...string) string {
	cmd := exec.CommandContext(context.Background(), filepath.Join(bin, "patchbay"), args...)
	cmd.Env = append(os.Environ(), "PATCHBAY_CONTROL_SOCKET="+filepath.Join(l.d.dir, "control.sock"), "TZ=UTC")
	out, _ := cmd.CombinedOutput() // of status, whose exit code is that of what it found
	return string(out)
}

// step waits until the log says something, and writes down what is said of a plugin.
func (l *life) step(title, plugin, until string) {
	l.t.Helper()
	sought := regexp.MustCompile(until)
	var fresh []string
	for {
		text, err := os.ReadFile(filepath.Join(l.d.dir, "daemon.log"))
		if err != nil {
			l.t.Fatal(err)
		}
		all := strings.Split(strings.TrimSpace(string(text)), "\n")
		fresh = all[l.lines:]
		if sought.MatchString(strings.Join(fresh, "\n")) {
			l.lines = len(all)
			break
		}
		l.run("wait", "ExamplePlugin/none", "--timeout", "20ms")
	}
	_, name, _ := strings.Cut(plugin, "/")
	if name == "" {
		name = plugin
	}
	var log []string
	for _, line := range fresh {
		if strings.Contains(line, "event=") && strings.Contains(line, "plugin="+name+" ") {
			log = append(log, line)
		}
	}
	fmt.Fprintf(&l.page, "\n## %s\n", title)
	l.block("The log:", strings.Join(log, "\n"))
	l.block("`patchbay events --plugin "+plugin+"`:", l.run("events", "--plugin", plugin))
	l.block("`patchbay status "+plugin+"`:", l.run("status", plugin))
	l.block("The page:", l.shown(plugin))
}

// shown returns what the page of a plugin shows, its events as they are counted.
func (l *life) shown(plugin string) string {
	l.t.Helper()
	hash := "#/plugin/" + plugin
	if !strings.Contains(plugin, "/") {
		hash = "#/plugin//" + plugin
	}
	l.do(chromedp.Navigate("about:blank"), chromedp.Navigate("http://"+l.d.addr+"/"+hash))
	l.waits("document.querySelectorAll('#history li').length > 0 && document.querySelector('#instances dt') != null")
	text, err := chromedp.Run(l.ctx, chromedp.Evaluate[string](`[...document.querySelectorAll('#instances dt')]
		.filter((dt) => ['State', 'Why', 'Last error', 'Process', 'Process error'].includes(dt.innerText))
		.map((dt) => dt.innerText + ': ' + dt.nextSibling.innerText)
		.concat([...document.querySelectorAll('#history .state')].map((s) => 'Event: ' + s.innerText)).join('\n')`))
	if err != nil {
		l.t.Fatal(err)
	}
	return text
}

var (
	times = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
	spans = regexp.MustCompile(`\((in )?\d+\w( ago)?\)`)
	pids  = regexp.MustCompile(`(?i)(pid:?\s+|pid=)\d+`)
	tries = regexp.MustCompile(`(Failed attempts:\s+)\d+`)
	pause = regexp.MustCompile(`(restarting in )[0-9.]+\w+`)
	ids   = regexp.MustCompile(`(instance=|Instance ID:\s+)(\w{16})`)
)

// block writes a block of text in which what is another each time is replaced.
func (l *life) block(what, text string) {
	text = strings.ReplaceAll(text, l.d.dir, "/run/patchbay")
	text = times.ReplaceAllString(text, "TIME")
	text = spans.ReplaceAllString(text, "(SPAN)")
	text = pids.ReplaceAllString(text, "${1}PID")
	text = pause.ReplaceAllString(text, "${1}SPAN")
	text = tries.ReplaceAllString(text, "${1}N")
	for _, match := range ids.FindAllStringSubmatch(text, -1) {
		l.ids = append(l.ids, match[2])
	}
	for _, id := range l.ids {
		text = strings.ReplaceAll(text, id, "INSTANCE")
	}
	fmt.Fprintf(&l.page, "\n%s\n\n```text\n%s\n```\n", what, strings.TrimSpace(text))
}
