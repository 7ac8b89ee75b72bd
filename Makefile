PYTHON ?= python3
LOCK_FLAGS ?=
BIN := .venv/bin
INSTALLED := .venv/.installed
FLOWER := .venv-flower/.installed

MINUTES ?= 10
KINDS ?= train,tune,compare
# Tests wait for processes that they start: one more worker than cores keeps the cores busy.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)')
FLSEL_FUZZ ?= 300

.PHONY: help demo demo-flower test test-flower test-mlflow test-tasks package test-package test-lowest test-highest test-python fuzz soak lint evidence \
	evidence-quick bench docs install-hashed lock lock-flower clean
.DEFAULT_GOAL := help

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

demo: $(INSTALLED) ## Compare three selectors on generated data, sixteen seeds each (no download, two minutes).
	@$(BIN)/flsel compare --config quickstart --partition Shards --partition.per_client 2 --availability YMF \
		--selectors Uniform,PowD:d=12,FedGS --seeds 16 --rounds 60 --threads 1 --name demo

test: $(INSTALLED) ## Run the tests.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

test-flower: $(FLOWER) ## Run the tests of deployments with Flower, real processes on loopback among them.
	OMP_NUM_THREADS=1 .venv-flower/bin/python -m pytest -q -n 0 tests/flower

test-mlflow: $(INSTALLED) ## Run the tests of the tracker MLflow, in .venv-mlflow.
	@$(PYTHON) -m venv .venv-mlflow
	.venv-mlflow/bin/python -m pip install -qq --disable-pip-version-check -e '.[dev,mlflow]'
	OMP_NUM_THREADS=1 .venv-mlflow/bin/python -m pytest -q -n 0 tests/test_mlflow.py

# Without constraints.txt: flwr-datasets fits few versions of fsspec.
test-tasks: $(BIN)/uv ## Run the tests with models of transformers, peft, timm and torchvision, in .venv-tasks.
	$(BIN)/uv venv --quiet --clear --seed --python $(PYTHON) .venv-tasks
	$(BIN)/uv pip install --quiet --python .venv-tasks -e '.[dev,lora,flower-datasets]' timm
	OMP_NUM_THREADS=1 .venv-tasks/bin/python -m pytest -q -n 0 tests/tasks tests/test_from_flower.py

