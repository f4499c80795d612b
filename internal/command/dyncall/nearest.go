package dyncall

import (
	"slices"
	"strings"
)

// nearest returns the candidates that a misspelt name most likely stands for, best first, at most three. Case does not count, nor do
// leading parts of a qualified name that the misspelt one lacks.
func nearest(name string, candidates []string) []string {
	const most, longest = 2000, 200 // bound the effort, which grows with the square of the length
	if len(name) > longest {
		return nil
	}
	type scored struct {
		name string
		away int
	}
	var near []scored
	lower := strings.ToLower(name)
	for _, candidate := range candidates[:min(len(candidates), most)] {
		if len(candidate) > longest {
			continue
		}
		away := len(name) + len(candidate)
		for _, form := range forms(strings.ToLower(candidate)) {
			away = min(away, distance(lower, form))
		}
		if away <= (len(name)+1)/3 {
			near = append(near, scored{candidate, away})
		}
	}
	slices.SortStableFunc(near, func(a, b scored) int { return a.away - b.away })
	var names []string
	for _, n := range near[:min(len(near), 3)] {
		names = append(names, n.name)
	}
	return names
}

// forms returns the ways to write a method's path: whole, without the package, and without the service.
func forms(path string) []string {
	service, method, ok := strings.Cut(path, "/")
	if !ok {
		return []string{path}
	}
	return []string{path, path[strings.LastIndexByte(service, '.')+1:], method}
}

// distance counts the bytes to insert, remove or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
