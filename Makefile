# What people and CI run. Every target sets up by itself; `make help` lists them.

PYTHON ?= python3
UV_VERSION := 0.13.8
MEMBERS := $(patsubst %/pyproject.toml,%,$(sort $(wildcard libs/*/pyproject.toml services/*/pyproject.toml)))
DISTRIBUTIONS := slipway-common slipway-client slipway-local \
	slipway-provisioner slipway-weight-calculator slipway-lease-broker slipway-simulator
READY := .venv/.ready
IS_RECENT := 'import sys; sys.exit(sys.version_info < (3, 11))'
RUN := .venv/bin/python
UV := .venv/bin/uv

# Arguments of the targets below, given as `make demo SEED=7`; the programs read them from the environment.
ARGUMENTS := DURATION PROVIDER SPEED SEED FAULTS DEMAND MUTANT KILL CHANGES POOLS FULL ONLY PLAIN \
	SEEDS SCENARIO AVAILABILITY CELL CALIBRATE SECONDS N LANDING
$(foreach name,$(ARGUMENTS),$(if $($(name)),$(eval export $(name))))

# MUTANT=name runs a target on a copy of the tree in which that row of tests/*/mutants.toml is broken.
BROKEN = $(if $(MUTANT),tests.mutants run $(MUTANT) -- $(abspath $(RUN)) -m)

# Requirements 1 to 8, 16 and 20 make a first, smaller lease-broker.
REQUIRED = $(if $(filter A,$(LANDING)),$(wildcard $(patsubst %,tests/requirements/test_%_*.py,$(FIRST))),tests/requirements)
FIRST := 01 02 03 04 05 06 07 08 16 20

.DEFAULT_GOAL := help
.PHONY: help setup lock lock-jars demo check test compose-check tools screen-shot e2e e2e-windows histories requirements mutants readme \
	generated simulate policies bench-events bench-weights bench-leases square-wave fairness adaptive clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Virtual environment with the locked dependencies; done by every other target when needed

$(READY): requirements.lock pyproject.toml $(MEMBERS:%=%/pyproject.toml)
	@$(RUN) -c $(IS_RECENT) 2>/dev/null || $(PYTHON) -c $(IS_RECENT) 2>/dev/null || { \
		echo "Slipway needs Python 3.11 or later; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)" >&2; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(RUN) -c $(IS_RECENT) 2>/dev/null || { echo "Setting up .venv, once"; $(PYTHON) -m venv --clear .venv; }
	@$(RUN) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(UV) pip sync --python $(RUN) --compile-bytecode --require-hashes requirements.lock
	@$(UV) pip install --python $(RUN) --quiet --no-deps $(MEMBERS:%=-e %)
	@touch $@

lock: $(READY) ## Resolve requirements.lock and the images' part of it again: hashes for every platform, no index addresses
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links $(DISTRIBUTIONS:%=--no-emit-package %) \
		--custom-compile-command "make lock" --group dev pyproject.toml --output-file requirements.lock
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links $(DISTRIBUTIONS:%=--no-emit-package %) --no-annotate \
		--custom-compile-command "make lock" --constraint requirements.lock --output-file requirements.services.lock \
		libs/common/pyproject.toml libs/client/pyproject.toml $(wildcard services/*/pyproject.toml)

lock-jars: $(READY) ## Resolve the broker's jars again, from jgo.toml
	cd libs/local/slipway_local/broker && \
		$(abspath $(UV)) tool run --quiet --from 'jgo[cli]>=3.2,<4' jgo --resolver python lock && rm -rf .jgo

demo: $(READY) ## Whole system on simulated clouds, or PROVIDER=process: DURATION=3m SPEED=20 SEED= FAULTS= DEMAND=FILE MUTANT= PLAIN=1
	@$(RUN) -m $(BROKEN) slipway_local.demo

check: $(READY) ## ruff, mypy, import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check --quiet .
	.venv/bin/mypy libs services tests examples $(if $(wildcard bench/*.py),bench)
	.venv/bin/lint-imports --no-logo

test: $(READY) tools ## Everything that CI runs, layer by layer, with times: LAYERS="unit contract" for some of them
	@$(RUN) tests/layers.py $(LAYERS)

tools: ## kcat, tmux and promtool for the tests that call them: installs Debian's packages, or says what to install
	@infra/tools.sh

screen-shot: $(READY) ## The live screen at 200×50 and 80×24 in tmux, captured and judged
	@$(RUN) -m tests.screen_shot

compose-check: $(READY) ## docker-compose.yml and its images: judged, built and started without a container engine
	@$(RUN) -m $(BROKEN) tests.compose.run

e2e: $(READY) ## Demand changes and kills on the whole system: CHANGES=600 POOLS=20 KILL=all SEED=3, or FULL=1
	@$(RUN) -m $(BROKEN) tests.e2e.run

e2e-windows: $(READY) ## Windows under late weights, an absent calculator and three provisioners, by the ledger: SEED=5
	@$(RUN) -m $(BROKEN) tests.e2e.windows

simulate: $(READY) ## Seeded histories of three services; ONLY=weights: of a calculator that is killed at its commits, SEEDS=100, FULL=1 or SEED=7
	@$(if $(filter-out weights,$(ONLY)),echo "no simulation $(ONLY); there is weights" >&2; exit 2)
	@$(RUN) -m $(BROKEN) $(if $(ONLY),tests.simulation.weights,pytest -q tests/simulation)

histories: $(READY) ## Lease pools under faults of clients, brokers, database and network, judged for double grants: N=20 SEED=1 FULL=1 MUTANT=
	@$(RUN) -m $(BROKEN) tests.histories.run

requirements: $(READY) ## What is required of the lease-broker, a test each, on real PostgreSQL: LANDING=A for the first part, FULL=1 for 8 replicas
	@$(RUN) -m $(BROKEN) pytest -q $(REQUIRED)

mutants: $(READY) ## Break each main claim in a copy and see its test turn red: ONLY=group
	@$(RUN) -m tests.mutants check $(if $(ONLY),ONLY=$(ONLY))

readme: $(READY) ## Run every fenced command of the README and the guides
	@$(RUN) -m tests.readme

generated: $(READY) ## Write contracts/ and docs/generated/ from the code
	@$(RUN) -m slipway_local.contracts

bench-events: $(READY) ## Decode, event → committed → next event, replay
	@$(RUN) -m bench.events

bench-weights: $(READY) ## Fold, replay at 200 and 10,000 configs, outcome → weight, against what is claimed: SECONDS=20
	@$(RUN) -m bench.weights

bench-leases: $(READY) ## Leases a second over HTTP and Kafka, beside many held and waiting, handover, restart: SECONDS=20
	@$(RUN) -m bench.leases.bench

policies: $(READY) ## Launch policies on a virtual clock: CALIBRATE=1, FULL=1, SCENARIO=FILE, CELL=all-out/slipway/7, SEEDS=3, DEMAND=FILE AVAILABILITY=FOLDER
	@$(RUN) -m bench.policies

square-wave: $(READY) ## Fifty installations at once, then two hundred: starts a minute with pacing and without; SEED=3
	@$(RUN) -m bench.leases.square_wave

fairness: $(READY) ## One tenant with 1,000 waiters against nine with one; equal and weighted tenants, priorities: SEED=3
	@$(RUN) -m bench.leases.fairness

adaptive: $(READY) ## Adaptive limits against token-bucket clouds: SEED=3, FULL=1, CELL=bucket-2ps/3
	@$(RUN) -m bench.leases.adaptive

clean: ## Remove the virtual environment and every cache in this folder
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
