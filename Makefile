# Workhorse. `make help` lists what there is; `make demo` and `make test` need nothing before.
# Options go in ARGS, e.g. make test ARGS="tests/domain -x"; PYTHON names an interpreter, and
# WORKERS says how many processes share the tests (0: this one alone).

.DEFAULT_GOAL := help
SHELL := /bin/sh
.SHELLFLAGS := -eu -c
# One thing at a time, also under `make -j`: the targets share one environment and two cores.
.NOTPARALLEL:

ARGS ?=
# Many tests wait for a broker's clock: a few processes side by side take a third of the time.
WORKERS ?= 3
# What `make emulators` runs against: all, or names with commas between.
EMULATORS ?= all
python := .venv/bin/python

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: ## make or update .venv (every other target does it by itself)
	@sh tools/setup.sh

.PHONY: demo
demo: setup ## watch a small fleet at work on embedded parts; under a minute
	@exec .venv/bin/workhorse demo $(ARGS)

.PHONY: test
test: setup ## run all tests on SQLite and a throw-away PostgreSQL
	@exec $(python) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: fuzz
fuzz: setup ## try a hundred thousand evil inputs (ARGS="--seed 7 --kind acts"); takes ten minutes
	@exec $(python) -m tests.fuzz $(ARGS)

.PHONY: explore
explore: setup ## go through all interleavings of two workers and one run; takes a minute or two
	@exec $(python) -m tests.exploration $(ARGS)

.PHONY: emulators
emulators: setup ## run the tests of SQS against LocalStack, MiniStack, fauxqs and moto
	$(python) tools/emulators.py install localstack ministack fauxqs
	WORKHORSE_TEST_EMULATORS=$(EMULATORS) exec $(python) -m pytest -n $(WORKERS) \
	  --dist load -m emulators $(ARGS)

# Where `make local-up` keeps its state; EMULATOR and QUEUES say what it starts.
LOCAL ?= .local
EMULATOR ?=
QUEUES ?=

.PHONY: local-up
local-up: setup ## start PostgreSQL and an emulator of AWS (EMULATOR=ministack) with QUEUES=...
	@LOCAL='$(LOCAL)' EMULATOR='$(EMULATOR)' QUEUES='$(QUEUES)' exec $(python) -m tools.local up

.PHONY: local-down
local-down: setup ## end what `make local-up` has started
	@LOCAL='$(LOCAL)' exec $(python) -m tools.local down

.PHONY: check
check: lint types imports test ## what a change has to pass

.PHONY: lint
lint: setup ## look for mistakes and for unformatted code
	$(python) -m ruff check .
	$(python) -m ruff format --check .

.PHONY: format
format: setup ## format the code and repair what can be repaired
	$(python) -m ruff check --fix .
	$(python) -m ruff format .

.PHONY: types
types: setup ## check types (mypy, strict)
	$(python) -m mypy

.PHONY: imports
imports: setup ## check which part imports which
	.venv/bin/lint-imports

.PHONY: coverage
coverage: setup ## run the tests and show the lines and branches they leave out
	$(python) -m coverage erase
	$(python) -m coverage run -m pytest $(ARGS)
	$(python) -m coverage report
	@echo "coverage: domain/ and store/, where each branch has a test or a reason:"
	$(python) -m coverage report --include='workhorse/domain/*,workhorse/store/*' --fail-under=100

# FULL=1: each fault at least 200 times, an hour and ten minutes; the report goes into docs/guarantees.md.
FULL ?=

.PHONY: faults
faults: setup ## break a fleet of real processes for 15 minutes (FULL=1: an hour; ARGS="--seed 7")
	@exec $(python) -m tests.faults $(if $(FULL),--full) $(ARGS)

# How long; the last figures and their plot are in docs/soak.md.
MINUTES ?= 30

.PHONY: soak
soak: setup ## let a fleet work for MINUTES=30, break it now and then, and see what grows
	@exec $(python) -m tests.soak --minutes $(MINUTES) $(ARGS)

# The parts of the suite that speak to PostgreSQL, with a PgBouncer before it: once one that refuses
# what is said of a session, and once one that ignores it.
.PHONY: pooler
pooler: setup ## run the tests of store and runtime through a PgBouncer in transaction mode; half an hour
	$(python) -m tools.fault_tools install pgbouncer
	for how in refusing ignoring; do WORKHORSE_TEST_POOLER=$$how $(python) -m pytest -n $(WORKERS) \
	  --dist loadfile -k "not sqlite" tests/store tests/runtime tests/client $(ARGS); done

.PHONY: bench
bench: setup ## measure throughput and latency; writes benchmarks/results/latest.json
	@exec $(python) -m benchmarks $(ARGS)

.PHONY: bench-compare
bench-compare: setup ## measure beside other libraries, installed into .bench/; half an hour
	@exec $(python) -m benchmarks.compare $(ARGS)

.PHONY: bench-timers
bench-timers: setup ## measure how late sleeping runs go on; takes two minutes
	@exec $(python) -m benchmarks.timers $(ARGS)

.PHONY: bench-growth
bench-growth: setup ## measure calls on grown tables (ARGS="--runs 10000000": ten million runs)
	@exec $(python) -m benchmarks.growth $(ARGS)

.PHONY: bench-lambda
bench-lambda: setup ## measure cold starts and warm invocations of a function; takes a minute
	@exec $(python) -m benchmarks.cold_start $(ARGS)

.PHONY: bench-storm
bench-storm: setup ## measure 24,000 timers that come due in one minute; takes two minutes
	@exec $(python) -m benchmarks.storm $(ARGS)

# An environment of its own, .cdk, with its own Node.
cdk := $(python) -I tools/cdk.py

.PHONY: synth
synth: setup ## check infra/: synthesize both stacks offline, their tests, cdk-nag, cfn-lint
	@$(cdk) python -m pytest -c infra/pytest.ini --rootdir . infra/tests $(ARGS)
	@# W3005: the CDK also says orders that follow from references.
	@$(cdk) cfn-lint --ignore-checks W3005 -- infra/templates/ecs.json infra/templates/lambda.json
	@echo "synth: cfn-lint finds nothing in the templates"

.PHONY: templates
templates: setup ## write infra/templates/: plain CloudFormation of both stacks
	@$(cdk) python -m infra.plain

.PHONY: image
image: ## build the container image of infra/image with docker, podman, finch or buildah
	@sh tools/image.sh $(ARGS)

.PHONY: lock
lock: ## write requirements/dev.txt and infra.txt anew; needs uv (ARGS=--upgrade takes newer versions)
	@sh tools/lock.sh $(ARGS)

.PHONY: clean
clean: ## remove what the targets made, but for results of benchmarks
	@if [ -e '$(LOCAL)/state.json' ]; then \
	  echo "make clean: something is up; 'make local-down' first" >&2; exit 1; fi
	rm -rf .venv .bench .emulators .cdk .setup.lock .pytest_cache .mypy_cache .ruff_cache .import_linter_cache \
	  .hypothesis .coverage htmlcov build dist .workhorse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
