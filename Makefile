# `make run`: one GRPO iteration on a small pretrained model, on the CPU. `make test`: everything CI checks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help run test lint bench clean

help:
	@echo "make run    one iteration with params.yaml, then a summary"
	@echo "make test   ruff, mypy and pytest"
	@echo "make lint   ruff and mypy"
	@echo "make bench  the benchmarks of tests/benchmarks"
	@echo "make clean  remove what runs and tools left here; .venv and DVC's cache stay"

run: $(VENV)/.installed
	@rollbook check
	@dvc repro
	@rollbook summary

test: lint
	@pytest

lint: $(VENV)/.installed-test
	@ruff check .
	@ruff format --check .
	@mypy

bench: $(VENV)/.installed-test
	@python -m tests.benchmarks

clean:
	rm -rf data/base data/policy data/reference data/trainer_state data/next_policy data/next_trainer_state
	rm -rf data/*.parquet data/report.html data/history.csv data/health.json data/metrics/*.json dvc.lock .rollbook
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed, and $(PYTHON) is " + sys.version.split()[0] + ". Try: make $(MAKECMDGOALS) PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV), which takes some minutes the first time"
	@$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[test]'
	@touch $@
