# Every target makes its own environment: `make quickstart` works in a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Many processes import the same modules: tests are collected in half the time where Python keeps them compiled.
unexport PYTHONDONTWRITEBYTECODE
# With uv the versions in uv.lock; without it, or with `make UV=`, the newest that pyproject.toml allows.
UV ?= $(shell command -v uv)
ifeq ($(UV),)
# --no-compile: Python compiles a module when it is first imported, and most installed ones never are.
install = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(1:%=--editable ".[%]")
else
install = $(UV) sync --quiet --locked --inexact --python $(BIN)/python $(1:%=--extra %)
endif

.PHONY: setup setup-test setup-docs quickstart results test test-all lint docs clean

setup: $(VENV)/.installed
setup-test: $(VENV)/.installed-test
setup-docs: $(VENV)/.installed-docs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml uv.lock | $(VENV)/bin/python
	$(call install,train figures)
	@touch $@

$(VENV)/.installed-test: pyproject.toml uv.lock | $(VENV)/bin/python
	$(call install,test)
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml uv.lock | $(VENV)/bin/python
	$(call install,docs)
	@touch $@ $(VENV)/.installed

quickstart: setup
	$(BIN)/collapipe quickstart

# Measures again what the pages say, but for what needs corpora or a GPU, and writes the pages.
results: setup
	$(BIN)/python -m experiments.reproduce
	$(BIN)/python -m experiments.pages

test: setup-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m pyright
	$(BIN)/python -m pytest

test-all: setup-test
	$(BIN)/python -m pytest -m "slow or not slow"

lint: setup-test
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

# Executes the tutorials; needs no network. Warnings are errors.
docs: setup-docs
	$(BIN)/python -m sphinx -W --keep-going -b html -d build/doctrees docs build/site

clean:
	rm -rf $(VENV) build runs .pytest_cache .ruff_cache .hypothesis
