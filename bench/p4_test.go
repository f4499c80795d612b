package bench

import (
	"fmt"
	"testing"
)

// BenchmarkP4 measures the time from the removal of a socket to DeRegisterPlugin ("deregister"), and the time from the moment at which
// another plugin of the same name, which serves already, moves its socket over that of the first to its RegisterPlugin ("replace").
func BenchmarkP4(b *testing.B) {
	rounds, kubeletRounds := 200, 20
	if testing.Short() {
		rounds, kubeletRounds = 5, 2
	}
	deregister, replace := map[string][]float64{}, map[string][]float64{}
	measure := func(contestants []string, rounds int) {
		var contenders []*contender
		for _, name := range contestants {
			contenders = append(contenders, contend(b, name, 0))
		}
		for round := range rounds {
			turns(contenders, round, func(c *contender) {
				name := fmt.Sprint(round)
				appear(c, c.named(true, name), 1)
				c.pause()
				again, _ := appear(c, c.named(true, name), 2)
				c.pause()
				replace[c.name] = append(replace[c.name], again)
				deregister[c.name] = append(deregister[c.name], vanish(c, name))
			})
		}
		for _, c := range contenders {
			c.stop()
		}
	}
	measure(fast, rounds)
	measure([]string{kubelet}, kubeletRounds)
	for _, name := range all {
		d, r := deregister[name], replace[name]
		report(b, name, metrics{
			"deregister-p50-µs", quantile(d, 0.5), "deregister-p99-µs", quantile(d, 0.99),
			"replace-p50-µs", quantile(r, 0.5), "replace-p99-µs", quantile(r, 0.99),
		}.goals(name,
			"deregister/goal", quantile(d, 0.5)/(3*quantile(deregister["floor"], 0.5)),
			"replace/goal", quantile(r, 0.5)/(1.5*quantile(replace["floor"], 0.5))))
	}
}
