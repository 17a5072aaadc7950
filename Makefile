# `make check` is what a change must pass; `make format` puts the code in shape first.
# Uses the tools on PATH: activate the virtual environment, or say PYTHON=.venv/bin/python.

PYTHON ?= python3

.PHONY: check format lint types imports test determinism demo

check: lint types imports

format:
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy
	$(PYTHON) -m pyright --pythonpath "$$($(PYTHON) -c 'import sys; print(sys.executable)')"

imports:
	$(PYTHON) -c 'import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())'

test:
	$(PYTHON) -m pytest

# The parts that every node computes for itself and must come out alike; run it under several
# PYTHONHASHSEED.
determinism:
	$(PYTHON) -m pytest -q tests/links tests/log tests/membership tests/node tests/plan

demo:
	$(PYTHON) -m greedw_cli demo
