package broadcast

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// owner publishes numbers under a lock. Its state is the last number; a resync is that number, negative.
type owner struct {
	mu   sync.Mutex
	last int
	feed *Feed[int]
}

func newOwner(history int) *owner {
	o := &owner{}
	o.feed = &Feed[int]{History: history, Resync: func(_ string, commit func(int)) {
		o.mu.Lock()
		defer o.mu.Unlock()
		commit(-o.last)
	}}
	return o
}

func (o *owner) publish(n int) {
	for range n {
		o.mu.Lock()
		o.last++
		o.feed.Publish("t", o.last)
		o.mu.Unlock()
	}
}

// watch returns the present state and what follows on it.
func (o *owner) watch(ctx context.Context, topic string) (int, <-chan int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last, o.feed.Subscribe(ctx, topic)
}

// read reads the n next values, which must be there or come.
func read(t testing.TB, ch <-chan int, n int) []int {
	t.Helper()
	values := make([]int, 0, n)
	for range n {
		v, ok := <-ch
		if !ok {
			t.Fatalf("closed after %v", values)
		}
		values = append(values, v)
	}
	return values
}

// count returns n numbers from first on.
func count(first, n int) []int {
	values := make([]int, n)
	for i := range values {
		values[i] = first + i
	}
	return values
}

func expect(t testing.TB, got, want []int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestTopics(t *testing.T) {
	f := new(Feed[int])
	defer f.Close()
	a, b, all := f.Subscribe(t.Context(), "a"), f.Subscribe(t.Context(), "b"), f.Subscribe(t.Context(), "")
	f.Publish("a", 1)
	f.Publish("b", 2)
	f.Publish("", 3)
	f.Publish("c", 4)
	expect(t, read(t, a, 1), []int{1})
	expect(t, read(t, b, 1), []int{2})
	expect(t, read(t, all, 4), []int{1, 2, 3, 4})
	if len(a)+len(b)+len(all) != 0 {
		t.Error("there is more than was published")
	}
}

// TestSlow: up to minUnread values nothing is lost, however slow the subscriber, and the publisher does not wait.
func TestSlow(t *testing.T) {
	o := newOwner(0)
	defer o.feed.Close()
	for range 3 { // falling behind and catching up leaves no trace
		last, ch := o.watch(t.Context(), "t")
		o.publish(minUnread)
		expect(t, read(t, ch, minUnread), count(last+1, minUnread))
	}
}

// TestStuck: a subscriber that is too far behind gets one value that stands for the rest, and goes on from there.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(0)
		defer o.feed.Close()
		_, stuck := o.watch(t.Context(), "t")
		_, reading := o.watch(t.Context(), "")
		const n = 3 * minUnread
		for i := range n {
			o.publish(1)
			read(t, reading, 1)
			if i <= buffer+batch {
				synctest.Wait() // the subscriber is what is slow, not the goroutine that feeds it
			}
		}
		synctest.Wait()

		values := []int{<-stuck}
		for values[len(values)-1] > 0 {
			values = append(values, <-stuck)
		}
		behind := len(values) - 1
		expect(t, values[:behind], count(1, behind))
		expect(t, values[behind:], []int{-n})
		if behind > buffer+batch {
			t.Errorf("%d values were kept for a stuck subscriber", behind)
		}
		o.publish(100)
		expect(t, read(t, stuck, 100), count(n+1, 100))
	})
}

// TestStuckWithoutResync: without a resync value, values are missing and the feed goes on.
func TestStuckWithoutResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := new(Feed[int])
		defer f.Close()
		ch := f.Subscribe(t.Context(), "")
		for i := range 2 * minUnread {
			f.Publish("", i)
		}
		synctest.Wait()
		for len(ch) > 0 {
			<-ch
			synctest.Wait()
		}
		f.Publish("", -1)
		expect(t, read(t, ch, 1), []int{-1})
	})
}

func TestHistory(t *testing.T) {
	o := newOwner(100)
	defer o.feed.Close()
	expect(t, o.feed.Last(5), nil)
	o.publish(3)
	expect(t, o.feed.Last(5), count(1, 3))
	o.publish(200)
	expect(t, o.feed.Last(5), count(199, 5))
	expect(t, o.feed.Last(1000), count(104, 100))
	expect(t, o.feed.Last(0), nil)

	ch := o.feed.Replay(t.Context(), 1000)
	o.publish(10)
	expect(t, read(t, ch, 110), count(104, 110))
	o.publish(1)
	expect(t, read(t, o.feed.Replay(t.Context(), 1), 1), []int{214})
	expect(t, read(t, ch, 1), []int{214})
}

func TestContext(t *testing.T) {
	for name, unread := range map[string]int{"Idle": 0, "Behind": 100, "Lost": 2 * minUnread} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(0)
			defer o.feed.Close()
			ctx, cancel := context.WithCancel(t.Context())
			_, ch := o.watch(ctx, "t")
			_, other := o.watch(t.Context(), "t")
			o.publish(unread)
			cancel()
			for range ch { // until it is closed
			}
			o.publish(1)
			for v := range other {
				if v == o.last || v == -o.last {
					break
				}
			}
			_, ended := o.watch(ctx, "t")
			if _, ok := <-ended; ok {
				t.Error("a subscription whose context had ended got a value")
			}
		})
	}
}

