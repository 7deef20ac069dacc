# make demo and make test set up everything in the virtual environment .venv; make quick is for after each change.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: demo explore examples test quick attack kill lint check docs clean

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/.ready
	$(BIN)/python examples/demo.py

# The models of make demo in a browser; PORT=8001 if 8000 is in use.
PORT ?= 8000
explore: .venv/.ready
	test -d demo/Complex-RNN || $(MAKE) demo
	$(BIN)/treefold serve demo/Complex-RNN demo/Hosvd-LSTM demo/Full-LSTM demo/Sum-LSTM --data demo/trees --port $(PORT)

# The programs in examples/, with their output into examples/output; two of them need data: SST=FOLDER GLYCANS=FOLDER.
EXAMPLES := formulas programs documents $(if $(SST),sentiment) $(if $(GLYCANS),kingdoms)
examples: .venv/.ready
	mkdir -p examples/output
	set -e; for name in $(EXAMPLES); do \
		case $$name in sentiment) data="$(SST)";; kingdoms) data="$(GLYCANS)";; *) data="";; esac; \
		OMP_NUM_THREADS=1 $(BIN)/python -m examples.$$name $$data > examples/output/$$name.tmp; \
		mv examples/output/$$name.tmp examples/output/$$name.txt; cat examples/output/$$name.txt; \
	done

test: .venv/.ready
	$(BIN)/python -m treefold.kernels --double
	$(BIN)/python -m pytest -q -n $(JOBS)

quick: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not slow"

# Hostile input for all readers, files, arguments and commands; findings and counts go into the folder KEEP.
MINUTES ?= 10
SEED ?= 0
KEEP ?= attack-findings
attack: .venv/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.attack --minutes $(MINUTES) --seed $(SEED) --keep $(KEEP)

# Random SIGKILL, SIGTERM and SIGINT of trainings and sweeps, resumed to the end, byte for byte as undisturbed.
RUNS ?= 20
kill: .venv/.ready
	$(BIN)/python -m treefold.kernels --double
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.attack.kill --runs $(RUNS) --seed $(SEED)

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
