# Everything happens in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready

.PHONY: quickstart test test-all fuzz lint format bench docs clean

quickstart: $(INSTALLED)  ## train a small ViT in about two minutes and look inside
	$(BIN)/vitreous quickstart

test: $(READY)  ## what a change must pass: minutes
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(READY)  ## also what takes longer: the built wheel in a clean environment, the kernels as a lesser CPU runs them, hostile input
	$(BIN)/python -m pytest -n 2 -m slow

SEED ?= $(shell date +%s)
SECONDS ?= 600

fuzz: $(READY)  ## hostile input through every command, others each time; SEED and SECONDS say which and how long
	$(BIN)/python -m tests.fuzz --inputs 10000 --seed $(SEED) --seconds $(SECONDS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## side by side with rivals, as ratios; those that cannot be installed are named
	-$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python -m benchmarks.inference

docs: $(READY)  ## this documentation as a site in site/, which loads nothing from the network
	$(BIN)/python -c "import mkdocs, material, mkdocstrings, latex2mathml" 2>/dev/null \
		|| $(BIN)/python -m pip install --quiet --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache

# Reinstalled only when the dependencies change: what the library needs, and what its development needs.
$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(READY): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@
