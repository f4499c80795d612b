// Report makes docs/reference/performance.md and its charts of what bench/record has written to bench/results. With -row it prints the
// comparison of one row instead; with -check it writes nothing, and fails if the page is not what it would write.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	results := flag.String("results", "../results", "folder of the results")
	docs := flag.String("docs", "../../docs", "folder of the page")
	row := flag.String("row", "", "print the comparison of one row, and write nothing")
	check := flag.Bool("check", false, "fail if the page is not that of the results, and write nothing")
	flag.Parse()
	if err := run(*results, *docs, *row, *check, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(results, docs, row string, check bool, out io.Writer) error {
	rows, err := load(results)
	if err != nil {
		return err
	}
	if row != "" {
		for _, r := range rows {
			if r.File == row {
				_, err := io.WriteString(out, r.Print())
				return err
			}
		}
		return fmt.Errorf("there is no row %q", row)
	}
	files, err := page(results, rows)
	if err != nil {
		return err
	}
	if check {
		return compare(docs, files)
	}
	for name, content := range files {
		path := filepath.Join(docs, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compare says which files are not there as they would be written, and which are there that would not be written.
func compare(docs string, files map[string][]byte) error {
	var errs []error
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(docs, name)); err != nil {
			errs = append(errs, err)
		} else if !bytes.Equal(got, want) {
			errs = append(errs, fmt.Errorf("%s is not what bench/report makes of bench/results", name))
		}
	}
	charts, err := filepath.Glob(filepath.Join(docs, chartFolder, "*.svg"))
	for _, path := range charts {
		if files[strings.TrimPrefix(filepath.ToSlash(path), filepath.ToSlash(docs)+"/")] == nil {
			errs = append(errs, fmt.Errorf("%s is a chart of nothing: remove it", path))
		}
	}
	if err = errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("%w\nrun make performance", err)
	}
	return nil
}
