# What a developer and the CI do here. Nothing but Go 1.26, a C compiler (for the race detector) and GNU make has to be installed:
# the tools are Go modules, pinned in tools/go.mod, and built on first use.

MODULE  := github.com/patchbay-dev/patchbay
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)

GO   ?= go
TOOL := $(GO) tool -modfile=$(CURDIR)/tools/go.mod

# Flags for go test, for example TEST_FLAGS='-run Example -count 50'.
TEST_FLAGS ?=

# What needs heavy dependencies is a module of its own, so that users of the library never download them.
# The linters need minutes for the dependencies of the programs around the kubelet and Nomad, which are short.
LINT_MODULES := . tools $(filter-out bench/kubelet bench/nomad,\
	$(patsubst %/go.mod,%,$(wildcard examples/go.mod integration/go.mod bench/go.mod bench/*/go.mod packaging/go.mod)))

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the patchbay binary, static, into bin/
	CGO_ENABLED=0 $(GO) build -trimpath \
		-ldflags '-s -w -X $(MODULE)/internal/daemon.version=$(VERSION) -X $(MODULE)/internal/daemon.commit=$(COMMIT)' \
		-o bin/ ./cmd/patchbay

# The time of the commit. Nothing in a package has another one.
EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

DIST  ?= $(CURDIR)/dist

.PHONY: package
package: ## build the Debian packages, archives, bills of materials and checksums of all systems into dist/
	cd packaging && $(GO) run . -source .. -out $(DIST) -version $(VERSION) -commit '$(COMMIT)' -epoch $(EPOCH)

# The SSH key that signs a release.
KEY ?=

.PHONY: release
release: ## check everything, build all packages and sign them with an SSH key: make release VERSION=v1.2.3 KEY=FILE
	packaging/release '$(VERSION)' '$(KEY)'

.PHONY: check-package
check-package: ## build the package of this system twice, in two directories and without a cache, and compare
	packaging/reproduce $(VERSION) '$(COMMIT)' $(EPOCH)

.PHONY: module
module: ## write this clone to dist/module as "go get" would download it; README says how to use that
	@cd tools && $(GO) run ./module -source .. -out $(DIST)/module -version '$(VERSION)' -epoch $(EPOCH)

.PHONY: recording
recording: build ## record the demo for README, in docs/images/demo.svg
	bin/patchbay demo | $(GO) run -C tools ./recording > docs/images/demo.svg

.PHONY: man
man: ## make the man pages and completion scripts in dist/man and dist/completions
	SOURCE_DATE_EPOCH=$(EPOCH) $(GO) run ./cmd/patchbay/internal/mangen dist

.PHONY: test
test: ## run the tests with the race detector; NO_INSTALL=1 does not install Chromium
	@.ci/test most $(TEST_FLAGS)

.PHONY: test-all
test-all: ## run the other tests: campaigns, and those that compile the kubelet, Nomad and other peers, build releases, or follow README
	@.ci/test rest $(TEST_FLAGS)

.PHONY: crash
crash: ## kill the daemon and its plugins 1,000 times at random instants, and check that nothing is lost
	$(GO) test -run TestKillNineLosesNothing -timeout 60m -count 1 -v ./cmd/patchbay/internal/cli -kills 1000

.PHONY: handover
handover: ## hand a plugin over 100 times, during 1,000,000 connections to it, and check that none is refused
	cd integration && $(GO) test -run '^TestHandover$$' -timeout 30m -count 1 -v ./runtime -handover.upgrades 100 -handover.connects 1000000

.PHONY: failpoints
failpoints: ## make the daemon fail at each failpoint, and check the result; part of "make test-all"
	cd integration && $(GO) test -race -count 1 -v ./failpoints

.PHONY: hostile
hostile: ## attack the daemon with each hostile plugin, and print its resource usage before and during the attack; part of "make test-all"
	cd integration && $(GO) test -count 1 -v -run '^TestHostilePlugins$$' ./hostile | grep -e '^ *| ' -e '^ *--- FAIL' -e '^ok' -e '^FAIL'

.PHONY: hostile-links
hostile-links: ## end 10,000 processes of plugins that leave links to root's socket behind, and check that no call gets there
	cd integration && $(GO) test -count 1 -timeout 120m -v -run '^TestLinksLeftByEndedPlugins$$' ./hostile -args -rounds 1667 | \
	grep -e 'root.s socket' -e '^ *--- ' -e '^ok' -e '^FAIL'

# The last commit before endpoints were judged and totals bounded.
BEFORE ?= 5719ac579a22c8f07829b9b77c6f304858dd8f00

.PHONY: hostile-compare
hostile-compare: ## attack the daemon of a commit (BEFORE=...) and this one, and write what each used to integration/hostile/testdata/compared.md
	dir=$$(mktemp -d) && chmod 755 $$dir && trap "git worktree remove --force $$dir/before; rm -rf $$dir" EXIT && \
	git worktree add --detach $$dir/before $(BEFORE) && (cd $$dir/before && $(GO) build -o $$dir/patchbay ./cmd/patchbay) && \
	cd integration && $(GO) test -count 1 -timeout 60m -v -run '^TestCompare$$' ./hostile -args -before $$dir/patchbay

.PHONY: pairs
pairs: ## make the daemon fail at each failpoint together with each of ten other faults; an interrupted run can be resumed
	.ci/pairs

# How make repeat runs the tests, cold, warm or loaded, and how often.
KIND ?= warm
RUNS ?= 10

.PHONY: repeat
repeat: ## run "make test" RUNS (10) times in fresh clones, KIND=cold, warm or loaded; an interrupted series can be resumed
	@.ci/repeat $(KIND) $(RUNS)

# How often make verify-upstream verifies each plugin.
REPEAT ?= 50

.PHONY: verify-upstream
verify-upstream: ## verify each plugin of others REPEAT (50) times at load 8, and check that no verdict changes
	cd integration && ../.ci/loaded 8 $(GO) test -run '^TestVerify' -count $(REPEAT) -timeout 4h .

.PHONY: upgrades
upgrades: ## replace a plugin of go-plugin 50 times under 64 callers and 8 streams, and check that no call fails
	$(GO) test -run '^TestUpgradesUnderLoad$$' -count 1 -v -timeout 30m ./host/goplugin -upgrades 50

# How many seeds make simulate tries.
SEEDS ?= 1000000

.PHONY: simulate
simulate: ## run the simulation of the core with SEEDS (1000000) seeds; an interrupted run can be resumed
	.ci/simulate $(SEEDS)

# How many calls make locks makes.
LOCK_CALLS ?= 1000000

.PHONY: locks
locks: ## call locks of the fleet LOCK_CALLS (1000000) times through faults of etcd, and check the results; an interrupted run can be resumed
	.ci/locks $(LOCK_CALLS)

.PHONY: mutants
mutants: ## check that the simulations of the core and of launching find each fault that they are given
	$(GO) test -run '^TestMutants$$' -count 1 -v -timeout 2h ./internal/reconciler -simulate.mutants 20000
	$(GO) test -run '^TestMutants$$' -count 1 -v -timeout 1h ./internal/launch/supervise ./host -simulate.mutants

.PHONY: fuzz
fuzz: ## run each fuzz target until 10 minutes of processor time were spent on it, and keep what it finds
	cd tools && $(GO) run ./fuzz ..

# How long the soak disturbs the daemon.
SOAK ?= 20m

.PHONY: soak
soak: ## disturb a daemon with every fault for SOAK (20m), and check that it recovers each time
	cd integration && $(GO) run ./soak -for $(SOAK)

# The size of the load; LOAD=1m is a shorter one.
LOAD ?= 10m

.PHONY: load
load: ## 5,000 plugins of which 200 a second are replaced for LOAD (10m), 10,000 subscribers, 1,000 processes, no descriptors left
	cd integration && $(GO) test -count 1 -v -timeout 2h ./load -sockets 5000 -rate 200 -for $(LOAD) -window 1m -subscribers 10000 \
		-streams 10000 -sequence 1000 -at-once 200

.PHONY: cover
cover: ## run the tests of the main module and show how much of each function they reach
	$(GO) test -timeout 5m -coverprofile=coverage.out -coverpkg=./... ./...
	$(GO) tool cover -func=coverage.out

# From this commit on, subjects have at most 72 characters.
SUBJECTS_SINCE := 353d525

.PHONY: check-subjects
check-subjects: ## fail if the subject of a commit is too long to be shown whole
	@git cat-file -e $(SUBJECTS_SINCE) 2>/dev/null || { echo "check-subjects: $(SUBJECTS_SINCE) is not in this clone, nothing is checked"; exit 0; }; \
	git log --format=%s $(SUBJECTS_SINCE)..HEAD | \
		awk 'length > 72 { print "this subject has more than 72 characters: " $$0; long = 1 } END { exit long }'

.PHONY: lint
lint: check-generated check-subjects ## run the linters, and go vet for macOS
	@for module in $(LINT_MODULES); do \
		echo "golangci-lint: $$module"; \
		(cd $$module && $(TOOL) golangci-lint run ./...) || exit 1; \
	done
	GOOS=darwin $(GO) vet ./...
	cd examples && GOOS=darwin $(GO) vet ./...

.PHONY: vuln
vuln: ## look for known vulnerabilities in what is called; needs the network
	@for module in $(LINT_MODULES); do echo "govulncheck: $$module"; (cd $$module && $(TOOL) govulncheck -test ./...) || exit 1; done

.PHONY: generate
generate: ## generate the Go code of the protobuf files
	cd tools && $(GO) run ./protogen ..

.PHONY: check-generated
check-generated: ## fail if the generated code is not that of the protobuf files
	cd tools && $(GO) run ./protogen -check ..

.PHONY: screenshot
screenshot: ## take the pictures of the status page that are in the docs
	.ci/browser
	cd integration && $(GO) test -count 1 -run 'TestScreenshot|TestSizes' ./browser -screenshots $(CURDIR)/docs/images -shown

# Comparisons for make bench, for example ROWS='p1 p6'; all if empty. With RESUME=1 only those that have no results of this commit.
ROWS ?=

.PHONY: bench
bench: ## compare with other systems, about an hour; write bench/results and docs/reference/performance.md
	bench/record $(if $(RESUME),-resume) $(ROWS)
	$(MAKE) --no-print-directory performance

# What make syscalls counts: of each registration, launch or call, of which contestants, for example OF=floor,watcher, by strace or perf.
WORK ?= registration
OF ?= watcher
BY ?= strace

.PHONY: syscalls
syscalls: ## count the system calls by name: of each WORK=registration, launch or call, of the contestants OF=watcher, BY=strace or perf
	cd bench && $(GO) test -run '^$$' -bench Syscalls . -syscalls.work $(WORK) -syscalls.of $(OF) -syscalls.by $(BY)

.PHONY: performance
performance: ## make docs/reference/performance.md and its charts of bench/results
	cd bench/report && $(GO) run .

.PHONY: bench-short
bench-short: ## make every comparison once and small, and check docs/reference/performance.md
	cd bench && $(GO) test -timeout 15m -count 1 ./...
	cd bench/report && $(GO) test -count 1 ./...

.PHONY: bench-packages
bench-packages: ## run the benchmarks of the packages
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m ./...
