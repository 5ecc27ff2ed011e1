# `make demo` and `make test` work in a fresh clone; `make help` lists the rest.
#
#   make test PYTHON=python3.12             another interpreter (3.10 or later)
#   make test TORCH="torch==2.10.0"         another torch; kept for later calls
#   make test TESTERS=4                     that many test files at a time; each takes a core and up to 2 GiB

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -qq --disable-pip-version-check
TORCH ?= $(or $(shell cat $(VENV)/.torch 2>/dev/null),torch==2.13.0)
NVCC := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
TESTERS ?= 2
BUILD := $(PY) setup.py -q build_ext --inplace
CPP_FILES = $(shell find csrc -name '*.cpp' -o -name '*.cu' -o -name '*.h' -o -name '*.cuh' -o -name '*.inc')

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test check bench docs cuda env op clean FORCE

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: env ## Zero-shot labels for 200 support messages, as a table
	@$(BUILD) || echo "demo: going on without the compiled op (same answers, slower)"
	$(PY) examples/demo.py

test: env ## Build everything, check style and types, run the tests
	@# Without CUDA in torch the CUDA library can't run, but nvcc, where there is one, still finds every compile error.
	@if [ -n "$(NVCC)" ] && [ -z "$(SURPRISE_HF_SKIP_CUDA)" ]; then \
	  export SURPRISE_HF_FORCE_CUDA=`$(PY) -c 'import torch; print(int(torch.version.cuda is None))'`; fi; $(BUILD)
	@$(MAKE) --no-print-directory check
	$(PY) -m pytest -q -n $(TESTERS) --dist loadfile

check: env ## ruff, mypy, clang-format
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(CPP_FILES)

bench: op ## Time the op against torch and the peers (ARGS="..." is passed on)
	$(PY) benchmarks/bench_op.py $(ARGS)

docs: env ## The documentation site, in site/
	@# not --quiet: its warnings are no errors, strict or not
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

cuda: env ## Compile the CUDA library, with a CPU-only torch too
	SURPRISE_HF_FORCE_CUDA=1 $(BUILD)

op: env ## Compile the op into the source tree
	@$(BUILD)

env: $(VENV)/.stamp ## The environment in .venv

# Made again when pyproject.toml changes or another TORCH is asked for.
$(VENV)/.stamp: pyproject.toml $(if $(filter-out $(shell cat $(VENV)/.torch 2>/dev/null),$(TORCH)),FORCE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	  || { echo "surprise_hf needs Python 3.10 or later; give it with: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "this Python has no venv module; install it (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "$(VENV): installing $(TORCH) and the development tools (minutes, the first time)"
	@$(PIP) $(TORCH) 'setuptools>=77' ninja
	@SURPRISE_HF_SKIP_EXT=1 $(PIP) --no-build-isolation --editable '.[dev]'
	@echo "$(TORCH)" > $(VENV)/.torch
	@touch $@

clean: ## Remove what was built (not .venv)
	rm -rf build dist site *.egg-info surprise_hf/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
