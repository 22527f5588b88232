# All targets work on a fresh Debian with Rust, Go and a C compiler. The rig builds or installs
# everything else, as root.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# Most tests wait most of the time: with 4, a third of two cores is idle. Each end-to-end test needs up to 700 MB.
TEST_THREADS ?= 6

# Always all packages: another selection builds the dependencies once more, with other features.
BUILD := cargo build --workspace
TEST := cargo test --workspace
RIG := target/debug/rig
# For recipes that do more than this: make executes every line that contains $(MAKE), also with -n.
SUBMAKE = $(MAKE) --no-print-directory

.PHONY: help
help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | while IFS='|' read -r target what; do printf '  make %-18s %s\n' "$$target" "$$what"; done

.PHONY: need-rust need-go need-root
need-rust:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust, see https://rustup.rs (rust-toolchain.toml selects the version)" >&2; exit 1; }
	@case "$(CURDIR)" in *[[:space:]]*) echo "the path $(CURDIR) contains a space, and the allocator jemalloc cannot be built in such a path: clone the repository elsewhere" >&2; exit 1;; esac
	@command -v cc >/dev/null || { echo "a C compiler is missing, which Rust uses to link; on Debian: apt-get install gcc libc6-dev" >&2; exit 1; }

need-go:
	@[ -n "$$KUBEBUILDER_ASSETS" ] || command -v go >/dev/null || [ -x /usr/local/go/bin/go ] || { echo "go is missing: install Go, see https://go.dev/dl, or set KUBEBUILDER_ASSETS to a folder that contains a control plane" >&2; exit 1; }

# Checked before anything is built, because building takes minutes.
need-root:
	@[ "$$(id -u)" = 0 ] || { echo "root is required: the NFS server that is started, nfs-ganesha, runs only as root; use sudo: sudo --preserve-env=HOME,PATH make $(MAKECMDGOALS)" >&2; exit 1; }

# In the profile of the tests, which builds in a third of the time of a release. The control plane is built beside the
# operator.
.PHONY: run
run: need-root need-rust need-go ## Start a cluster, an NFS export and the operator, and provision a claim (EXIT=1: then archive it and exit)
	@echo "building the operator and the rig, and a control plane unless there is one: the first time, 10 to 14 minutes on two cores"
	@start=$$SECONDS; $(BUILD) --bin rig || exit; \
	$(RIG) assets --only-up & assets=$$!; trap "kill $$assets 2>/dev/null" EXIT; \
	$(BUILD) --bin nfs-operator && wait $$assets || exit; \
	trap - EXIT; echo "built, took $$((SECONDS - start)) s"
	@$(RIG) up --operator target/debug/nfs-operator $(if $(EXIT),--exit)

.PHONY: assets
assets: need-root need-rust need-go ## Build and install only what the tests need
	@cargo run -q -p rig -- assets

# All tests and the rig, and then what the rig needs.
.PHONY: tests
tests: need-root need-rust need-go
	$(TEST) --no-run
	@$(RIG) assets

# Each cluster of `make test` writes its audit log here: the operator's requests, and the rule that
# allowed each.
AUDIT := $(CURDIR)/target/audit

# The operator of the end-to-end tests and of the tests in a pod, and the simulation.
OPTIMIZED := $(CURDIR)/target/optimized-test
OPTIMIZED_PACKAGES := -p sim -p nfs-operator --bins

# Checks that no column was skipped; needs the results of the other tests.
LAST_TEST := conformance::report::every_column_of_the_tables_was_run

