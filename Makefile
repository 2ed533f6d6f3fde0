# Two commands for a fresh clone: `make demo` and `make test`. Both make .venv and install what they need into it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python
PIP_INSTALL := $(PYTHON) -m pip install --quiet --disable-pip-version-check
PEERS_VENV := .venv-peers

.PHONY: help demo test crash-test bench bench-serve bench-gpu docs openapi audit wheel peers format clean

help: ## Say what can be made.
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.installed ## Make a room, draw its cameras, and localize photos in it with weights that never saw it.
	@$(VENV)/bin/relograph demo

# One thread a process: pytest already uses both cores, and torch's threads would only get in each other's way.
test: export OMP_NUM_THREADS := 1
test: $(VENV)/.installed-dev chromium ## Run every check that CI runs: format, lint, types, tests, doctests.
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -n 2

crash-test: $(VENV)/.installed-dev ## Kill a process that changes a map 200 times, and check the map each time; in PostgreSQL 100 times.
	@$(PYTHON) tests/maps/crashing.py --kills 200
	$(PYTHON) tests/maps/crashing.py --kills 100 --postgresql

# What was measured already is kept in $(PARTS) and goes on where it was.
PARTS := results/parts
bench: $(VENV)/.installed-dev ## Measure maps on this machine, up to a million images, into results/ (an hour or two; 15 GB of disk).
	@$(VENV)/bin/relograph bench map --output results/map_cpu.json
	$(VENV)/bin/relograph bench growth --output results/map_growth.json --plot docs/pictures/map-growth.png
	$(VENV)/bin/relograph bench retrieval --parts $(PARTS)/retrieval --output results/retrieval.json --plot docs/pictures/retrieval-growth.png
	$(VENV)/bin/relograph experiments report

bench-serve: $(VENV)/.installed-dev ## Try a service on this machine: overhead, overload, hostile requests, faults (half an hour).
	@$(VENV)/bin/relograph bench serve --output results/serve_cpu.json
	$(VENV)/bin/relograph experiments report

# Results are named after the GPU: h200, or rtx-4090 of an NVIDIA GeForce RTX 4090. Its first commands compile for minutes.
GPU = $(shell nvidia-smi --query-gpu=name --format=csv,noheader --id=0 2>/dev/null | sed -E 's/^NVIDIA //; s/^GeForce //' | tr 'A-Z ' 'a-z-')
bench-gpu: $(VENV)/.installed-dev ## Measure rooms, networks, maps and a service on an NVIDIA GPU, into results/ (an hour; 15 GB of disk).
	@[ -n "$(GPU)" ] || { echo "error: nvidia-smi names no GPU. Run this where there is one." >&2; exit 1; }
	relograph=$(VENV)/bin/relograph
	$$relograph bench rooms --device cuda --output results/rooms_$(GPU).json
	$$relograph bench rooms --device cuda --size 240x320 --effects all --effects none --output results/rooms_$(GPU)_240x320.json
	$$relograph bench network --device cuda --batch 64 --batch 8 --output results/network_$(GPU).json
	$$relograph bench match --device cuda --batch 64 --output results/match_$(GPU).json
	$$relograph bench map --device cuda --photos 8192 --views 128 --output results/map_$(GPU).json
	$$relograph bench serve --device cuda --output results/serve_$(GPU).json
	$$relograph experiments report

docs: $(VENV)/.installed-dev ## Build the documentation as a site into site/, which opens from the disk: site/index.html.
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet
	echo "site/index.html"

openapi: $(VENV)/.installed-dev ## Write docs/openapi.json, what the service answers, as the service says it.
	@$(PYTHON) docs/write_openapi.py

audit: $(VENV)/.installed-dev ## Check the packages that relograph is installed with: known holes (from PyPI), licences, lowest versions.
	@$(PYTHON) tools/audit.py

wheel: $(VENV)/.installed-dev ## Build the wheel and the source archive into dist/, and say how large they are.
	@rm -rf dist
	$(PYTHON) -m hatchling build
	$(PYTHON) -m zipfile --list dist/*.whl | awk '/weights\/|page\/|\.html/ {print $$1, $$NF}'
	du --apparent-size --block-size=1000 dist/* | awk '{printf "%s: %.1f MB\n", $$2, $$1 / 1000}'

peers: $(PEERS_VENV)/.installed ## Make .venv-peers, where XFeat and ALIKED + LightGlue live that relograph is compared with.

format: $(VENV)/.installed-dev ## Format the code and mend what the linter can mend.
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

clean: ## Remove what these commands made: .venv, .venv-peers, the demo's files, caches.
	rm -rf $(VENV) $(PEERS_VENV) demo build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps say what .venv holds; a change of pyproject.toml installs again.
$(VENV)/.installed: $(VENV)/.created pyproject.toml
	@echo "Installing relograph with its geometry and serve extras into $(VENV) (once; torch is large)"
	$(PIP_INSTALL) -e '.[geometry,serve]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml
	@echo "Installing relograph with its dev extra into $(VENV) (once; torch is large)"
	$(PIP_INSTALL) -e '.[dev]'
	touch $(VENV)/.installed $@

# Pages are tested in it; their tests are skipped, with a line that says so, where there is none and it cannot be had.
.PHONY: chromium
chromium:
	@for name in chromium chromium-browser google-chrome; do if command -v $$name >/dev/null; then exit 0; fi; done
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	    echo "Installing Chromium, in which pages are tested (once)"
	    export DEBIAN_FRONTEND=noninteractive
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium ||
	        echo "warning: Chromium could not be installed; tests of pages are skipped" >&2
	fi

# The peers never get into .venv: one of them asks for torchvision. They run on the very torch that .venv has, so that
# times can be compared.
$(PEERS_VENV)/.installed: $(VENV)/.installed peers/requirements.txt
	@echo "Installing the peers into $(PEERS_VENV) (once; torch is large)"
	$(PYTHON) -m venv $(PEERS_VENV)
	peers_install=($(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check)
	"$${peers_install[@]}" "torch==$$($(PYTHON) -c 'import torch; print(torch.__version__)')"
	"$${peers_install[@]}" --no-deps -r peers/requirements.txt
	touch $@

# A candidate is run, not only looked up: pyenv's shims exist for versions that are not switched on. Debian ships venv
# without ensurepip, in a package of its own.
$(VENV)/.created:
	@runs() { "$$1" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; }
	makes_venv() { runs "$$1" && "$$1" -c 'import ensurepip, venv' 2>/dev/null; }
	candidates=(python3 python3.11 python3.12)
	if ! { runs $(PYTHON) && $(PYTHON) -m pip --version >/dev/null 2>&1; }; then
	    found=
	    for python in "$${candidates[@]}"; do if makes_venv $$python; then found=$$python; break; fi; done
	    if [ -z "$$found" ]; then
	        for python in "$${candidates[@]}"; do if runs $$python; then found=$$python; break; fi; done
	        if [ -z "$$found" ]; then
	            echo "error: no working Python 3.11 or 3.12 found on PATH. Install one, for example: apt-get install python3 python3-venv" >&2
	            exit 1
	        elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	            echo "Installing $$found-venv, which $$found needs to make a virtual environment"
	            apt-get update -qq && apt-get install -y -qq --no-install-recommends $$found-venv
	        else
	            echo "error: $$found cannot make a virtual environment. Run: sudo apt-get install $$found-venv" >&2
	            exit 1
	        fi
	    fi
	    rm -rf $(VENV)
	    $$found -m venv $(VENV)
	fi
	touch $@
