package bench

import (
	"fmt"
	"slices"
	"testing"
)

// benchP4 measures the time from the removal of a socket to DeRegisterPlugin ("deregister"), and the time from the moment at which
// another plugin of the same name, which serves already, moves its socket over that of the first to its RegisterPlugin ("replace").
func benchP4(b testing.TB) {
	rounds, kubeletRounds := 200, 10
	if small(b) {
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
	for _, name := range append(slices.Clone(fast), kubelet) {
		recordSamples(b, "P4/"+name, "deregister", deregister[name])
		recordSamples(b, "P4/"+name, "replace", replace[name])
	}
}