.PHONY: test
test: export NFS_OPERATOR_RIG_AUDIT := $(AUDIT)
# The clusters' tests keep both cores busy, a third of it with the operator, unless that is optimized.
test: export NFS_OPERATOR_BINARY := $(OPTIMIZED)/nfs-operator
# The Kubernetes programs, which live for seconds and collect garbage less often then, for more memory.
test: export GOGC := 400
test: tests ## Run all tests: unit tests, the check of crds/, the rig, and tests on a real cluster and NFS servers
	@rm -rf "$(AUDIT)"
	@echo "unit tests, and whether crds/ is up to date"
	$(TEST) --lib --bins
	$(TEST) --doc
	@$(SUBMAKE) sim-test
	@# Without the emulated machine, the tests that need it are skipped; this is repeated at the end.
	@# So are those that need ZFS, if the machine with it was not built before, which takes minutes.
	@began=$$(date +%s); \
	$(RIG) kernel-vm || { skip="--skip kernel::"; without=knfsd; }; \
	[ -n "$$skip" ] || $(RIG) zfs-vm --check || without_zfs="--skip zfs::"; \
	$(RIG) node-assets || without_node="--skip node::"; \
	echo "tests of the crates and of the rig, and end-to-end tests"; \
	$(TEST) --no-fail-fast --test '*' -- --test-threads=$(TEST_THREADS) $$skip $$without_zfs $$without_node && \
	echo "whether every column of docs/reliability.md was tested" && \
	CONFORMANCE_SINCE=$$began CONFORMANCE_WITHOUT=$$without $(TEST) -q --test live -- --ignored --exact $(LAST_TEST) && \
	{ [ -n "$$without_node" ] || $(SUBMAKE) pod; } && \
	if [ -n "$$without_node" ]; then echo "NOT TESTED: the image, the chart and the operator in a real pod; for the cause, see above (make test-pod)" >&2; fi && \
	if [ -n "$$skip" ]; then echo "NOT TESTED: the Linux kernel's NFS server and client; for the cause, see above (make test-kernel)" >&2; fi && \
	if [ -n "$$skip$$without_zfs" ]; then echo "NOT TESTED: ZFS; make test-zfs compiles and tests it, and later runs of make test include it" >&2; fi
	@echo "permissions of the operator, compared with their use in all of these tests"
	@$(RIG) rights "$(AUDIT)"
	@$(RIG) clean

# These clusters run another Kubernetes release (tests/rig/control-plane/oldest.mod), so their audit
# logs are kept apart.
AUDIT_OLDEST := $(CURDIR)/target/audit-oldest

.PHONY: test-oldest
test-oldest: export NFS_OPERATOR_RIG_KUBERNETES := oldest
test-oldest: export NFS_OPERATOR_RIG_AUDIT := $(AUDIT_OLDEST)
test-oldest: tests ## Run the tests that need a cluster on the oldest Kubernetes release that the chart supports
	@rm -rf "$(AUDIT_OLDEST)"
	$(TEST) --test cluster
	$(TEST) --test chart
	@# ZFS does not depend on the release: make test tests it.
	@$(RIG) kernel-vm || { skip="--skip kernel::"; \
	echo "NOT TESTED on this release: volumes that the Linux kernel mounts; for the cause, see above" >&2; }; \
	$(TEST) --test e2e -- --test-threads=$(TEST_THREADS) --skip zfs:: $$skip
	@if $(RIG) node-assets; then $(TEST) --test node && $(SUBMAKE) pod; \
	else echo "NOT TESTED on this release: the image, the chart and the operator in a real pod; for the cause, see above" >&2; fi
	@echo "permissions of the operator, compared with their use in all of these tests"
	@$(RIG) rights "$(AUDIT_OLDEST)"
	@$(RIG) clean

.PHONY: test-kernel
test-kernel: tests ## Run the tests against the Linux kernel's NFS server and client, in an emulated machine
	@$(RIG) kernel-vm
	$(TEST) --test kernel_vm
	@$(RIG) zfs-vm --check || skip="--skip zfs::"; \
	$(TEST) --no-fail-fast --test live --test store --test e2e kernel:: -- --test-threads=$(TEST_THREADS) $$skip
	@$(RIG) clean

.PHONY: test-zfs
test-zfs: tests ## Compile ZFS for the emulated machine, and run the tests against it
	@$(RIG) zfs-vm
	$(TEST) --no-fail-fast --test store --test e2e zfs:: -- --test-threads=$(TEST_THREADS)
	@$(RIG) clean

.PHONY: test-pod
test-pod: tests ## Run the tests of the chart and the image in a real pod; requires root
	@$(RIG) node-assets
	$(TEST) --test node --test e2e node::
	@$(MAKE) --no-print-directory pod
	@$(RIG) clean

# The profile of the operator in the image of these tests: release takes minutes more.
POD_PROFILE ?= optimized-test
POD_IMAGE := $(CURDIR)/target/image/$(POD_PROFILE).tar
IS_OPTIMIZED := $(filter optimized-test,$(POD_PROFILE))

.PHONY: pod
pod: $(if $(IS_OPTIMIZED),optimized)
	@echo "building the image for the tests in a real pod"
	@image/build $(POD_PROFILE) "$$(uname -m)" "$(POD_IMAGE)" $(if $(IS_OPTIMIZED),$(OPTIMIZED)/nfs-operator)
	NFS_OPERATOR_IMAGE="$(POD_IMAGE)" $(TEST) --test pod

.PHONY: image
image: need-rust ## Build the image as an OCI archive in dist/, and print its size (ARCH=amd64 or arm64)
	@cargo run -q -p rig -- image-tools $(ARCH)
	@image/build release $(or $(ARCH),"$$(uname -m)")

