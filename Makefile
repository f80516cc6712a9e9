# `make` alone says what there is. Needs python3 >= 3.11, make and a network for pip; everything goes into .venv.

PYTHON ?= python3
VENV ?= .venv
WORKSPACE ?= audit
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install -c constraints.txt

# Two OpenMP threads on two busy cores are slower than one (docs/install.md).
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install audit test sweep check shape bench scorecard docs clean chromium

help:  ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(VENV)/.core  ## the core only, into .venv
	@echo "Installed. Type: $(BIN)/bpals doctor"

audit: $(VENV)/.core  ## audit the embedded NIH labels -> audit/ (WORKSPACE=DIR, ARGS='...' for another)
	$(BIN)/bpals audit --workspace $(WORKSPACE) $(ARGS)

test: $(VENV)/.dev chromium  ## everything the tests need, then all tests (ARGS='tests/cli -x')
	$(BIN)/python -m pytest $(ARGS)

sweep: $(VENV)/.dev  ## the long fault sweeps
	$(BIN)/python -m pytest -m sweep $(ARGS)

check: $(VENV)/.dev  ## ruff, formatting, strict types, the import rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

shape: $(VENV)/.dev  ## the code measuring itself: sizes, cycles, docstrings
	$(BIN)/python scripts/shape.py

bench: $(VENV)/.dev  ## the cost of an audit against scikit-learn and cleanlab, half an hour (ARGS=--quick)
	$(BIN)/python benchmarks/audit_cost.py $(ARGS)

scorecard: $(VENV)/.dev  ## the table in README.md, from two audits (REFERENCE=four-findings=PATH)
	$(BIN)/python scripts/write_scorecard.py --reference $(REFERENCE)

docs: $(VENV)/.dev  ## write the generated parts of docs/
	$(BIN)/python scripts/write_docs.py

clean:  ## remove .venv, caches and build litter; audits stay
	rm -rf $(VENV) build dist .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis src/*.egg-info
	find src tests scripts examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "bpals needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing)." \
	       "Type: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || scripts/need-package python3-venv
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(INSTALL) --editable '.[dev]'
	@touch $@

# The report is tested in a real browser; without one those tests are skipped and say so.
chromium:
	@command -v chromium >/dev/null || scripts/need-package chromium || true
