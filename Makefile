# Everything a contributor runs. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help check test demo lint types imports unit crds e2e cluster clean

help: ## List the targets
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "promptprefix needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[operator,sidecar,router,cli]' --group dev
	@touch $@

check: lint types imports unit ## Lint, types, import contracts, unit and wiring tests (under 2 minutes)

lint: $(STAMP) ## Style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Static types
	$(BIN)/mypy

imports: $(STAMP) ## Which component may import which
	$(BIN)/lint-imports

unit: $(STAMP) ## Unit and wiring tests
	$(BIN)/pytest tests

crds: $(STAMP) ## Generate crds/ and the chart's copy from the models
	$(BIN)/python -m promptprefix_cli.crd > crds/promptprefixes.promptprefix.dev.yaml
	cp crds/promptprefixes.promptprefix.dev.yaml charts/promptprefix/files/

test: ## Check, then everything that needs real parts: cluster, vLLM, Envoy, demo
	@$(PYTHON) .ci/stages.py

e2e: $(STAMP) ## The end-to-end tests alone
	$(BIN)/pytest e2e

demo: $(STAMP) ## Apply a prompt prefix to real vLLM pods and print the gain (KEEP=1, KUBE_CONTEXT=…)
	$(BIN)/python -m e2e.demo

cluster: $(STAMP) ## A control plane and one node, until Ctrl-C
	$(BIN)/python -m e2e.cluster up

clean: ## Remove what was built in the checkout (the cache stays)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
