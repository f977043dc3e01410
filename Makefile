# `make run`, `make test` and `make test-all` need git, make and python3 only. PYTHON=python3.12 chooses the interpreter, VENV=... the folder.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.installed
TESTS := $(VENV)/.installed-test
LONG := $(VENV)/.installed-long
DOCS := $(VENV)/.installed-docs
# The random cases of bad input are those of this seed, in CI too.
SEED ?= 0
PYTEST_FLAGS ?= -n auto --dist loadfile --durations=15 --hypothesis-seed=$(SEED)
# The devices of `make test-accelerator`, any that jax finds or cpu, and the extra that it installs for them, if any.
ACCELERATOR ?= any
EXTRA ?= $(if $(filter any,$(ACCELERATOR)),$(if $(wildcard /dev/nvidiactl),gpu,$(if $(wildcard /dev/accel0 /dev/vfio/0),tpu)))
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
BROWSER ?= chromium
SHARED_DATA := $(wildcard ../shared/data)
export FOCALGEO_DATA ?= $(if $(SHARED_DATA),$(abspath $(SHARED_DATA)))

.PHONY: help run picture docs test test-all test-accelerator fuzz quick-test lint install clean
help:
	@echo "make run    install into $(VENV), then the main job on digits (runs/digits/report.html)"
	@echo "make picture   that, and docs/report.png of the page's first screen, by chromium (BROWSER=...)"
	@echo "make test   install into $(VENV), then lint and the tests that do not take long"
	@echo "make test-all   PyTorch and trackers too, make test, then the long tests: every recipe, kills, devices, notebooks (a quarter of an hour more)"
	@echo "make docs   the tables of names, and the site in build/site: every link, the code of its pages and its notebooks are tried (2 minutes)"
	@echo "make fuzz   bad input alone: the tables and random cases of tests/hostile, SEED=... chooses which (2 minutes)"
	@echo "make test-accelerator   tests on the GPU or TPU that jax finds, skipped where there is none; ACCELERATOR=cpu runs them there"
	@echo "make quick-test   the tests marked neither slow nor long"

run: $(RUNS)
	$(BIN)/python -m focalgeo.run --config=configs/digits.py --workdir=runs/digits
	@echo "python -m focalgeo and the README's other commands: after '. $(BIN)/activate'"

picture: run
	$(BROWSER) --headless --no-sandbox --hide-scrollbars --window-size=1100,1130 --screenshot=docs/report.png $(CURDIR)/runs/digits/report.html

test: $(TESTS) lint
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

# By test, not by file: a few files hold most of these.
test-all: $(LONG) test
	$(BIN)/python -m pytest $(PYTEST_FLAGS) --dist worksteal -m long

quick-test: $(TESTS)
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow and not long and not accelerator"

test-accelerator: $(TESTS)
	$(if $(EXTRA),$(PIP_INSTALL) -e '.[$(EXTRA)]')
	FOCALGEO_ACCELERATOR=$(ACCELERATOR) $(BIN)/python -m pytest -m accelerator -rs tests/test_accelerator.py

fuzz: $(TESTS)
	$(BIN)/python -m pytest $(PYTEST_FLAGS) --dist worksteal -m "long or not long" tests/hostile

docs: $(DOCS)
	$(BIN)/python -m docs.tables
	$(BIN)/python -m pytest $(PYTEST_FLAGS) tests/test_pages.py
	$(BIN)/python -m docs.site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(TESTS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

install: $(RUNS)

# The stamps make a second install take no time; they are remade when the requirements change.
$(RUNS): pyproject.toml constraints.txt
	@echo "installing into $(VENV): a minute or two"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[train]'
	touch $@

$(TESTS): $(RUNS)
	$(PIP_INSTALL) -e '.[test]'
	touch $@

# Trackers for the examples, PyTorch for the exports, and what docs/coming_from.md compares with: of gigabytes where pip finds its CUDA wheels alone. PIP_EXTRA_INDEX_URL may name an index of CPU wheels.
$(LONG): $(TESTS)
	$(PIP_INSTALL) -e '.[coming-from,trackers]'
	touch $@

$(DOCS): $(TESTS)
	$(PIP_INSTALL) -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) runs build
