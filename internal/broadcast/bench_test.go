package broadcast

import (
	"context"
	"fmt"
	"sync"
	"testing"
)

// BenchmarkPublish is row P9: one value until all subscribers have it. The floor is as many channel sends to as many goroutines.
func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{1, 10, 100, 10_000} {
		b.Run(fmt.Sprintf("subscribers=%d/floor", n), func(b *testing.B) {
			channels := make([]chan *int, n)
			receivers := make([]<-chan *int, n)
			for i := range channels {
				channels[i] = make(chan *int, buffer)
				receivers[i] = channels[i]
			}
			send := func(v *int) {
				for _, ch := range channels {
					ch <- v
				}
			}
			bench(b, receivers, send)
			for _, ch := range channels {
				close(ch)
			}
		})
		for _, stuck := range []int{0, 1, 100} {
			b.Run(fmt.Sprintf("subscribers=%d/stuck=%d", n, stuck), func(b *testing.B) {
				f := new(Feed[*int])
				defer f.Close()
				receivers := make([]<-chan *int, n)
				for i := range receivers {
					receivers[i] = f.Subscribe(context.Background(), "t")
				}
				for range stuck {
					f.Subscribe(context.Background(), "t")
				}
				bench(b, receivers, func(v *int) { f.Publish("t", v) })
			})
		}
	}
}

func bench(b *testing.B, receivers []<-chan *int, send func(*int)) {
	var got sync.WaitGroup
	for _, ch := range receivers {
		go func() {
			for range ch {
				got.Done()
			}
		}()
	}
	value := new(int)
	b.ReportAllocs()
	for b.Loop() {
		got.Add(len(receivers))
		send(value)
		got.Wait()
	}
}
