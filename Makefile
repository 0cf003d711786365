# The commands for newcomers; `make` alone lists them.

PYTHON  ?= python3
VENV    := .venv
WORKERS ?= 2
# TORCH=cpu installs torch's own build without CUDA.
TORCH   ?=
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
TEXT    ?= Hello.
MODEL   ?=
OUT     ?= out.wav
PORT    ?= 8000

# These are free text: the shell gets them from the environment, never as part of a command, so that quotes and
# dollar signs in them are spoken and not interpreted.
override TEXT  := $(value TEXT)
override MODEL := $(value MODEL)
override OUT   := $(value OUT)
override PORT  := $(value PORT)
export TEXT MODEL OUT PORT

.DEFAULT_GOAL := help
.PHONY: help venv say serve test lint package format clean test-slow

help:
	@echo 'make say TEXT="Hello." [MODEL=dir] [OUT=out.wav]   install, then speak into a file'
	@echo 'make serve [MODEL=dir] [PORT=8000]                 install, then answer the speech API on this machine'
	@echo 'make test [WORKERS=2]                              install for development, then run the tests'
	@echo 'make test-slow                                     what takes longest: a browser, a compiler, processes that are killed or measured'
	@echo 'make lint                                          ruff and mypy'
	@echo 'make package                                       build wheel and sdist, and check what is in them'
	@echo 'make format                                        let ruff mend what it can'
	@echo 'make venv                                          only install'
	@echo 'make clean                                         remove caches and build output, keep $(VENV)'
	@echo 'TORCH=cpu with any of them, the first time: torch without CUDA, 0.2 GB instead of 5.'
	@echo 'PYTHON=python3.12 picks the interpreter for a new $(VENV).'

venv: $(VENV)/.installed

# Without MODEL (or SONANT_MODEL, which `sonant` reads itself) the built-in voice speaks.
say: $(VENV)/.installed
	@$(VENV)/bin/sonant say --out "$$OUT" $${MODEL:+--model "$$MODEL"} -- "$$TEXT"

serve: $(VENV)/.installed-serve
	@exec $(VENV)/bin/sonant serve $${MODEL:+--model "$$MODEL"} --port "$$PORT"

test: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -n $(WORKERS)

test-slow: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -n $(WORKERS) -m slow

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy

package: $(VENV)/.installed-dev
	$(VENV)/bin/python .ci/package.py

format: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sonant needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# torch comes first, since later installs keep the torch that is there. On Linux the plain build brings CUDA and the
# one Triton that it works with, so constraints.txt names no Triton.
# The index of the build without CUDA has few other packages: torch's dependencies come with what is installed next.
$(VENV)/.torch: | $(VENV)/bin/python
ifeq ($(TORCH),cpu)
	$(VENV)/bin/python -m pip install --quiet --no-deps --constraint constraints.txt --index-url $(TORCH_CPU_INDEX) torch
else
	@[ "$$(uname)" != Linux ] || $(VENV)/bin/python -c 'import torch' 2>/dev/null || \
	    echo 'Installing torch with CUDA, 5 GB. Without a GPU stop it and say: make $(MAKECMDGOALS) TORCH=cpu'
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt torch
endif
	@touch $@

# A torch without CUDA brings no Triton; then this installs the version whose interpreter tests the kernels.
TRITON_OF_TORCH = $$($(VENV)/bin/python -c 'import sys, torch; \
    print("" if torch.version.cuda or sys.platform != "linux" else "triton==3.6.0")')

# Each stamp is newer than the files that it was installed from, so that a second run has nothing to do.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/.torch
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-serve: pyproject.toml constraints.txt | $(VENV)/.torch
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[serve]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/.torch
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' $(TRITON_OF_TORCH)
	@touch $@ $(VENV)/.installed $(VENV)/.installed-serve