# The programs that are measured, without the simulation, which adds a controllable clock to tokio.
# Other profiles than release build faster, and their figures mean less (PROFILE=optimized-test).
PROFILE ?= release
BENCH_PACKAGES := -p nfs-operator -p rig
BENCH_DIR = target/$(PROFILE:dev=debug)

# BASE: a revision to compare with, built in the same profile (.ci/base).
BASE_CHECKOUT = $(CURDIR)/target/base/$(shell git rev-parse --verify "$(BASE)^{commit}")
BENCH_BASE = $(if $(BASE),--base $(BASE_CHECKOUT)/$(BENCH_DIR)/nfs-operator --base-checkout $(BASE_CHECKOUT))
# What `make bench-operator` passes on.
BENCH_SETTINGS := COUNT CONCURRENCY LONE SCALE STORM WAITING FOREIGN CYCLES BACKENDS SCHEDULES BINDER ROUND_TRIP
BENCH = $(BENCH_DIR)/rig bench --operator $(BENCH_DIR)/nfs-operator

.PHONY: bench
bench: bench-operator bench-round-trips bench-client bench-copy bench-quotas ## Measure the operator, the NFS client alone, clones, and enforced sizes (the variables of all; BASE=REVISION to compare with)

.PHONY: bench-build
bench-build: need-root need-rust need-go
	@$(if $(BASE),.ci/base "$(BASE)" build "$(PROFILE)" $(BENCH_PACKAGES))
	@cargo build --profile $(PROFILE) $(BENCH_PACKAGES)

.PHONY: bench-operator
bench-operator: bench-build ## Measure rates, latency and requests against plain API clients (COUNT=500 CONCURRENCY=64 LONE=100 BASE=REVISION ROUND_TRIP=5), or instead SCALE=100000 (NO_SCAN=1), STORM=10000, WAITING=10000, FOREIGN=500000, CYCLES=20, BACKENDS=1000, SCHEDULES=1000 or BINDER=100 (PROFILE=optimized-test builds faster)
	@$(BENCH) $(BENCH_BASE) $(foreach name,$(BENCH_SETTINGS),$(if $($(name)),--$(subst _,-,$(shell echo $(name) | tr A-Z a-z)) $($(name)))) $(if $(NO_SCAN),--no-scan)

# One after the other, because each needs the whole machine. Each continues if the one before failed.
.PHONY: bench-targets
bench-targets: bench-build ## Measure everything that has a target, for two hours on two cores, and write it to target/bench (BASE=REVISION)
	@mkdir -p target/bench; failed=; \
	measure() { name=$$1; shift; echo "== $$name"; $(BENCH) "$$@" 2>&1 | tee target/bench/$$name.txt; [ "$${PIPESTATUS[0]}" = 0 ] || failed="$$failed $$name"; }; \
	measure rates $(BENCH_BASE); \
	measure round-trip --round-trip 5; \
	measure cycles --cycles 20 --count 1000; \
	measure waiting --waiting 10000; \
	measure storm --storm 10000; \
	measure foreign --foreign 500000; \
	measure backends --backends 1000; \
	measure schedules --schedules 1000; \
	measure binder --binder 100; \
	measure scale --scale 100000 --no-scan; \
	$(SUBMAKE) bench-round-trips 2>&1 | tee target/bench/nfs-round-trips.txt; [ "$${PIPESTATUS[0]}" = 0 ] || failed="$$failed nfs-round-trips"; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

.PHONY: bench-round-trips
bench-round-trips: need-root need-rust ## Count the NFS round trips of a claim, a Delete and an Archive
	@$(TEST) -q --test store -- --nocapture --exact round_trips::each_operation_takes_few_round_trips | grep -E '^V4|^test result'

.PHONY: bench-client
bench-client: need-root need-rust ## Measure the NFS client at round trips of 0, 1 and 10 ms in comparison with sequential calls (ROUND_TRIPS=0,1,10 MEMORY=200000 LARGE=100000 BASE=REVISION)
	@$(if $(BASE),.ci/base "$(BASE)" bench -p nfs-client --bench client -- $(BENCH_CLIENT))
	@cargo bench -q -p nfs-client --bench client -- $(BENCH_CLIENT)

BENCH_CLIENT = $(if $(ROUND_TRIPS),--round-trips $(ROUND_TRIPS)) $(if $(MEMORY),--memory $(MEMORY)) $(if $(LARGE),--large $(LARGE))

