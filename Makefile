# `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# The servers to test with: bookworm is PostgreSQL 15 and RabbitMQ 3.10 of the machine, trixie PostgreSQL 17 and
# RabbitMQ 4.0 in a folder of their own.
TEST_SERVERS ?= bookworm trixie
# Some scenarios run a whole fleet: more of them at once than there are processors make deadlines pass.
TEST_THREADS ?= 2
# Whether `make test` also runs the scenarios on a cluster; `no` needs neither Go nor containerd.
TEST_CLUSTER ?= yes
WITH_CLUSTER := $(filter yes,$(TEST_CLUSTER))
# For `make scenarios`: a part of the names of those to run.
ONLY ?=

# Abort points and broken variants for the scenarios. The same flag everywhere, so that nothing is built twice.
HOOKS := --features postroom-worker/test-hooks
CRATES := postroom-crds postroom-operator postroom-worker postroom-tests
CHART_CRD := charts/postroom/templates/crd-inboxoutboxes.yaml

.PHONY: help setup build lint generate verify test scenarios cluster demo quickstart demo-down image bench

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install the servers that tests and demos start, and the programs of Kubernetes (root, Debian 12)
	tests/services/install.sh $(TEST_SERVERS) examples $(WITH_CLUSTER:yes=cluster)
	$(if $(WITH_CLUSTER),tests/cluster/build.sh)

build: ## Build everything for development and tests
	cargo build --locked --workspace --all-targets $(HOOKS)
	tests/examples/build.sh

lint: ## Check format, lints, scripts, and that each crate builds alone
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --all-targets $(HOOKS) -- -D warnings
	for crate in $(CRATES); do cargo check --locked --quiet --package "$$crate"; done
	cargo check --locked --quiet --package postroom-crds --no-default-features
	for script in .ci/run tests/run.sh tests/*/*.sh; do bash -n "$$script"; done

generate: ## Write the generated files again
	cargo build --locked --workspace
	target/debug/postroom-operator crds --chart > $(CHART_CRD).new
	mv $(CHART_CRD).new $(CHART_CRD)

verify: ## Fail if a generated file is not what would be generated
	cargo build --locked --workspace $(HOOKS)
	target/debug/postroom-operator crds --chart | diff -u $(CHART_CRD) - \
	  || { echo "$(CHART_CRD) is not current: run 'make generate'" >&2; exit 1; }

test: setup build $(WITH_CLUSTER:yes=image) ## Run all tests: units, scenarios with every flavour of TEST_SERVERS, scenarios on a cluster
	TEST_THREADS=$(TEST_THREADS) TEST_CLUSTER=$(TEST_CLUSTER) tests/run.sh $(TEST_SERVERS)

scenarios: build ## Run some scenarios, for example: make scenarios ONLY=drain TEST_SERVERS=trixie
	for servers in $(TEST_SERVERS); do \
	  POSTROOM_TEST_SERVERS=$$servers cargo test --locked --workspace $(HOOKS) --test scenarios -- \
	    --test-threads=$(TEST_THREADS) $(ONLY); \
	done

cluster: build image ## Run some scenarios on a cluster, for example: make cluster ONLY=drain (KEEP=1 keeps the cluster)
	TEST_THREADS=$(TEST_THREADS) tests/cluster/run.sh $(ONLY)

demo: ## Show it on Kubernetes: chart, resource, a shop, a worker killed (CLUSTER=own, current or kind)
	@tests/demo/demo.sh

quickstart: ## Show it without a cluster: the same shop, workers as processes of this machine
	@tests/demo/quickstart.sh

demo-down: ## Remove what demo or quickstart left running
	@tests/demo/down.sh

image: ## Build the image of operator and worker, target/image/postroom.tar
	tests/services/install.sh bookworm cluster
	tests/image/build.sh

bench: ## Measure, against a bare publishing loop on the same machine
	tests/services/install.sh
	cargo build --locked --release --package postroom-worker --package postroom-tests
	target/release/postroom-bench
