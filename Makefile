# Two commands: `make demo` and `make test`.  Both create the environment first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv is used where it is installed; elsewhere pip puts it into a venv of its own.
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
# `make env GPU=1` installs the CUDA libraries, too; the environment keeps them until `make env GPU=0`.
GPU := $(if $(wildcard $(VENV)/.synced-*-gpu),1,0)
STAMP := $(VENV)/.synced-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')$(if $(filter 1,$(GPU)),-gpu)
# Without bytecode, every process that imports TFX compiles it anew: fifteen seconds for each.
unexport PYTHONDONTWRITEBYTECODE
# Processes that run tests; a worker takes up to 3 GB.
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 2
.PHONY: env demo demo-photos test test-all browser mediapipe packages lint lock format docs clean

env: $(STAMP)

.uv/bin/uv:
	$(PYTHON) -m venv .uv
	.uv/bin/pip install --quiet --disable-pip-version-check uv

$(STAMP): requirements.lock pyproject.toml setup.py environment.sh
	rm -f $(VENV)/.synced*
	PYTHON=$(PYTHON) ./environment.sh $(if $(filter 1,$(GPU)),--gpu) $(VENV) .
	touch $(STAMP)
	@echo 'Installed. In each shell, `source $(BIN)/activate` makes `cocoflow` and `tensorboard` available.'

demo: env
	$(BIN)/python -m detection.datasets.demo_data runs/demo-data
	$(BIN)/cocoflow run --config demo --data runs/demo-data

# The default detector on photographs: blood cells under a microscope (BCCD, 364 images, MIT), fetched once; or
# `make demo-photos DATA=FOLDER_OR_ADDRESS` on your own.
BCCD := https://github.com/Shenggan/BCCD_Dataset/archive/d272fb14cdff6e473fafeeeba32aba5f560e9e43.zip
BCCD_SHA256 := aa5de8998d89c024354f6bae86e8293d1c5f003470efa555fb580cb527591a41
demo-photos: DATA ?= $(BCCD)\#BCCD=$(BCCD_SHA256)
demo-photos: env
	@$(BIN)/cocoflow run --data '$(DATA)' --set run.root=runs/photos --set run.name=photos || \
	  { echo 'The data come from the network: `make demo` needs none, and DATA=FOLDER takes images of yours.' >&2; \
	  exit 1; }

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The page, and the tables on pages, that are made from the configuration's classes.
docs: env
	$(BIN)/python -m docs.tables

# For the tests of pages: Debian's Chromium.  Where it cannot be had, the tests say what that means.
browser:
	@if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
	  || echo "chromium could not be installed: see the tests of pages"; fi

# For the tests that run MediaPipe: the libraries that it loads, likewise.
mediapipe:
	@if ! ldconfig -p | grep -q libEGL.so.1 && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends libegl1 libgles2; } >/dev/null 2>&1 \
	  || echo "MediaPipe's libraries could not be installed: see the tests of MediaPipe"; fi

packages:
	@$(MAKE) --no-print-directory browser
	@$(MAKE) --no-print-directory mediapipe

# Types are checked while Debian's packages, which wait for the network, are installed.
test: env
	@$(MAKE) --no-print-directory --jobs=2 lint packages
	$(PYTEST) -m "not extended"

test-all: env
	@$(MAKE) --no-print-directory --jobs=2 lint packages
	$(PYTEST)
	.ci/second_stack

# Resolves pyproject.toml's dependencies, extras and group `dev` for every supported Python into one
# hashed lock that names no package host.
lock: | $(filter .uv/bin/uv,$(UV))
	$(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	  --no-annotate --no-header --all-extras --group dev pyproject.toml \
	  --output-file requirements.lock

# Removes what `make` builds.  Models, data and records in runs/ are the user's.
clean:
	rm -rf $(VENV) .uv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./runs -prune -o -name __pycache__ -prune -exec rm -rf {} +
