# Two commands do everything: make demo, make test. The virtual environment is .venv.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: demo test check lint clean

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m treefold.kernels
	touch $@

demo: .venv/.ready
	$(BIN)/python examples/demo.py

test: .venv/.ready
	$(BIN)/python -m treefold.kernels --double
	$(BIN)/python -m pytest -q -n $(JOBS)

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