func TestClose(t *testing.T) {
	o := newOwner(10)
	var channels []<-chan int
	for range 3 {
		_, ch := o.watch(t.Context(), "t")
		_, all := o.watch(context.Background(), "")
		channels = append(channels, ch, all)
	}
	o.publish(1)
	read(t, channels[0], 1)
	o.publish(buffer)
	o.feed.Close()
	o.feed.Close()
	o.publish(1)
	for _, ch := range append(channels, o.feed.Subscribe(t.Context(), "t"), o.feed.Replay(t.Context(), 5)) {
		for range ch { // until it is closed
		}
	}
}

// TestCloseBehind checks that Close loses nothing: a subscriber that is behind reads the rest, or a resync.
func TestCloseBehind(t *testing.T) {
	for name, unread := range map[string]int{"Behind": 1000, "Lost": 2 * minUnread} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(0)
			_, ch := o.watch(t.Context(), "t")
			ctx, cancel := context.WithCancel(t.Context())
			_, left := o.watch(ctx, "t")
			o.publish(unread)
			o.feed.Close()
			last := 0
			for v := range ch {
				if v != last+1 && v != -unread {
					t.Fatalf("after %d came %d", last, v)
				}
				last = max(v, -v)
			}
			if last != unread {
				t.Errorf("the last value is %d, want %d", last, unread)
			}
			cancel()
			for range left { // until it is closed
			}
		})
	}
}

// TestNothingIsLeft: a topic goes with its last subscriber, and what slow subscribers have read is not kept.
func TestNothingIsLeft(t *testing.T) {
	o := newOwner(0)
	defer o.feed.Close()
	ctx, cancel := context.WithCancel(t.Context())
	channels := make([]<-chan int, 100)
	for i := range channels {
		_, channels[i] = o.watch(ctx, "t")
	}
	o.publish(500)
	for _, ch := range channels[:50] {
		read(t, ch, 500)
	}
	cancel()
	for _, ch := range channels {
		for range ch { // until it is closed
		}
	}
	o.publish(1)
	o.feed.mu.Lock()
	defer o.feed.mu.Unlock()
	if len(o.feed.topics) != 0 || o.feed.all.newest != nil {
		t.Errorf("left: %v", o.feed.topics)
	}
}

// TestNoGapNoRepeat: whatever publishers and subscribers do, a subscriber that starts from the owner's state and follows its
// channel, resync values included, sees every number once and in order.
func TestNoGapNoRepeat(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, func(t *testing.T) {
			o := newOwner(rapid.IntRange(0, 50).Draw(rt, "history"))
			defer o.feed.Close()
			type follower struct {
				last   int
				ch     <-chan int
				cancel func()
			}
			var followers []*follower
			follow := func(f *follower) {
				v := <-f.ch
				switch {
				case v == f.last+1, v < 0 && -v > f.last:
					f.last = max(v, -v)
				default:
					rt.Fatalf("after %d came %d", f.last, v)
				}
			}
			pick := func() *follower {
				if len(followers) == 0 {
					rt.Skip("no followers")
				}
				return rapid.SampledFrom(followers).Draw(rt, "follower")
			}
			rt.Repeat(map[string]func(*rapid.T){
				"publish": func(rt *rapid.T) { o.publish(rapid.IntRange(1, 2*buffer).Draw(rt, "n")) },
				"flood":   func(rt *rapid.T) { o.publish(rapid.IntRange(minUnread-100, minUnread+100).Draw(rt, "n")) },
				"watch": func(rt *rapid.T) {
					ctx, cancel := context.WithCancel(t.Context())
					last, ch := o.watch(ctx, rapid.SampledFrom([]string{"", "t"}).Draw(rt, "topic"))
					followers = append(followers, &follower{last, ch, cancel})
				},
				"replay": func(rt *rapid.T) {
					ctx, cancel := context.WithCancel(t.Context())
					n := len(o.feed.Last(rapid.IntRange(0, 60).Draw(rt, "n")))
					followers = append(followers, &follower{o.last - n, o.feed.Replay(ctx, n), cancel})
				},
				"read": func(rt *rapid.T) {
					f := pick()
					for range rapid.IntRange(1, 200).Draw(rt, "n") {
						if synctest.Wait(); len(f.ch) == 0 {
							return
						}
						follow(f)
					}
				},
				"cancel": func(rt *rapid.T) {
					f := pick()
					f.cancel()
					followers = slices.DeleteFunc(followers, func(other *follower) bool { return other == f })
				},
			})
			for _, f := range followers {
				for f.last < o.last {
					follow(f)
				}
			}
			o.feed.Close()
			for _, f := range followers {
				if v, ok := <-f.ch; ok {
					rt.Fatalf("%d came after the last", v)
				}
				f.cancel()
			}
		})
	})
}

// bubble is synctest.Test for one case of a rapid test, which fails by a panic.
func bubble(t *testing.T, f func(t *testing.T)) {
	var failure any
	synctest.Test(t, func(t *testing.T) {
		defer func() { failure = recover() }()
		f(t)
	})
	if failure != nil {
		panic(failure)
	}
}
