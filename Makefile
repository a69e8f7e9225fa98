# What people and CI run. Every target sets up by itself; `make help` lists them.

PYTHON ?= python3
UV_VERSION := 0.13.8
MEMBERS := $(patsubst %/pyproject.toml,%,$(sort $(wildcard libs/*/pyproject.toml services/*/pyproject.toml)))
DISTRIBUTIONS := slipway-api slipway-common slipway-client slipway-local slipway-terraform \
	slipway-provisioner slipway-weight-calculator slipway-lease-broker slipway-simulator slipway-monitor
# Stamps: RUNTIME has what `make demo` and the command need, READY also what tests, checks and benchmarks need.
RUNTIME := .venv/.ready
READY := .venv/.ready-dev
# Terraform, its provider for AWS and a kit to write providers in Python, for tests alone, in an environment of its own.
TERRAFORM := .venv-terraform/.ready
# A validator of OpenAPI documents and a generator of clients, in an environment of their own.
CONTRACTS := .venv-contracts/.ready
# Tools that check what we depend on: advisories, licences, bills of materials.
AUDIT := .venv-audit/.ready
# upjet, compiled for its example, where Go is present.
UPJET := examples/upjet/.ready
LOCKED := pyproject.toml $(MEMBERS:%=%/pyproject.toml)
# Lines of a lock that only other platforms install.
ELSEWHERE := "sys_platform == '\(win32\|emscripten\)'"
IS_RECENT := 'import sys; sys.exit(sys.version_info < (3, 11))'
RUN := .venv/bin/python
UV := .venv/bin/uv

# Arguments of the targets below, given as `make demo SEED=7`; the programs read them from the environment.
ARGUMENTS := DURATION PROVIDER AGENT SPEED SEED FAULTS DEMAND MUTANT KILL CHANGES POOLS FULL ONLY PLAIN \
	WORKERS KILLS SEEDS PROCESSES SCENARIO AVAILABILITY BOOTS RATE BURST CELL CALIBRATE SECONDS N ACCOUNTS LANDING KEEP FAST IMAGES SATURATED WINDOW BEFORE ROUNDS SINCE CHECK HOLD TTL QUEUE SOURCES AGAIN
$(foreach name,$(ARGUMENTS),$(if $($(name)),$(eval export $(name))))

# Tests start hundreds of processes, each of which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# MUTANT=name runs a target on a copy of the tree in which that row of tests/mutants.toml is broken.
BROKEN = $(if $(MUTANT),tests.tools.mutants run $(MUTANT) -- $(abspath $(RUN)) -m)

# Requirements 1 to 8, 16 and 20 make a first, smaller lease-broker.
REQUIRED = $(if $(filter A,$(LANDING)),$(wildcard $(patsubst %,tests/requirements/test_%_*.py,$(FIRST))),tests/requirements)
FIRST := 01 02 03 04 05 06 07 08 16 20

.DEFAULT_GOAL := help
.PHONY: help setup lock lock-jars demo try-image check test test-all test-for compose-check tools screen-shot e2e drill e2e-windows histories requirements ec2-check ec2-codes ec2-limits ec2-spot ec2-storm terraform-checks terraform-daemon terraform-fair terraform-faults terraform-runs mutants fuzz readme \
	generated baseline structure simulate policies growth bench-events bench-weights bench-leases bench-http bench-apply bench-ec2 ec2-scale soak-terraform bench-before square-wave leases-model fairness clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Virtual environment with the locked dependencies; done by every other target when needed

# pip says that no version of a package exists where it cannot reach an index.
NOT_INSTALLED = echo "Packages cannot be downloaded: connect to the network, or set PIP_INDEX_URL and UV_INDEX_URL to a mirror" >&2; exit 1

# $(call prepare,LOCK,SIZE): a virtual environment with uv, and a line that says what is installed from LOCK.
define prepare
	@$(RUN) -c $(IS_RECENT) 2>/dev/null || $(PYTHON) -c $(IS_RECENT) 2>/dev/null || { \
		echo "Slipway needs Python 3.11 or later; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)" >&2; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@[ -e $@ ] && echo "Updating .venv from $(1)" || \
		echo "Installing $$(grep '^[a-z]' $(1) | grep -cv $(ELSEWHERE)) packages into .venv (once, $(2))"
	@$(RUN) -c $(IS_RECENT) 2>/dev/null || $(PYTHON) -m venv --clear .venv
	@$(RUN) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION) 2>.venv/pip.log || { \
		grep -q 'from versions: none' .venv/pip.log || cat .venv/pip.log >&2; $(NOT_INSTALLED); }
