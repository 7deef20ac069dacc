# make demo and make test set up everything in the virtual environment .venv; make quick is for after each change.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: demo test quick lint check docs clean

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/.ready
	$(BIN)/python examples/demo.py

test: .venv/.ready
	$(BIN)/python -m treefold.kernels --double
	$(BIN)/python -m pytest -q -n $(JOBS)

quick: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not slow"

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

docs: .venv/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html
	@echo "the site is in docs/_build/html/index.html"

clean:
	rm -rf .venv docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
