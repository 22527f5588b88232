# Everything here works on a fresh Debian with Rust and Go; what else is needed is built or installed by the rig.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# What the release programs are; `cargo` keeps them up to date.
OPERATOR := target/release/nfs-operator

# Black-box tests wait more than they compute.
TEST_THREADS ?= 8

.PHONY: help
help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

.PHONY: need-rust need-go
need-rust:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust, see https://rustup.rs (rust-toolchain.toml picks the version)" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "a C compiler is missing: Rust links with it; on Debian: apt-get install gcc libc6-dev" >&2; exit 1; }

need-go:
	@[ -n "$$KUBEBUILDER_ASSETS" ] || command -v go >/dev/null || [ -x /usr/local/go/bin/go ] || { echo "go is missing: install Go, see https://go.dev/dl, or set KUBEBUILDER_ASSETS to a folder with a control plane" >&2; exit 1; }

.PHONY: run
run: need-rust need-go ## Start a cluster, an NFS export and the operator, and provision a claim (EXIT=1: then archive it and end)
	@echo "building the operator and the rig in release mode (a few minutes the first time)"
	@start=$$SECONDS; cargo build --release --workspace --bins && echo "built, took $$((SECONDS - start)) s"
	@target/release/rig up --operator $(OPERATOR) $(if $(EXIT),--exit)

.PHONY: assets
assets: need-rust need-go ## Build and install what the tests need, and nothing else
	@cargo run -q -p rig -- assets

.PHONY: test
test: assets ## Run all tests: units, the drift of crds/, the rig, and black-box on a real cluster and NFS servers
	@echo "unit tests and the drift of crds/"
	cargo test --workspace --lib --bins
	cargo test --workspace --doc
	@# What needs the emulated machine is left out where it can't be had, and that is said at the end once more.
	@cargo run -q -p rig -- kernel-vm || skip="--skip kernel::"; \
	echo "the rig itself"; \
	cargo test -p rig --test '*' -- $$skip && \
	echo "black-box tests" && \
	cargo test --test '*' -- --test-threads=$(TEST_THREADS) $$skip && \
	if [ -n "$$skip" ]; then echo "NOT TESTED: the Linux kernel's NFS server and client; see above for what is missing (make test-kernel)" >&2; fi
	@cargo run -q -p rig -- clean

.PHONY: test-kernel
test-kernel: assets ## Run the tests against the Linux kernel's NFS server and client, in an emulated machine
	@cargo run -q -p rig -- kernel-vm
	cargo test -p rig --test kernel_vm
	cargo test --test blackbox kernel:: -- --test-threads=$(TEST_THREADS)
	@cargo run -q -p rig -- clean

.PHONY: bench
bench: bench-operator bench-client bench-copy ## Measure the operator, then the NFS client alone, then clones

.PHONY: bench-operator
bench-operator: need-rust need-go ## Measure rates, latency and memory against a bare API client (COUNT=500 CONCURRENCY=64 LONE=100; or SCALE=10000)
	@cargo build --release --workspace --bins
	@target/release/rig bench --operator $(OPERATOR) $(if $(COUNT),--count $(COUNT)) $(if $(CONCURRENCY),--concurrency $(CONCURRENCY)) $(if $(LONE),--lone $(LONE)) $(if $(SCALE),--scale $(SCALE))

.PHONY: bench-client
bench-client: need-rust ## Measure the NFS client at 0, 1 and 10 ms against one call at a time (ROUND_TRIPS=0,1,10 MEMORY=200000 LARGE=100000)
	@cargo bench -q --bench client -- $(if $(ROUND_TRIPS),--round-trips $(ROUND_TRIPS)) $(if $(MEMORY),--memory $(MEMORY)) $(if $(LARGE),--large $(LARGE))

.PHONY: bench-copy
bench-copy: need-rust ## Measure clones against `cp -a` on the server's disk (SMALL=10000 LARGE_MIB=1024)
	@cargo bench -q --bench copy -- $(if $(SMALL),--small $(SMALL)) $(if $(LARGE_MIB),--large $(LARGE_MIB))

FUZZ_SECONDS ?= 600

.PHONY: fuzz
fuzz: need-rust ## Fuzz the decoders (FUZZ_SECONDS=600 each, TARGET=v4-replies for one); installs nightly Rust and cargo-fuzz
	@fuzz/run $(FUZZ_SECONDS) $(TARGET)

.PHONY: lint
lint: need-rust ## Check the format, and clippy without a warning
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

.PHONY: crds
crds: need-rust ## Write crds/ anew from the code
	cargo run -q -- crd > crds/nfs-operator.yaml.new
	mv crds/nfs-operator.yaml.new crds/nfs-operator.yaml

.PHONY: clean-cache
clean-cache: need-rust ## Remove the built control plane, the emulated machine and the folders of dead runs
	@cargo run -q -p rig -- clean --kept
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/nfs-operator"
