# Everything happens in .venv, which the first target makes: two commands, nothing else to set up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Three at a time, on two cores, too: most tests wait for other processes. tests/conftest.py says which ones stay
# together, and their order.
PARALLEL := -n 3 --dist loadscope --no-loadscope-reorder

# Thousands of processes are started by the tests, and compiling our modules would be most of what each of them does.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup coverage docs docs-browser demo test test-all test-rest chaos lint bench matrix clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

setup: $(READY)  ## the environment in .venv, and the pre-commit hooks of this checkout
	@test ! -e .git || $(BIN)/pre-commit install

demo: $(READY)  ## a training that survives a hang and a SIGKILL; options: make demo DEMO="--hang-step 100"
	@$(BIN)/python examples/demo.py $(DEMO)

test: lint  ## style, types, layers, tests, in some minutes; options: make test PYTEST="-x -k sections"
	$(BIN)/pytest -m 'not long' $(PARALLEL) $(PYTEST)

test-all: test test-rest  ## the long tests, spawned workers and 60 random faults, too; make matrix is apart: it downloads torch

test-rest: $(READY)  # what test-all adds to test
	$(BIN)/pytest -m 'long or hypothesis' --hypothesis-profile search $(PARALLEL) $(PYTEST)
	$(BIN)/pytest -m 'launches and not long' --worker-start spawn $(PARALLEL) $(PYTEST)
	$(MAKE) chaos

# Three jobs of twenty: two ranks, warm, without py-spy; three ranks, warm, with it; two ranks, spawned, with it.
CHAOS ?= --seed 1,10,13 --faults 20 --step-limit 1.5
chaos: $(READY)  ## random faults from outside in real jobs; options: make chaos CHAOS="--jobs 25 --faults 40"
	$(BIN)/python -m benchmarks.chaos $(CHAOS)

lint: $(READY)  ## style, types and layers alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "$(BIN)/pyright --pythonpath $(BIN)/python, beside mypy and lint-imports"
	@$(BIN)/pyright --pythonpath $(BIN)/python & pyright=$$!; \
		$(BIN)/mypy && $(BIN)/lint-imports --config setup.cfg; others=$$?; wait $$pyright && exit $$others

# Launchers, monitors and ranks are processes that end by os._exit or a signal: what end-to-end tests run is not counted.
coverage: $(READY)  ## which lines and branches the unit tests run, as a table and in htmlcov/
	$(BIN)/pytest -m 'not e2e and not long' $(PARALLEL) --cov --cov-report=term:skip-covered --cov-report=html \
		tests/resilience_core tests/adapters tests/straggler tests/launcher $(PYTEST)
	@test -z "$$GITHUB_STEP_SUMMARY" || \
		$(BIN)/coverage report --format=markdown --skip-covered >> "$$GITHUB_STEP_SUMMARY"

docs: $(READY)  ## the documentation site in site/; every warning and every broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean
	@echo "built: site/index.html; to read it: $(BIN)/python -m http.server --directory site"

docs-browser: docs  ## looks at the site in headless Chromium, where there is one: widths, colours, search
	$(BIN)/python -m tests.docs.browser site

bench: $(READY)  ## ours beside torchrun and nvidia-resiliency-ext; options: make bench BENCH="--quick --json raw.json"
	@$(BIN)/python -m benchmarks $(BENCH)

matrix: $(READY)  ## every version of torch, really installed; options: make matrix MATRIX="--torch 2.4 2.15"
	@$(BIN)/python -m tests.matrix $(MATRIX)

clean:  ## what the targets have made
	rm -rf $(VENV) .venv-peer demo_out ft_logs build site htmlcov .coverage *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

# torch first and alone: the rest resolves against the build that this machine's index offers.
$(READY): setup.cfg pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) does not make the environment of constraints.txt: it takes Python 3.11 or newer with the venv module;" \
			"name another one: make setup PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (minutes at the first time: it downloads torch)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
