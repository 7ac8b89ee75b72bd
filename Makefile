PYTHON ?= python3
LOCK_FLAGS ?=
BIN := .venv/bin
INSTALLED := .venv/.installed

MINUTES ?= 10
KINDS ?= train,tune,compare
FLSEL_FUZZ ?= 300

.PHONY: help demo test fuzz soak lint evidence evidence-quick bench docs lock clean
.DEFAULT_GOAL := help

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

demo: $(INSTALLED) ## Compare four selectors on generated data, three seeds each (no download, two minutes).
	@$(BIN)/flsel compare --config quickstart --selectors Uniform,PowD:d=12,FedGS,HiCS --seeds 3 \
		--rounds 60 --availability LN --target 0.75 --threads 1 --name demo

test: $(INSTALLED) ## Run the tests.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal

fuzz: $(INSTALLED) ## Feed random settings, files and folders to the program (FLSEL_FUZZ=300 of each kind).
	@seed=$${SEED:-$$(date +%s)}; echo "SEED=$$seed"; OMP_NUM_THREADS=1 FLSEL_FUZZ=$(FLSEL_FUZZ) \
		$(BIN)/python -m pytest -q -n 0 --timeout 0 tests/test_fuzz.py --hypothesis-seed=$$seed

soak: $(INSTALLED) ## Kill runs, sweeps and comparisons at random and compare bits with undisturbed ones (MINUTES=10).
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py --minutes $(MINUTES) --kinds $(KINDS)

lint: $(INSTALLED) ## Check style, formatting and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED) ## Build the documentation site into site/.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site is in site/index.html"

evidence: $(INSTALLED) ## Play every comparison behind docs/results: days on two cores, resumable (FLSEL_DATA=...).
	$(BIN)/python benchmarks/evidence.py $(basename $(notdir $(wildcard benchmarks/evidence/*.yaml)))
	$(BIN)/python benchmarks/tuned.py atlas_synthetic
	$(BIN)/python benchmarks/tuned.py atlas_fashion
	$(BIN)/python benchmarks/branches.py --data-root $(or $(FLSEL_DATA),../shared/data)

evidence-quick: $(INSTALLED) ## Play the atlas on generated data with one seed (no download, under ten minutes).
	$(BIN)/python benchmarks/evidence.py atlas_synthetic --seeds 1

bench: $(INSTALLED) ## Measure speed and memory, and keep the tables in benchmarks/results.md (twenty minutes).
	$(BIN)/python benchmarks/run.py

# Keeps the versions it finds in constraints.txt where they still fit; LOCK_FLAGS=--upgrade takes the newest.
lock: $(BIN)/uv ## Regenerate constraints.txt after a change of dependencies in pyproject.toml.
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --extra dev --no-annotate \
		--custom-compile-command "make lock" $(LOCK_FLAGS) pyproject.toml --output-file constraints.txt

clean: ## Remove .venv and what tools left behind; runs stay.
	rm -rf .venv build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 10) <= sys.version_info < (3, 14) else "flsel needs Python 3.10 to 3.13, $(PYTHON) is " + sys.version.split()[0] + "; set PYTHON=python3.12, say")'
	@echo "installing into .venv (a few minutes, about 8 GB with the CUDA libraries)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Not by way of INSTALLED: that needs the constraints which are about to be made.
$(BIN)/uv:
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check uv