package: $(INSTALLED) ## Build the wheel and the sdist into dist/ and check them (REPOSITORY=https://HOST/OWNER/NAME).
	@test -n "$(REPOSITORY)" || { echo "make package needs the address that links lead to: REPOSITORY=https://HOST/OWNER/NAME"; exit 2; }
	$(BIN)/python -m pip install -qq --disable-pip-version-check build twine
	rm -rf build dist
	FLSEL_REPOSITORY=$(REPOSITORY) $(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

test-package: $(INSTALLED) ## Check what a release uploads, and install it into a bare environment (network, 8 GB).
	$(BIN)/python -m pip install -qq --disable-pip-version-check build twine
	FLSEL_NETWORK=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 0 -o tmp_path_retention_policy=none tests/test_release.py

demo-flower: $(FLOWER) ## Run two rounds over three Flower nodes on loopback (no download, two minutes).
	@.venv-flower/bin/python tests/flower/loopback.py

# --no-config: what tool.uv in pyproject.toml pins is for the newest versions. The lowest have wheels for 3.10 and 3.11.
test-lowest: $(BIN)/uv ## Run the tests with the lowest declared versions, in .venv-lowest (PYTHON=python3.10).
	$(BIN)/uv venv --quiet --clear --seed --python $(PYTHON) .venv-lowest
	$(BIN)/uv pip install --no-config --quiet --python .venv-lowest --resolution lowest-direct -e '.[dev]'
	$(call tests_in,.venv-lowest)

test-highest: $(BIN)/uv ## Run the tests with the newest versions that the bounds allow, in .venv-highest.
	$(BIN)/uv venv --quiet --clear --seed --python $(PYTHON) .venv-highest
	$(BIN)/uv pip install --no-config --quiet --python .venv-highest --resolution highest -e '.[dev]'
	$(call tests_in,.venv-highest)

test-python: $(BIN)/uv ## Run the tests with another Python, in .venv-python3.13 (PYTHON=python3.13).
	$(BIN)/uv venv --quiet --clear --seed --python $(PYTHON) .venv-$(notdir $(PYTHON))
	$(BIN)/uv pip install --no-config --quiet --python .venv-$(notdir $(PYTHON)) -c constraints.txt -e '.[dev]'
	$(call tests_in,.venv-$(notdir $(PYTHON)))

# The tests start flsel and its tools by name.
define tests_in
PATH="$(CURDIR)/$(1)/bin:$$PATH" OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal $(TESTS)
endef

fuzz: $(INSTALLED) ## Feed random settings, files, folders and models to the program (FLSEL_FUZZ=300 of each kind).
	@seed=$${SEED:-$$(date +%s)}; echo "SEED=$$seed"; OMP_NUM_THREADS=1 FLSEL_FUZZ=$(FLSEL_FUZZ) \
		$(BIN)/python -m pytest -q -n 0 --timeout 0 tests/test_fuzz.py tests/local/test_zoo.py --hypothesis-seed=$$seed

soak: $(INSTALLED) ## Kill runs, sweeps and comparisons at random and compare bits with undisturbed ones (MINUTES=10).
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py --minutes $(MINUTES) --kinds $(KINDS)

lint: $(INSTALLED) ## Check style, formatting and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED) ## Build the documentation site into site/.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site is in site/index.html"

evidence: $(INSTALLED) ## Run every comparison behind docs/results: days on two cores, resumable (FLSEL_DATA=...).
	$(BIN)/python benchmarks/evidence.py $(basename $(notdir $(wildcard benchmarks/evidence/*.yaml)))
	$(BIN)/python benchmarks/tuned.py atlas_synthetic
	$(BIN)/python benchmarks/tuned.py atlas_fashion
	$(BIN)/python benchmarks/branches.py --data-root $(or $(FLSEL_DATA),../shared/data)

evidence-quick: $(INSTALLED) ## Run the atlas on generated data with one seed (no download, under ten minutes).
	$(BIN)/python benchmarks/evidence.py atlas_synthetic --seeds 1

bench: $(INSTALLED) ## Measure speed and memory, and keep the tables in benchmarks/results.md (twenty minutes).
	$(BIN)/python benchmarks/run.py

# Keeps the versions that the file has where they still fit; LOCK_FLAGS=--upgrade takes the newest.
# flwr-datasets, which Flower's users install beside it, fits few versions of fsspec.
lock-flower: $(BIN)/uv ## Regenerate constraints-flower.txt, the versions beside which Flower fits.
	@printf '%s\n' flwr-datasets scikit-learn | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --extra flower --no-annotate \
		--custom-compile-command "make lock-flower" $(LOCK_FLAGS) pyproject.toml - --output-file constraints-flower.txt

# As lock-flower. Two files of the same versions: pip refuses hashes beside what has none, such as this folder.
lock: $(BIN)/uv ## Regenerate constraints.txt and constraints-hashed.txt after a change of dependencies in pyproject.toml.
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --extra dev --no-annotate --generate-hashes \
		--custom-compile-command "make lock" $(LOCK_FLAGS) pyproject.toml --output-file constraints-hashed.txt
	sed -e '/^ *--hash=/d' -e 's/ \\$$//' constraints-hashed.txt > constraints.txt

install-hashed: constraints-hashed.txt ## Install into .venv only files whose hashes are in constraints-hashed.txt.
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r constraints-hashed.txt
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(INSTALLED)

clean: ## Remove .venv and what tools left behind; runs stay.
	rm -rf .venv .venv-* build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 10) <= sys.version_info < (3, 14) else "flsel needs Python 3.10 to 3.13, $(PYTHON) is " + sys.version.split()[0] + "; set PYTHON=python3.12, say")'
	@echo "installing into .venv (a few minutes, about 8 GB with the CUDA libraries)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(FLOWER): pyproject.toml constraints-flower.txt
	@echo "installing into .venv-flower (a few minutes, about 8 GB with the CUDA libraries)"
	@$(PYTHON) -m venv .venv-flower
	@.venv-flower/bin/python -m pip install -qq --disable-pip-version-check -c constraints-flower.txt -e '.[dev,flower]' scikit-learn
	@touch $@

# Not by way of INSTALLED: that needs the constraints which are about to be made.
$(BIN)/uv:
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check uv
