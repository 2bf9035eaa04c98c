# Everything a user or a developer runs. Each target sets up what it needs; nothing is installed by hand.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
# uv, where `make setup` had to install it
export PATH := $(PATH):$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/drumline/uv/bin

help:  ## what there is
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

setup: .venv/.synced  ## Python packages from the lock file, in .venv
.venv/.synced: requirements.lock pyproject.toml tests/setup.sh
	@bash tests/setup.sh

demo: setup  ## a throwaway cluster on this machine, Drumline in it, two jobs that train
	@$(PYTHON) -m tests.demo

down: setup  ## remove every trace of the demo
	@$(PYTHON) -m tests.cluster down --name drumline

test: setup  ## all tests, as CI runs them
	@$(PYTHON) -m tests.suite

test-unit: setup  ## pure code: seconds
	@$(PYTHON) -m tests.suite unit

test-trainer: setup  ## the trainer and its agent, several processes with Gloo
	@$(PYTHON) -m tests.suite trainer

test-layouts: setup  ## layouts of up to eight ranks in which each two settings of the training matrix meet
	@$(PYTHON) -m tests.suite layouts

test-layouts-all: setup  ## the same with all adapters and optimizers
	@LAYOUTS=all $(PYTEST) -q tests/layouts

test-matrix: setup  ## a seeded slice of the kill matrix
	@$(PYTHON) -m tests.suite matrix

test-integration: setup  ## the operator against a real API server
	@$(PYTHON) -m tests.suite integration

test-e2e: setup  ## real nodes, real containers, real training (needs root and containerd)
	@$(PYTHON) -m tests.suite e2e

test-disruption: setup  ## every component that announces a node's end, on real nodes
	@DRUMLINE_SIGNALS=all $(PYTEST) -q tests/e2e/test_disruption.py

bench: setup  ## scheduling and write figures beside the raw limit of the same run
	@$(PYTHON) -m tests.bench

bench-engine: setup  ## what a cycle of the scheduling engine costs, beside the peers' figures
	@PYTHONPATH=operator:trainer $(PYTHON) -m tests.bench.engine $(GROUPS)

test-property-all: setup  ## the scheduler against brute force on tens of thousands of small clusters
	@DRUMLINE_PROPERTIES=all $(PYTEST) -q -rP --timeout=3600 tests/property/test_scheduling_pairs.py tests/property/test_scheduling_optimum.py tests/property/test_scheduling_lifetimes.py

test-samples-all: setup  ## damaged checkpoints and recoveries in a row, five and two times as many as every day
	@set -o pipefail; DRUMLINE_SAMPLES=all $(PYTEST) -q -rP tests/gloo/test_checkpoint.py tests/gloo/test_recovery.py -k "flipped or leave_nothing_behind" | grep -v "does not verify"

soak: setup  ## random lives of small clusters with fresh seeds, for MINUTES (30)
	@PYTHONPATH=operator:trainer $(PYTHON) -m tests.property.soak --minutes $(or $(MINUTES),30)

mutants: setup  ## how many small faults in quota, placement and preemption the tests notice
	@PYTHONPATH=operator:trainer $(PYTHON) -m tests.mutants

test-e2e-all: setup  ## the same with what is too long for every day
	@$(PYTEST) -q tests/e2e

bench-recovery: setup  ## time to recover, and what snapshots cost, beside a bare import of torch
	@$(PYTHON) -m tests.bench.recovery

bench-trainer: setup  ## steps, starts and saves of the trainer beside a plain script with torch's wrappers
	@PYTHONPATH=operator:trainer $(PYTHON) -m tests.bench.trainer $(PARTS)

matrix-trainer: setup  ## every layout of the training matrix, some five hours; N=100 for so many at random
	@PYTHONPATH=operator:trainer $(PYTHON) -m tests.layouts $(if $(N),--cases $(N))

matrix: setup  ## every fault at every moment in every role; writes docs/kill-matrix.md
	@PYTHONPATH=operator:trainer $(PYTHON) -m tests.matrix $(if $(SOAK),--soak $(SOAK)) $(if $(AGAIN),--again)

lint: setup  ## style, types, arrows
	@$(PYTHON) -m tests.lint

check: setup  ## lint, types and unit tests of what differs from main, in a minute
	@$(PYTHON) -m tests.check

crds: setup  ## regenerate crds/ from the models
	@PYTHONPATH=operator:trainer $(PYTHON) -m drumline.api.crds

docs: setup  ## regenerate docs/reference.md and docs/trainer-reference.md from the code
	@PYTHONPATH=operator:trainer $(PYTHON) -m drumline.api.reference
	@PYTHONPATH=operator:trainer $(PYTHON) -m drumline_trainer.reference

lock: setup  ## resolve the dependencies of pyproject.toml anew
	@bash tests/setup.sh lock

.PHONY: help setup demo down test test-unit test-trainer test-layouts test-layouts-all test-matrix test-integration test-e2e test-disruption test-e2e-all bench bench-engine test-property-all test-samples-all soak mutants bench-recovery bench-trainer matrix matrix-trainer lint check crds docs lock
