# Working on Relevo. `make` lists the targets. Nothing but a Python is needed; everything else is fetched.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVICES := $(PYTHON) -m tools.services
# more arguments for pytest: make test ARGS="tests/faults -x"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-unit test-pythons lint check format bench bench-full soak docs services-up services-down services-status clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' Makefile

install:  ## .venv with everything for development (updated only when pyproject.toml changes)
	@$(PYTHON) -m tools.venv $(VENV) --extras dev --python $(PYTHON)

demo:  ## the core alone, in its own small .venv-demo: lose nothing while the relay is killed
	@$(PYTHON) -m tools.venv .venv-demo --python $(PYTHON)
	@.venv-demo/bin/relevo demo

test: export RELEVO_SERVICES_BESIDE = 1
test: install test-pythons  ## the whole suite against real servers; stops the servers it started
	@$(SERVICES) run -- $(BIN)/python -m pytest -n 3 --dist loadgroup $(ARGS)

test-unit: install  ## unit and architecture tests: no servers, seconds
	@$(BIN)/python -m pytest tests/unit tests/architecture $(ARGS)

test-pythons: install  ## unit tests on the other Pythons found on this machine
	@$(BIN)/python -m tools.pythons

lint: install  ## format, lint, types, imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

check: lint  ## what a change needs before it is committed: lint, unit and architecture tests
	@$(BIN)/python -m pytest tests/unit tests/architecture -q

format: install  ## format the code and fix what the linter can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench bench-full: export RELEVO_SERVICES_DIR = .services-bench
bench bench-full: export RELEVO_SERVICES_BASE_PORT = 22000
bench bench-full: export RELEVO_SERVICES_FSYNC = on
bench bench-full: export RELEVO_REQUIRE_SERVICES = 1
bench: install  ## a quarter of an hour on servers of its own that keep their promises (fsync on); BENCH=drain for one
	@$(SERVICES) run -- $(BIN)/python -m benchmarks.$(or $(BENCH),suite) $(ARGS)

bench-full: install  ## every benchmark at its full size: an hour and a half
	@$(SERVICES) run -- $(BIN)/python -m benchmarks.suite --full $(ARGS)

soak: install  ## the long tests: hours of faults
	@$(SERVICES) run -- $(BIN)/python -m pytest -m soak $(ARGS)

docs: install  ## write the reference pages anew, run every example of the documentation
	@$(BIN)/python -m tools.docs
	@$(SERVICES) run -- $(BIN)/python -m pytest tests/docs $(ARGS)

services-up:  ## start PostgreSQL, Kafka and RabbitMQ for the tests, print their URLs
	@$(SERVICES) up

services-down:  ## stop them; their data stays
	@$(SERVICES) down

services-status:  ## what runs where
	@$(SERVICES) status

clean:  ## stop the servers; remove environments, servers, data and caches
	@$(SERVICES) wipe
	@RELEVO_SERVICES_DIR=.services-bench $(SERVICES) wipe
	rm -rf .venv .venv-* .services .services-bench build dist site
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
