module github.com/patchbay-dev/patchbay/corpus

go 1.26.0
