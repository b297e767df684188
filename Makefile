# make help lists the targets.
SHELL := /bin/bash
GO ?= go
BIN := bin
DURATION ?= 30m
export PASEO_SANDBOX_CACHE ?= /var/cache/paseo-sandbox

# What runs on the host: static, so that a program runs wherever it is copied.
PROGRAMS := ./broker/cmd/... ./bridge/cmd/... ./shared/cmd/...

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: setup
setup: ## build the pinned runsc and the Pi root file system into a cache (root, Debian)
	@$(GO) run ./installer/cmd/setup

.PHONY: build
build: ## build the programs into bin/
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/ $(PROGRAMS)

.PHONY: demo
demo: setup build ## kill a daemon in the middle of work and replace it (root)
	@$(GO) build -o $(BIN)/ ./e2e/cmd/demo
	@$(BIN)/demo --bin $(BIN)

.PHONY: test
test: setup-for-tests ## unit, property, fuzz-corpus and end-to-end tests, with the race detector
	$(GO) test -race -count=1 -timeout 20m ./...

# -count=1: the end-to-end tests build and run programs that the cache of test
# results knows nothing of.
# Without root the end-to-end tests skip themselves and need no artifacts.
.PHONY: setup-for-tests
setup-for-tests:
	@if [ "$$(id -u)" = 0 ]; then $(GO) run ./installer/cmd/setup --tests; \
	else echo "not root: the end-to-end tests are left out; run 'sudo make test' for all of them"; fi

.PHONY: lint
lint: ## gofmt, go vet, staticcheck
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not formatted (run gofmt -w): $$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

.PHONY: bench
bench: setup build ## measure session start and throughput, as ratios from one run (root)
	@$(GO) build -o $(BIN)/ ./e2e/cmd/bench
	@$(BIN)/bench --bin $(BIN)

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (default 1m)
	@e2e/fuzz.sh $(or $(FUZZTIME),1m)

.PHONY: soak
soak: setup-for-tests ## kill storms, stories and fuzzing for DURATION (default 30m)
	@e2e/soak.sh $(DURATION)

.PHONY: tcb
tcb: ## what runs as root: lines of our own, modules linked in, capabilities
	@$(GO) run ./e2e/cmd/tcb

.PHONY: clean
clean: ## remove bin/; the cache stays (installer/README.md says how to remove it)
	rm -rf $(BIN)