endef

# Adds packages and removes none, so that it leaves the tools of READY in place.
$(RUNTIME): requirements.demo.lock $(LOCKED)
	$(call prepare,requirements.demo.lock,about 130 MB to download)
	@$(UV) pip install --quiet --python $(RUN) --compile-bytecode --require-hashes --requirements requirements.demo.lock || { $(NOT_INSTALLED); }
	@$(UV) pip install --quiet --python $(RUN) --no-deps $(MEMBERS:%=-e %)
	@touch $@

$(READY): requirements.lock requirements.demo.lock $(LOCKED)
	$(call prepare,requirements.lock,about 240 MB to download)
	@$(UV) pip sync --quiet --python $(RUN) --compile-bytecode --require-hashes requirements.lock || { $(NOT_INSTALLED); }
	@$(UV) pip install --quiet --python $(RUN) --no-deps $(MEMBERS:%=-e %)
	@touch $(RUNTIME) $@

# Without its packages there is a warning and no stamp, and tests that need them are skipped.
$(TERRAFORM): requirements.terraform-tests.lock | $(READY)
	@$(RUN) -m tests.tools.terraform_packages

$(CONTRACTS): requirements.contracts-check.lock | $(READY)
	@echo "Installing $$(grep '^[a-z]' $< | grep -cv $(ELSEWHERE)) packages into .venv-contracts (once)"
	@$(UV) venv --quiet --clear --python $(RUN) .venv-contracts
	@$(UV) pip sync --quiet --compile-bytecode --require-hashes --python .venv-contracts/bin/python $< || { $(NOT_INSTALLED); }
	@touch $@

# Without Go or its modules there is a line that says so and no stamp, and the example is not tested.
$(UPJET): examples/upjet/go.sum
	@command -v go >/dev/null && echo "Compiling upjet for examples/upjet (once, about 200 packages to download)" && \
		cd examples/upjet && go vet ./... && touch .ready || echo "NO UPJET: it needs Go 1.22 or later and the Go module proxy"

COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links $(DISTRIBUTIONS:%=--no-emit-package %) --custom-compile-command "make lock"
PART = --no-annotate --constraint requirements.lock
# Packages that an image has already, of which its own lock names none.
SHIPPED = $$(sed -n 's/^\([a-z0-9.-]*\)==.*/--no-emit-package \1/p' requirements.services.lock)

