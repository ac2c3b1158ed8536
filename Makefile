# make demo and make test are all that a newcomer needs; every target sets up what it uses in .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
# One compute thread a test process: processes with several threads each fight for the cores. Three of them on two
# cores: a federation's tests mostly wait.
export OMP_NUM_THREADS ?= 1
# Modules are compiled when they are first imported, and kept, whatever the shell says: without that every
# process of the tests would compile torch again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-flower test test-long test-kills coverage check lint format types imports audit licences wheel
.PHONY: wheelhouse docs deploy-check screenshots bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

.venv/runtime: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable '.[digits,report,efficientnet]'
	touch $@

.venv/dev: .venv/runtime
	$(PIP) --editable '.[digits,icons,hf,onnx,report,efficientnet,flower,dicom,tensorboard,mlflow,wandb,docs,dev]'
	touch $@

setup: .venv/dev ## build the environment in .venv

demo: .venv/runtime ## adapt a model to two new domains: a table and runs/demo/report.html
	rm -rf runs/demo
	$(BIN)/fedscal run --out runs/demo

demo-flower: .venv/dev ## a server and three sites on this machine, over TLS, two rounds
	rm -rf runs/demo-flower
	timeout 900 $(BIN)/fedscal flower demo runs/demo-flower --sites 3

test: .venv/dev ## run the tests
	$(BIN)/pytest --numprocesses 3 --dist worksteal

test-long: .venv/dev ## federations that are killed, strange and hostile; all that the default suite samples; the wheel
	$(BIN)/pytest -m long

test-kills: .venv/dev ## 200 random SIGKILLs of a federation's processes: an hour
	$(BIN)/pytest -m kills -s

coverage: .venv/dev ## run the tests and say which lines and branches they do not reach
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --numprocesses 2 --dist worksteal
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

check: lint types imports docs test audit ## what CI runs

lint: .venv/dev ## style and docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/dev ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv/dev ## static types
	$(BIN)/mypy

imports: .venv/dev ## the layers, and that training cannot reach labels
	$(BIN)/lint-imports

audit: .venv/dev ## known vulnerabilities of what is installed; says so where no advisory service can be reached
	$(BIN)/python -m tools.audit

licences: .venv/dev ## write docs/licences.md anew, after a change of constraints.txt
	$(BIN)/python -m tools.licences

screenshots: .venv/dev ## pictures of the pages into docs/images, by an installed Chromium
	$(BIN)/python -m tools.screenshots

docs: .venv/dev ## build the documentation's site into dist/site; a broken link ends it
	$(BIN)/python -m tools.docs_site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --config-file dist/mkdocs.yml

wheel: .venv/dev ## build the wheel and the source distribution into dist/
	$(BIN)/python -m hatchling build --clean

wheelhouse: .venv/runtime ## all wheels that a machine without an index needs, into dist/wheelhouse
	rm -rf dist/wheelhouse
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --constraint constraints.txt \
		--wheel-dir dist/wheelhouse '.[flower,report,onnx,efficientnet]'

deploy-check: .venv/dev ## the container file and the systemd units of deploy/; part of the tests
	$(BIN)/pytest tests/unit/test_deploy_files.py

bench: .venv/runtime ## rounds against their bare passes; images a second, memory; FLOWER_ENV=, PFL_ENV=: other frameworks
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.images
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.small_clients
	$(BIN)/python -m benchmarks.judging
	$(BIN)/python -m benchmarks.peers $(if $(FLOWER_ENV),--flower-env $(FLOWER_ENV)) $(if $(PFL_ENV),--pfl-env $(PFL_ENV))

clean: ## remove the environment, caches and demo runs
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* dist runs/demo
