# The commands of the project. `make help` lists them.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
EXTRA ?= local,dev

.DEFAULT_GOAL := help
.PHONY: help run test check format chaos bench proto docs clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRA)]'
	touch $@

run: $(VENV)/.installed ## train the example on this machine: sort four digits
	$(BIN)/headrace run examples/sort_digits.yaml

proto: $(VENV)/.installed ## regenerate the code of proto/
	rm -rf proto/gen/headrace/v1
	mkdir -p proto/gen/headrace/v1
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m grpc_tools.protoc -I proto \
	  --python_out=proto/gen --mypy_out=proto/gen --grpc_python_out=proto/gen --mypy_grpc_out=proto/gen \
	  proto/headrace/v1/*.proto
	echo '"""Generated from proto/headrace/v1 by `make proto`."""' > proto/gen/headrace/v1/__init__.py
	touch proto/gen/headrace/v1/py.typed
