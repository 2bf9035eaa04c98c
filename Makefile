# Everything a user or a developer runs. Each target sets up what it needs; nothing is installed by hand.
SHELL := /bin/bash
# Bytecode of the operator and the tests is written once, wherever the environment forbids it: each
# of the thousand processes that the tests start would compile the same modules for two seconds.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
PYTHON := PYTHONPATH=operator:trainer .venv/bin/python
# uv, where `make setup` had to install it
export PATH := $(PATH):$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/drumline/uv/bin

help:  ## what there is
	@awk -F ':.*## ' '/^## /{print "\n" substr($$0, 4)} /^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

## Try it
setup: .venv/.synced  ## Python packages from the lock file, in .venv
.venv/.synced: requirements.lock pyproject.toml tools/setup.sh
	@bash tools/setup.sh

demo: setup  ## a throwaway cluster on this machine, Drumline in it, two jobs that train
	@$(PYTHON) -m tools.demo

down: setup  ## remove every trace of the demo
	@$(PYTHON) -m tools.cluster down --name drumline

## Change it
check: setup  ## lint, types and unit tests of what differs from main, in a minute
	@$(PYTHON) -m tools.check

lint: setup  ## style, types, imports between packages, prose, links of the documents
	@$(PYTHON) -m tools.lint

test: setup  ## every feature, 13 minutes on two cores; PART="unit e2e" for some parts
	@$(PYTHON) -m tools.suite $(PART)

test-slice: setup  ## types, and a seeded share of the tests that `make test` leaves out; CI runs both
	@$(PYTHON) -m tools.suite --slice $(PART)

generate: setup  ## crds/, structs of our objects, the chart's rules and boards, docs/*reference.md, docs/values.md, docs/cli-*.schema.json
	@$(PYTHON) -m drumline_api.crds
	@$(PYTHON) -m tools.generate.stored_objects
	@$(PYTHON) -m tools.generate.api_reference
	@$(PYTHON) -m tools.monitoring.generate
	@$(PYTHON) -m drumline_cli.overview.json_output
	@$(PYTHON) -m tools.generate.cli_schemas
	@$(PYTHON) -m tools.generate.cli_reference
	@$(PYTHON) -m tools.generate.chart_values
	@$(PYTHON) -m tools.generate.week_figures
	@$(PYTHON) -m tools.generate.kustomize_base
	@$(PYTHON) -m tools.generate.trainer_reference

mixin: setup  ## the alerts and boards as a monitoring mixin, in build/drumline-mixin.tar.gz
	@$(PYTHON) -m tools.monitoring.mixin

site: setup  ## the documents as a site, in build/site; fails on a link that leads nowhere
	@.venv/bin/zensical build --strict --clean
	@echo "open build/site/index.html"

pictures: setup  ## docs/images: a recording of `make demo`, and the page in Chromium
	@$(PYTHON) -m tools.demo.recording $(ARGS)
	@PYTHONPATH=operator:trainer:. .venv/bin/python docs/images/page_pictures.py

release: setup  ## chart, images, wheels, bills of materials and signatures, in build/release; ARGS=--help
	@$(PYTHON) -m tools.release $(ARGS)

lock: setup  ## resolve the dependencies of pyproject.toml again
	@bash tools/setup.sh lock
	@$(PYTHON) -m tests.libraries.lock

## Try it harder (ARGS are handed on)
test-all: setup  ## the tests that are in neither: WHAT=extended, layouts, matrix, ...; without WHAT a list
	@$(PYTHON) -m tools.suite.whole $(WHAT) $(ARGS)

mutants: setup  ## small faults in the scheduler, or OF=trainer, and how many the tests notice
	@$(PYTHON) -m tools.mutants $(if $(OF),--of $(OF)) $(if $(ONLY),--only $(ONLY)) $(ARGS)

soak: setup  ## random lives of small clusters with fresh seeds, for MINUTES (30)
	@$(PYTHON) -m tests.property.soak --minutes $(or $(MINUTES),30)

fuzz: setup  ## cycles beside hostile objects with fresh seeds, for MINUTES (8)
	@$(PYTHON) -m tests.property.cycle_fuzz --minutes $(or $(MINUTES),8) $(ARGS)

bench: setup  ## the control plane beside the raw limit of the same run; WHAT=engine, forecast_bound, history, mix, overview, page, peers, planner, pod_cost, queues, recovery, scale, simulator_error, standby, trainer, watches, week or what_if
	@$(PYTHON) -m tools.bench$(if $(WHAT),.$(WHAT)) $(if $(PEERS),--peers $(PEERS)) $(ARGS)

gpu:  ## every check that needs a GPU, on a machine with 1 to 8 of them; installs nothing: needs torch
	@PYTHONPATH=operator:trainer:$$PYTHONPATH $(or $(wildcard .venv/bin/python),python3) -m tools.gpu $(ARGS)

.PHONY: help setup demo down check lint test test-slice generate mixin site pictures release lock test-all mutants soak fuzz bench gpu