.PHONY: bench-copy
bench-copy: need-root need-rust ## Measure clones in comparison with `cp -a` on the server's disk, and two backups of one volume (SMALL=10000 LARGE_MIB=1024 BACKUP=100000 BASE=REVISION)
	@$(if $(BASE),.ci/base "$(BASE)" bench -p export-store --bench copy -- $(BENCH_COPY))
	@cargo bench -q -p export-store --bench copy -- $(BENCH_COPY)

BENCH_COPY = $(if $(SMALL),--small $(SMALL)) $(if $(LARGE_MIB),--large $(LARGE_MIB)) $(if $(BACKUP),--backup $(BACKUP))

.PHONY: bench-quotas
bench-quotas: bench-build ## Measure what enforced sizes cost: the quota agent alone, and on XFS in the emulated machine (VOLUMES=10000 COUNT=300 CORES=2)
	@cargo bench -q -p quota-agent --bench agent -- $(if $(VOLUMES),--volumes $(VOLUMES))
	@$(BENCH_DIR)/rig kernel-vm
	@$(BENCH_DIR)/rig bench-quotas --operator $(BENCH_DIR)/nfs-operator $(if $(COUNT),--count $(COUNT)) $(if $(CORES),--cores $(CORES))

FUZZ_SECONDS ?= 600

# What `make sim` passes on.
SIM_SETTINGS := SEED SEEDS FROM JOBS FAILURES SHRINK ACTIONS REPLICAS KILLS API_FAULTS NFS_FAULTS ACCIDENTS ADMINISTRATORS FOLLOW_UPS PAUSE SKIP CASE TRACE

.PHONY: sim
sim: need-rust ## Run the operator in simulated clusters, each from a seed (SEEDS=10000 FROM=1 JOBS=2; or SEED=4711 TRACE=1 for the story of one)
	@cargo build -q --profile sim -p sim
	@target/sim/sim $(if $(SEED),run,many) $(foreach name,$(SIM_SETTINGS),$(if $($(name)),$(name)=$($(name))))

# Static programs, as in the image, unless this machine has no compiler for them. With one selection of packages, the
# operator and the simulation share what they depend on.
.PHONY: optimized
optimized: need-rust
	@echo "building the simulation and the operator: optimized, with the checks of tests"
	@$(BUILD) -q --bin rig || exit; machine=$$(uname -m); \
	if $(RIG) image-tools "$$machine"; \
	then image/program "$$machine" optimized-test $(OPTIMIZED)/nfs-operator $(OPTIMIZED_PACKAGES) && \
	  cp "target/$$machine-unknown-linux-musl/optimized-test/sim" $(OPTIMIZED)/sim; \
	else cargo build -q --profile optimized-test $(OPTIMIZED_PACKAGES); fi

.PHONY: sim-test
sim-test: optimized
	@echo "500 simulated clusters, and whether a seed always gives the same run"
	@$(OPTIMIZED)/sim regressions
	@$(OPTIMIZED)/sim twice SEEDS=100
	@$(OPTIMIZED)/sim many FROM=101 SEEDS=400

.PHONY: sim-mutations
sim-mutations: need-rust ## Revert one safeguard after the other, and update in docs/reliability.md after how many seeds the simulation detects it (SEEDS=20000 NAME=beacon-is-not-checked); hours
	@cargo build -q --profile sim -p sim
	@target/sim/sim mutations $(if $(SEEDS),SEEDS=$(SEEDS)) $(if $(JOBS),JOBS=$(JOBS)) $(NAME)

.PHONY: fuzz
fuzz: need-rust ## Fuzz the decoders (FUZZ_SECONDS=600 for each; TARGET=v4-replies for only one); installs nightly Rust and cargo-fuzz
	@.ci/fuzz $(FUZZ_SECONDS) $(TARGET)

.PHONY: lint
lint: need-rust ## Check the formatting, and run clippy with warnings as errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

# Tools that check the dependencies. cargo installs them into the project's cache on first use,
# without optimization: this takes a third of the time to build, and they still run in seconds.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/nfs-operator
DENY := $(CACHE)/cargo-deny-0.20.2
CYCLONEDX := $(CACHE)/cargo-cyclonedx-0.5.9
$(DENY) $(CYCLONEDX): | need-rust
	@echo "installing $(notdir $@) into $(CACHE) (several minutes, once)"
	cargo install --quiet --locked --debug --root $@.new $(shell echo $(notdir $@) | sed -E 's/-([0-9.]+)$$/@\1/')
	mv $@.new $@

