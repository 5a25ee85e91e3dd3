# Needs Python 3.11 or later and make, nothing else. Each target makes the virtual environment that it runs in,
# and makes it again when pyproject.toml or this file has changed.

PYTHON ?= python3
ARGS ?=
JOBS ?= 2

# What RAPIDS 26.10 pins; the suite has to pass with it and with the newest releases.
PINNED := dask==2026.7.1 distributed==2026.7.1 'pandas<3.1'

# Two processes are as fast as two cores can be: more are no faster. One that is done takes over from the other.
SPREAD = --numprocesses $(JOBS) --dist worksteal

VENV := .venv
NEWEST := .venv-newest
RAPIDS := .venv-rapids

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-newest test-rapids test-gpu gpu-is-here lint format bench clean distclean

# Makes the environment that the stamp file stands in, with this checkout installed in place and $(REQUIREMENTS).
define make-environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or later; $(PYTHON) is " + sys.version)'
@echo "making $(@D), which takes a minute or two"
@$(PYTHON) -m venv --clear $(@D)
$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable $(REQUIREMENTS)
@touch $@
endef

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do \
	    printf '  make %-12s %s\n' "$$target" "$$text"; done

demo: $(VENV)/.made  ## the main job on TPC-H data: save, lose the cluster, read back, compare; beside parquet
	$(VENV)/bin/python -m benchmarks.demo $(ARGS)

test: $(VENV)/.made  ## the suite, with the dask and pandas that RAPIDS pins, but without it; ARGS='-k text' goes to pytest
	$(VENV)/bin/python -m pytest $(SPREAD) -m 'not rapids and not gpu' $(ARGS)

test-newest: $(NEWEST)/.made  ## the tests not marked slow, with the newest dask and pandas
	$(NEWEST)/bin/python -m pytest $(SPREAD) -m 'not slow and not rapids and not gpu' $(ARGS)

test-rapids: $(RAPIDS)/.made  ## the tests that need RAPIDS (5 GB), and those that need a GPU where there is one
	CKPT_SPILL_TEST_RAPIDS=1 $(RAPIDS)/bin/python -m pytest $(SPREAD) -m 'rapids or gpu' $(ARGS)

test-gpu: gpu-is-here $(RAPIDS)/.made  ## the tests that need a GPU, in ten minutes; writes gpu-report.md and gpu-report.xml
	env -u RAPIDS_NO_INITIALIZE CKPT_SPILL_TEST_RAPIDS=1 $(RAPIDS)/bin/python -m tests.gpu $(ARGS)

gpu-is-here:
	@$(PYTHON) -m tests.gpu.present

lint: $(VENV)/.made  ## ruff, the formatter's check, and mypy --strict on the package
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.made  ## apply the formatter and the safe fixes
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: $(VENV)/.made  ## every benchmark but those in the manner of dask-cuda's, one after the other
	@for file in benchmarks/[a-z]*.py; do name=$$(basename "$$file" .py); \
	    case $$name in demo|local_checkpoint*) continue;; esac; \
	    echo "== benchmarks.$$name"; $(VENV)/bin/python -m "benchmarks.$$name"; done

clean:  ## remove caches and the demo's data
	rm -rf build dist demo-data .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name '__pycache__' -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean  ## also remove the virtual environments
	rm -rf $(VENV) $(NEWEST) $(RAPIDS)

$(VENV)/.made: REQUIREMENTS := '.[test,lint,demo]' $(PINNED)
$(NEWEST)/.made: REQUIREMENTS := '.[test]'
$(RAPIDS)/.made: REQUIREMENTS := '.[test,cuda12]'
$(VENV)/.made $(NEWEST)/.made $(RAPIDS)/.made: pyproject.toml Makefile
	$(make-environment)
