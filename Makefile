# Everything a contributor runs. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# For `make images`. Other bases: BUILD_IMAGE, RUNTIME_IMAGE and, for the plugin,
# PLUGIN_RUNTIME_IMAGE. BUILD_FLAGS goes to the builder as it is.
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REVISION = $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
BUILDER ?= $(notdir $(firstword $(shell command -v docker podman buildah)))
TAG ?= $(VERSION)
REGISTRY ?=

.DEFAULT_GOAL := help
.PHONY: help check test test-engines demo lint types imports unit crds e2e cluster images clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "promptprefix needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[operator,sidecar,router,cli]' --group dev
	@touch $@

check: lint types imports unit ## Lint, types, import contracts, unit and wiring tests

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

test-engines: $(STAMP) ## Plugin and sidecar on released vLLM versions (VERSIONS=; 6 to 8 GB of disk for each)
	$(BIN)/python -m e2e.engine.versions $(VERSIONS)

demo: $(STAMP) ## Apply a prompt prefix to real vLLM pods and print the gain (KEEP=1, KUBE_CONTEXT=…)
	$(BIN)/python -m e2e.demo

cluster: $(STAMP) ## A control plane and one node, until Ctrl-C
	$(BIN)/python -m e2e.cluster up

images: ## Build the four images (REGISTRY=, TAG=, BUILDER=docker|podman|buildah, PIP_CONF=file)
	@test -n "$(BUILDER)" || { echo "no docker, podman or buildah here: set BUILDER=" >&2; exit 1; }
	@set -e; for component in operator sidecar router plugin; do \
	  folder=$$component; runtime="$(RUNTIME_IMAGE)"; \
	  case $$component in plugin) folder=engine; runtime="$(PLUGIN_RUNTIME_IMAGE)";; esac; \
	  name="$(REGISTRY:%=%/)promptprefix-$$component:$(TAG)"; \
	  echo "$$name from $$folder/Containerfile"; \
	  $(BUILDER) build --file "$$folder/Containerfile" --tag "$$name" \
	    --label org.opencontainers.image.version="$(VERSION)" \
	    --label org.opencontainers.image.revision="$(REVISION)" \
	    $(BUILD_IMAGE:%=--build-arg BUILD_IMAGE=%) \
	    $${runtime:+--build-arg RUNTIME_IMAGE="$$runtime"} $(PIP_CONF:%=--secret id=pip,src=%) \
	    $(BUILD_FLAGS) .; \
	done

clean: ## Remove what was built in the checkout (the cache stays)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