lock: $(READY) ## Resolve requirements.lock and its parts for the demo, the images, their extras and the commands: hashes, no index addresses
	$(COMPILE) --group dev pyproject.toml --output-file requirements.lock
	$(COMPILE) $(PART) --output-file requirements.demo.lock $(MEMBERS:%=%/pyproject.toml)
	$(COMPILE) $(PART) --output-file requirements.services.lock \
		libs/common/pyproject.toml $(wildcard services/*/pyproject.toml)
	for extra in provisioner/aws provisioner/terraform monitor/redis; do \
		$(COMPILE) $(PART) $(SHIPPED) --extra $${extra#*/} --output-file requirements.$${extra#*/}.lock \
			services/$${extra%/*}/pyproject.toml || exit 1; \
	done
	$(COMPILE) $(PART) $(SHIPPED) --output-file requirements.operations.lock libs/client/pyproject.toml
	for group in terraform-tests contracts-check audit; do \
		$(COMPILE) --group $$group --output-file requirements.$$group.lock || exit 1; \
	done

lock-jars: $(READY) ## Resolve the broker's jars again, from jgo.toml
	cd libs/local/slipway_local/servers/broker && \
		$(abspath $(UV)) tool run --quiet --from 'jgo[cli]>=3.2,<4' jgo --resolver python lock && rm -rf .jgo && \
		{ ! git diff --quiet -I '^generated = ' jgo.lock.toml || git checkout --quiet jgo.lock.toml; }  # only its date differs

demo: $(if $(filter aws terraform redis,$(PROVIDER) $(QUEUE)),$(READY),$(RUNTIME)) $(if $(QUEUE),tools) $(if $(filter terraform,$(PROVIDER)),$(TERRAFORM)) ## Whole system on simulated clouds, or PROVIDER=process|aws|terraform: QUEUE=redis AGENT= DURATION=3m SPEED=20 SEED= FAULTS= DEMAND=FILE MUTANT= PLAIN=1
	@$(RUN) -m $(BROKEN) slipway_local.demo

try-image: $(RUNTIME) ## A roll-out, a bad image and a rollback by commands on a simulated cloud: SEED=1 SPEED=40 FAULTS= MUTANT=
	@$(RUN) -m $(BROKEN) slipway_local.demo.try_image

check: $(READY) ## Structure and baselines of this project, ruff, mypy, import contracts, types of routes
	@$(RUN) -m $(BROKEN) tests.tools.structure --findings
	@$(RUN) -m $(BROKEN) generate.baseline check
	.venv/bin/ruff check .
	.venv/bin/ruff format --check --quiet .
	.venv/bin/mypy libs services tests generate examples $(if $(wildcard bench/*.py),bench)
	.venv/bin/lint-imports --no-logo
	@$(RUN) -m $(BROKEN) tests.tools.routes
	@$(RUN) -m tests.tools.explicit_any

test: $(READY) ## Everything that CI runs, by layers, with times: FAST=1 for the inner loop, LAYERS="unit contract" for some
	@$(RUN) -m tests.tools.layers $(LAYERS)

test-all: $(READY) $(TERRAFORM) tools ## Every layer, drill, benchmark in its short form and check, by layers: hours
	@ALL=1 $(RUN) -m tests.tools.layers

test-for: $(READY) $(TERRAFORM) tools ## What CI runs, and the long layers that the changes since a commit ask for: SINCE=main
	@SINCE=$(or $(SINCE),main) $(RUN) -m tests.tools.layers

tools: ## kcat, tmux, promtool and Alertmanager for the tests that call them: installs Debian's packages, or says what to install
	@infra/tools.sh

screen-shot: $(READY) ## `slipway top` in tmux at 80×24, 120×40 and 200×50: causes visible, every key tried: KEEP=1 writes docs/screens and docs/top.svg
	@$(RUN) -m tests.tools.screen_shot

.PHONY: attach
attach: $(READY) tools ## Real workers of two pools follow a queue by slipway-monitor, and its server or a monitor goes away: QUEUE=redis|celery|rq|rabbitmq|prometheus|http|exec|sql|kafka_lag|sqs|keda SEED=1 KILL=monitor MUTANT=
	@$(RUN) -m $(BROKEN) tests.attach

.PHONY: attack
attack: $(READY) ## Doors of running services tried by an outsider, a token, a machine and a child process, a line each: SEED=1 BEFORE=COMMIT ONLY=locked-row,half-headers; as root
	@$(RUN) -m tests.attack

.PHONY: flood
flood: $(READY) ## Callers that send too much beside people and machines, and beside an empty server: SEED=1 BEFORE=COMMIT
	@$(RUN) -m tests.flood

.PHONY: try-secured
try-secured: $(READY) ## Services on Kafka with SASL_SSL and ACLs, Debian's PostgreSQL with hostssl, and HTTPS: each secret replaced, refusals with reasons, a capture of loopback; as root
	@$(RUN) -m tests.secured

.PHONY: try-proxies
try-proxies: $(READY) ## nginx and Caddy of Debian before a service, with infra/proxies: addresses, paths, long polls; Error 3: not all are installed
	@-infra/tools.sh nginx:nginx caddy:caddy
	@$(RUN) -m tests.proxies

.PHONY: alert-sinks
alert-sinks: $(READY) tools ## Alerts forwarded to a webhook and to Alertmanager, both sides restarted in the middle: each page once: MUTANT=
	@$(RUN) -m $(BROKEN) pytest -q -s tests/contract/test_alert_sinks.py

compose-check: $(READY) ## docker-compose.yml and its images: checked, built and started without a container engine
	@$(RUN) -m $(BROKEN) tests.compose.run

e2e: $(READY) ## Demand changes and kills on the whole system: CHANGES=600 POOLS=20 KILL=all SEED=3, or FULL=1
	@$(RUN) -m $(BROKEN) tests.e2e.run

drill: $(READY) ## Drills of recovery, a line each: ONLY=outage, restore, failover, lost-grant, two-deployments, stop, dead-account, broker-cut-off, bad-partition, renamed-monitor, image-keys, maximum-age, poison, stuck-terminations, lowered-maximum; SEED=1 SPEED= MUTANT=
	@$(RUN) -m $(BROKEN) tests.drills

.PHONY: rehearse
rehearse: $(READY) ## Alerts from their cause to their end, with their remedies as printed: ONLY=throttle,slow-start,bad-image,credential,quota,zone,starved; SEED=1 SPEED= MUTANT=
	@$(RUN) -m $(BROKEN) tests.drills.rehearse

ec2-check: $(READY) ## `slipway account check` against a stand-in for EC2 that lacks one thing after another: ONLY=quota,subnet FAULTS=deny:PassRole SEED=1 MUTANT=
	@CASE="$(ONLY)" ONLY=$@ $(RUN) -m $(BROKEN) tests.drills

ec2-limits: $(READY) ## Limits of launches and spend under a runaway queue, on a stand-in for EC2: LIMIT=8 SPEND=0.5 SEED=1 FAULTS=lost-reply:0.15 MUTANT=known-launches-uncounted
	@ONLY=$@ $(RUN) -m $(BROKEN) tests.drills

ec2-spot: $(READY) ## Spot interruption notices on a stand-in for EC2: SEED=1 FAULTS=interruption:us-east-1a/m5.large MUTANT=
	@ONLY=$@ $(RUN) -m $(BROKEN) tests.drills

ec2-storm: $(READY) ## Launches under lost replies, throttles and kills, on a stand-in for EC2: WORKERS=60 KILLS=4 SEED=1 MUTANT=not-looked-up
	@ONLY=$@ $(RUN) -m $(BROKEN) tests.drills

e2e-windows: $(READY) ## Launches within windows with stale weights, a paused calculator and three provisioners, then eight planners killed at commits: SEED=5 ONLY=planners MUTANT=one-statement
	@$(RUN) -m $(BROKEN) tests.e2e.windows

structure: $(READY) ## Largest files, classes and functions, files per layer, import cycles, checked against limits
	@$(RUN) -m $(BROKEN) tests.tools.structure

simulate: $(READY) ## Seeded histories of three services: SEEDS=20, SEED=7, or both for 20 from 7 on; FULL=1 for 1,000; ONLY=weights SEEDS=100: a calculator killed at its commits
	@$(if $(filter-out weights,$(ONLY)),echo "ONLY=$(ONLY): unknown simulation; expected weights" >&2; exit 2)
	@$(RUN) -m $(BROKEN) $(if $(ONLY),tests.simulation.weights,tests.simulation.run)

histories: $(READY) ## Lease pools under faults of clients, brokers, database and network, checked for double grants: N=20 SEED=1 FULL=1 MUTANT=
	@$(RUN) -m $(BROKEN) tests.histories.run

.PHONY: lease-harm
lease-harm: $(READY) ## Commands under leases while the broker is well, slow, frozen, killed, drained, full, or refuses: ONLY=frozen,full SEED=1 N=20 MUTANT=margin or report-dropped
	@$(RUN) -m $(BROKEN) tests.lease_harm

$(AUDIT): requirements.audit.lock | $(READY)
	@echo "Installing $$(grep '^[a-z]' $< | grep -cv $(ELSEWHERE)) packages into .venv-audit (once)"
	@$(UV) venv --quiet --clear --python $(RUN) .venv-audit
	@$(UV) pip sync --quiet --compile-bytecode --require-hashes --python .venv-audit/bin/python $< || { $(NOT_INSTALLED); }
	@touch $@

.PHONY: audit
audit: $(READY) $(AUDIT) ## Advisories and licences of what is shipped, a CycloneDX bill per image
	@$(RUN) -m tests.tools.supply_chain

.PHONY: recordings
recordings: $(READY) ## Answers of real services, recorded for tests of clients
	@$(RUN) -m tests.tools.recordings

.PHONY: contracts-check
contracts-check: $(READY) $(CONTRACTS) ## contracts/openapi by a validator, and clients generated from it call every GET of a demo
	@$(RUN) -m tests.tools.contracts

requirements: $(READY) ## Requirements of the lease-broker, one test each, on real PostgreSQL: LANDING=A for the first part, FULL=1 for 8 replicas
	@$(RUN) -m $(BROKEN) pytest -q $(REQUIRED)

ec2-codes: $(READY) ## Every error code of EC2 through the SDK's client, the provisioner and the health model: MUTANT=
	@$(RUN) -m $(BROKEN) tests.tools.ec2_codes

.PHONY: terraform-state
terraform-state: $(READY) $(TERRAFORM) ## States of workers made by modules, under kills, late writers, lost and rotated keys, and changes made outside of Slipway: MUTANT=
	@$(RUN) -m $(BROKEN) pytest -q tests/terraform/test_workspace_runs.py \
		tests/terraform/test_workspace_refusals.py tests/interleaving/test_workspaces.py tests/interleaving/test_workspace_documents.py \
		tests/integration/test_workspace_states.py

.PHONY: terraform-e2e
terraform-e2e: $(READY) $(TERRAFORM) ## Workers made by a module of AWS in two regions, on moto: KILL=provisioner, FULL=1 for 100 instances, MUTANT=
	@ONLY=$@ $(RUN) -m $(BROKEN) tests.drills

.PHONY: terraform-idle
terraform-idle: $(READY) $(TERRAFORM) ## Cost of 500 ready workers made by modules, in CPU time and processes: MUTANT=
	@ONLY=$@ $(RUN) -m $(BROKEN) tests.drills

terraform-daemon: $(READY) $(TERRAFORM) $(UPJET) ## Clients of one slipway-terraform serve, some of them killed, and the example for upjet: MUTANT=
	@$(RUN) -m $(BROKEN) tests.terraform.daemon

terraform-faults: $(READY) $(TERRAFORM) ## Faults of a Terraform provider: outcome, scope, replaced process, served waiters, what is left: ONLY=crash MUTANT=
	@$(RUN) -m $(BROKEN) tests.terraform.faults

terraform-runs: $(READY) $(TERRAFORM) ## Applies under a bound on CLI processes, with and without leased plugins: N=500 FULL=1 MUTANT=runs-unbounded
	@$(RUN) -m $(BROKEN) bench.terraform.runs

terraform-fair: $(READY) ## Waits of callers with 200 configurations on 8 processes, in fair shares, and the thrash: SEED=1 FULL=1 MUTANT=
	@$(RUN) -m $(BROKEN) tests.terraform.fair

mutants: $(READY) $(TERRAFORM) ## Break each invariant and rule in a copy and expect its test to fail: ONLY=group
	@$(RUN) -m tests.tools.mutants check $(if $(ONLY),ONLY=$(ONLY))

.PHONY: mutation
mutation: $(READY) ## Mutants that mutmut makes of pure rooms, and which of them the unit tests notice: ONLY=recovery SINCE=COMMIT PROCESSES=2 SECONDS=600 AGAIN=1 KEEP=1
	@$(RUN) -m tests.tools.mutation

terraform-checks: $(READY) $(TERRAFORM) ## Conformance checks of the Terraform provider scheduler, by number: CHECK=7 TOFU=PATH MUTANT=
	@$(RUN) -m $(BROKEN) tests.terraform

fuzz: $(READY) ## Requests made from contracts/openapi, valid and broken, to every service and the simulator: no 5xx, refusals change nothing: SEED=1 N=3000 MUTANT=
	@$(RUN) -m $(BROKEN) tests.fuzz

readme: $(READY) ## Run every fenced command of the README and the guides: ONLY=queues.md
	@$(RUN) -m tests.tools.readme

generated: $(READY) ## Write contracts/ and docs/generated/ from the code
	@$(RUN) -m generate

baseline: $(READY) ## Write the first migration of each service from its tables, functions and first rows
	@$(RUN) -m generate.baseline

bench-events: $(READY) ## Benchmark of events: decoding, latency to the next event, replay: KEEP=1 writes bench/results/
	@$(RUN) -m bench.events

bench-weights: $(READY) ## Benchmark of the weight-calculator: fold, replay, latency to the weight: SECONDS=20 KEEP=1
	@$(RUN) -m bench.weights

bench-leases: $(READY) ## Benchmark of the lease-broker: leases per second, handover, restart: SECONDS=20 KEEP=1
	@$(RUN) -m bench.leases.bench

bench-http: $(READY) ## Benchmark of HTTP: lists, a pool, claims, registrations, reports, leases, beside /livez: SECONDS=20 KEEP=1
	@$(RUN) -m bench.http

.PHONY: bench-commands
bench-commands: $(READY) ## CPU time of commands of slipway, beside a bare Python: SECONDS=20
	@$(RUN) -m bench.commands

bench-apply: $(READY) ## Benchmark of apply: first, one changed pool, diff, and what plans and starts beside wait for: POOLS=2000 KEEP=1
	@$(RUN) -m bench.apply

bench-ec2: $(READY) ## Benchmark of EC2 launches: CPU time, calls and memory per machine, beside a bare SDK client: CELL=10 ROUNDS=3 SEED=1 KEEP=1
	@$(RUN) -m bench.ec2

soak-terraform: $(READY) $(TERRAFORM) ## Workspaces applied, refreshed and destroyed in turns on shared plugins, and what they leave: SECONDS=40, FULL=1 KEEP=1
	@$(RUN) -m $(BROKEN) bench.terraform.soak

ec2-scale: $(READY) ## Instance reaper on EC2 at 10,000 instances in 50 accounts: time, memory, launches beside it: N=10000 ACCOUNTS=50 SEED=1 KEEP=1
	@$(RUN) -m bench.fleet

bench-before: $(READY) ## Benchmark of this tree, compared with BEFORE=COMMIT: ONLY= some of weights,leases,events,http,commands,registrations,reports; ROUNDS=7 SECONDS=20 KEEP=1
	@$(RUN) -m bench.before

.PHONY: bench-monitor
bench-monitor: $(READY) ## Benchmark of slipway-monitor: memory, CPU time a report beside a bare client, lag of a poll: SOURCES=2000
	@$(RUN) -m bench.monitor

.PHONY: bench-loops
bench-loops: $(READY) ## Benchmark of the provisioner's loops at two sizes, with nothing due and per unit of work: WORKERS=100000 SMALL=1000 UNITS=20 ROUNDS=5 SEED=1 ONLY=expire,reap
	@$(RUN) -m bench.loops

.PHONY: bench-start
bench-start: $(READY) ## Seconds until each service is ready, and its memory, in a large deployment: WORKERS=100000 RECORDS=100000
	@$(RUN) -m bench.start

.PHONY: bench-lives
bench-lives: $(READY) ## What a worker's life costs: decisions, transactions, events, rows and bytes, by a line through some numbers of lives: LIVES=25,50,100,200
	@$(RUN) -m bench.lives

.PHONY: bench-decision
bench-decision: $(READY) ## Benchmark of planning: a changed pool's decision, its path to the provider: POOLS=2000 WORKERS=100000 IMAGES=50 SECONDS=15 SEED=1 KEEP=1, PROCESSES=3 with one killed, SATURATED=1
	@$(RUN) -m bench.decision

.PHONY: bench-fair
bench-fair: $(READY) ## Benchmark of fairness: pools that share one image's boot window, starts per pool and decisions per freed unit: POOLS=1000 WINDOW=16 SEED=1 KEEP=1
	@$(RUN) -m bench.fair

growth: $(READY) ## Rows of each table after 4 and 12 months, and the longest lock of pruning a million rows: SEED=1, FULL=1 KEEP=1
	@$(RUN) -m $(BROKEN) bench.growth

policies: $(READY) ## Launch policies on a virtual clock: CALIBRATE=1, FULL=1 KEEP=1, SCENARIO=new-image SEEDS=3 SEED=1 BOOTS=20,90,480 RATE=24, SCENARIO=FILE, CELL=all-out/slipway/7, DEMAND=FILE AVAILABILITY=FOLDER
	@$(RUN) -m bench.policies

square-wave: $(READY) ## Fifty installations at once, then two hundred: starts per minute with and without pacing: SEED=3
	@$(RUN) -m bench.leases.square_wave

leases-model: $(READY) ## Leases held to the end of their hold, on clocks that drift, with late timers and a healthy broker: SEED=1 N=10000 HOLD=1200 TTL=300 MUTANT=margin
	@$(RUN) -m $(BROKEN) bench.leases.holds

fairness: $(READY) ## Fairness of grants: one tenant with 1,000 waiters against nine, weights, priorities: SEED=3
	@$(RUN) -m bench.leases.fairness

clean: ## Remove the virtual environment and every cache in this folder
	rm -rf .venv .venv-terraform .venv-contracts .venv-audit .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
