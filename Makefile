# `make help` lists what there is. Everything runs in an environment of its own, .venv, made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TESTS ?= tests
TRIES ?= 10000
# Compiled modules are kept, which the next processes read; an empty value unsets it.
export PYTHONDONTWRITEBYTECODE :=
# Exact versions of all that is installed; empty for the newest that pyproject.toml allows.
PINS ?= --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo install pins test test-all test-newest test-oracles lint types imports docs docs-serve tutorials figures format freeze digits counts clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mereo needs Python 3.11 or newer; name one with PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

NATIVE := hatch_build.py $(wildcard src/mereo/core/kernels/*.cpp src/mereo/core/kernels/*.hpp)

$(VENV)/.base: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(PINS) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(PINS) -e '.[dev]'
	@touch $@ $(VENV)/.base

install: $(VENV)/.dev  ## create the environment for development

pins: $(VENV)/.dev  ## resolve constraints.txt again, for every system and Python version
	$(BIN)/python -m pip install --quiet uv
	sed -n '/^#/p' constraints.txt > constraints.new
	$(BIN)/uv pip compile --universal --upgrade --python-version 3.11 --extra dev --extra stream --quiet \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links pyproject.toml >> constraints.new
	mv constraints.new constraints.txt

demo: $(VENV)/.base  ## train on 1,797 digits, evaluate, and draw an explanation (about two minutes)
	$(BIN)/mereo demo

test: $(VENV)/.dev  ## style, types, layering, documentation, and the tests of a few seconds (about ten minutes)
	@$(MAKE) --no-print-directory --jobs 2 lint types imports docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m "not long" $(TESTS)

test-all: test  ## also long tests and TRIES random hostile inputs (forty minutes); CI runs it with TRIES=1000
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m long $(TESTS)
	OMP_NUM_THREADS=1 $(BIN)/python tools/try_hostile.py --tries $(TRIES)

test-newest:  ## `make test` with the newest releases of all libraries, in .venv-newest; before a release of mereo
	rm -rf .venv-newest
	$(MAKE) test VENV=.venv-newest PINS=

test-oracles: $(VENV)/.dev  ## also compare our attacks with those of torchattacks, which pins old libraries
	$(BIN)/python -m pip install --quiet --no-deps 'torchattacks>=3.5.1'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/measure/attacks/test_oracles.py

lint: $(VENV)/.dev  ## ruff, for style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## mypy
	$(BIN)/mypy

imports: $(VENV)/.dev  ## import-linter: imports between packages go one way
	$(BIN)/lint-imports

docs: $(VENV)/.dev  ## build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: $(VENV)/.dev  ## show the documentation in a browser, rebuilt as you edit
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

tutorials: $(VENV)/.dev  ## run the tutorials and keep their output for the documentation
	$(BIN)/python tools/run_tutorials.py

FIGURES := build/figures
PAGE := docs/attention.md
LENGTHS := tokens=1024,4096,16384
OPTIONS_choose := --seconds 1
OPTIONS_neighborhood := --seconds 0.5 --sizes window=7 dilation=1 axes=2
OPTIONS_clear := --seconds 0.5 --sizes radius=8,16,32 tokens=1024,4096 --no-memory
OPTIONS_lightning := --seconds 0.5 --no-memory
OPTIONS_clustered := --seconds 0.5 --sizes $(LENGTHS) --no-memory
OPTIONS_combiner := --seconds 0.5 --sizes $(LENGTHS) --no-memory
OPTIONS_sea := --seconds 0.5 --sizes $(LENGTHS) --no-memory
OPTIONS_sparsifiner := --seconds 1 --no-memory
OPTIONS_moh := --seconds 1 --sizes side=224,512 --no-memory
OPTIONS_evit := --seconds 2 --no-memory
OPTIONS_ring := --seconds 0.5 --sizes tokens=4096
SUITES := choose neighborhood clear lightning clustered combiner sea sparsifiner moh evit ring

# A suite that was measured is not measured again: `rm -r build/figures` starts afresh, `make build/figures/ring.json`
# measures one, and BENCH=--quick tries all of them in small.
figures: $(SUITES:%=$(FIGURES)/%.json)  ## measure attention for docs/attention.md (some twelve minutes on two quiet cores)
	$(BIN)/python tools/fill_figures.py $(FIGURES) $(PAGE)

$(FIGURES)/%.json: | $(VENV)/.base
	$(BIN)/mereo bench $* --threads 2 $(or $(BENCH),$(OPTIONS_$*)) --report $(FIGURES)/unfinished
	mv $(FIGURES)/unfinished/$*.* $(FIGURES)

format: $(VENV)/.dev  ## format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

freeze: $(VENV)/.dev  ## update the frozen public names and options (add a line to CHANGELOG.md)
	MEREO_FREEZE=1 $(BIN)/python -m pytest tests/test_api.py tests/cli/test_cli.py -k frozen

digits: $(VENV)/.dev  ## regenerate the packaged digits from scikit-learn
	$(BIN)/python tools/make_digits.py

counts: $(VENV)/.dev  ## count the multiply-adds of all networks again, for `mereo models` (some three minutes)
	OMP_NUM_THREADS=1 $(BIN)/python tools/count_networks.py

clean:  ## remove the environment and files left by tools (runs are kept)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist site
