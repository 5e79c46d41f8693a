# Every target makes its own environment: `make quickstart` works in a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what is imported when it is: most of what is installed never is.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable

.PHONY: setup setup-test quickstart test test-all lint clean

setup: $(VENV)/.installed
setup-test: $(VENV)/.installed-test

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) ".[train,figures]"
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) ".[test]"
	@touch $@ $(VENV)/.installed

quickstart: setup
	$(BIN)/collapipe quickstart

test: setup-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m pyright
	$(BIN)/python -m pytest

test-all: setup-test
	$(BIN)/python -m pytest -m "slow or not slow"

lint: setup-test
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .hypothesis