.PHONY: deny
deny: $(DENY) ## Check licenses, bans and sources of all dependencies, and known vulnerabilities if their database can be reached (REQUIRE_ADVISORIES=1: fail otherwise)
	$(DENY)/bin/cargo-deny check --hide-inclusion-graph licenses bans sources
	@if $(DENY)/bin/cargo-deny fetch db; then $(DENY)/bin/cargo-deny check --disable-fetch advisories; \
	else echo "NOT CHECKED: known vulnerabilities of dependencies; their database could not be fetched, see above" >&2; $(if $(REQUIRE_ADVISORIES),exit 1;) fi

# A tool that checks the chart. It is built like the Go programs of the rig (tests/rig/src/assets/mod.rs).
KUBE_SCORE := $(CACHE)/kube-score-1.20.0
$(KUBE_SCORE): | need-go
	@echo "installing $(notdir $@) into $(CACHE) (a minute, once)"
	PATH="$$PATH:/usr/local/go/bin" GOBIN=$@.new GOGC=400 go install -trimpath -gcflags=all=-dwarf=false github.com/zegl/kube-score/cmd/kube-score@v$(subst kube-score-,,$(notdir $@))
	mv $@.new $@

# With a class, so that the pod of `helm test` is among the objects.
.PHONY: kube-score
kube-score: need-rust need-go $(KUBE_SCORE) ## Compare what kube-score finds in the chart with tests/chart/kube-score.txt, whose lines docs/install.md explains (HELM=helm)
	@helm="$(or $(HELM),$$($(BUILD) --bin rig && $(RIG) assets | sed -n 's/^Helm: *//p' | head -n 1))"; \
	oldest=$$(sed -n 's/^kubeVersion: ">=\(.*\)-0"/\1/p' config/helm/nfs-operator/Chart.yaml); \
	for replicas in 1 2; do \
	  "$$helm" template nfs-operator config/helm/nfs-operator --namespace nfs-operator-system --kube-version "$$oldest" \
	    --set replicaCount=$$replicas,storageClasses.nfs.parameters.backend=main \
	    | $(KUBE_SCORE)/kube-score score --output-format ci - | grep '^\[CRITICAL\]' | LC_ALL=C sort | diff tests/chart/kube-score.txt - || exit; \
	done; echo "kube-score finds what tests/chart/kube-score.txt lists, and nothing else"

# The SBOM must not depend on the build machine: it has the time of the commit, and contains no
# local path.
.PHONY: sbom
sbom: $(CYCLONEDX) ## Write dist/nfs-operator.cdx.json: every crate in the program, with version, license and hash (CycloneDX 1.5)
	@mkdir -p dist
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) PATH="$(CYCLONEDX)/bin:$$PATH" cargo cyclonedx --quiet --format json --spec-version 1.5 \
	  --describe binaries --no-build-deps --target x86_64-unknown-linux-gnu
	@sed -E 's|path\+file://[^"#]*#||' nfs-operator_bin.cdx.json > dist/nfs-operator.cdx.json
	@rm -f nfs-operator_bin.cdx.json tests/rig/rig_bin.cdx.json
	@echo "dist/nfs-operator.cdx.json: $$(grep -c '"purl"' dist/nfs-operator.cdx.json) components"

.PHONY: crds
crds: need-rust ## Generate crds/ from the code, and the files that depend on it
	cargo run -q -- crd > crds/nfs-operator.yaml.new
	mv crds/nfs-operator.yaml.new crds/nfs-operator.yaml
	@$(MAKE) --no-print-directory chart docs

.PHONY: chart
chart: need-rust ## Generate the files that depend on crds/, config/prometheus and the chart's values: copies, values.schema.json, docs/install.md
	WRITE=1 cargo test -q --test chart generated::

.PHONY: release
release: need-rust need-go ## Prepare a release: versions, a commit, dist/ and a tag, without pushing (VERSION=1.2.3 ARCHES="amd64 arm64")
	@.ci/release "$(VERSION)"

.PHONY: docs
docs: need-rust ## Generate docs/reference.md from crds/, and the pages of annotations, commands, metrics and reasons from the code
	cargo run -q -p rig -- reference > docs/reference.md.new
	mv docs/reference.md.new docs/reference.md
	WRITE=1 cargo test -q --workspace --test documentation generated_page
	WRITE=1 cargo test -q --workspace --test commands_page

.PHONY: recording
recording: need-root need-rust need-go ## Record a run and render it to docs/images/demo.svg
	@docs/images/record

.PHONY: clean-cache
clean-cache: need-rust ## Remove the built control plane, the emulated machine and the folders of aborted runs
	@cargo run -q -p rig -- clean --kept
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/nfs-operator"
