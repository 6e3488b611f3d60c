# `make` lists the targets. `make demo` and `make test` set themselves up: they need Python 3.11 or newer and
# make, and neither root nor Docker. What they make lies in .venv and .demo.

UV_VERSION := 0.13.8

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up

# The first of these that is new enough; `make PYTHON=…` names another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; \
  done)

# The environment's programs first, its Python for Spark's workers too, and a Java that Spark runs on.
IN_VENV = PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/$(VENV)" \
  PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python" PYSPARK_DRIVER_PYTHON="$(CURDIR)/$(BIN)/python"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo stack images stack-docker check test test-all model bench lint format hashes dist docs clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## real flights through Spark, Airflow and S3 on this machine; takes about five minutes
	@$(IN_VENV) $(BIN)/python -m dev.demo $(ARGS)

stack: $(STAMP) ## Airflow, a Spark cluster and S3 without Docker, tried out, until Ctrl-C; ARGS=--check
	@$(IN_VENV) $(BIN)/python -m dev.stack $(ARGS)

images: ## build the images of docker/ and list their sizes; needs Docker; BASE=… is another Debian to start from
	@$(foreach name,BASE SPARK_EXTRA BUILD_NETWORK,$(if $($(name)),$(name)=$($(name)))) docker/build-images.sh

stack-docker: $(STAMP) ## the stack of docker/ in containers, tried out: two nights, one with a worker killed; ARGS=--check
	@$(IN_VENV) $(BIN)/python -m dev.stack --docker $(ARGS)

check: lint ## lint, types and the tests that need no server, Java or Airflow: one minute, before every commit
	@$(IN_VENV) $(BIN)/python -m pytest -q -n 2 -p tests.inner_loop $(ARGS)

test: $(STAMP) ## every promise, door and real part once: S3 server, Spark, Airflow; 8 to 10 minutes; ARGS="-k name" picks
	@home="$$($(BIN)/python -m dev.java)" && \
	  $(IN_VENV) JAVA_HOME="$$home" $(BIN)/python -m pytest -n 3 --dist loadgroup $(ARGS)

test-all: $(STAMP) ## every test: all stops and schedules, models, Hadoop, containers; an hour and 6 GB of disk more
	@$(MAKE) test ARGS="-m '' $(ARGS)"

model: $(STAMP) ## search the protocol's models with spin; ARGS=--large takes minutes each, a name picks one
	@$(IN_VENV) $(BIN)/python -m tests.model.checker $(ARGS)

bench: $(STAMP) ## measure, in a few minutes; each of benchmarks/ alone, without --quick, takes its time
	@for one in commit_rate scale requests write; do $(IN_VENV) $(BIN)/python benchmarks/$$one.py --quick || exit 1; done

lint: $(STAMP) ## check style, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(STAMP) ## build the documentation into site/; a warning is an error
	@$(IN_VENV) NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet && echo "open site/index.html, or run $(BIN)/python -m mkdocs serve"

format: $(STAMP) ## put the code into its format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

hashes: $(STAMP) ## give every version in constraints.txt the hashes of its files; after a change of one
	@$(BIN)/uv pip compile --quiet --universal --no-deps --generate-hashes --no-header --no-annotate \
	  constraints.txt --output-file constraints.txt

dist: $(STAMP) ## build the wheel and the source distribution into dist/, and check them
	@rm -rf dist
	@rm -f airflow_s3commit/spark/jvm/*.jar
	@cp "$$($(IN_VENV) $(BIN)/python -c 'from airflow_s3commit.spark import pending_jar as jar; print(jar())')" \
	  airflow_s3commit/spark/jvm/
	@$(IN_VENV) $(BIN)/python -m build --installer uv .
	@$(BIN)/python -m twine check --strict dist/*

clean: ## remove what the other targets made
	rm -rf $(VENV) .demo .stack build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt Makefile
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed, and python3 is not: install one, or name it with make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is not Python 3.11 or newer" >&2; exit 1; }
	@echo "Setting up $(VENV) with $$("$(PYTHON)" --version) (first time: a few minutes, about 2 GB)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV) || \
	  { rm -rf $(VENV); echo "This Python cannot make virtual environments: on Debian and Ubuntu, install the package python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv pip install --python $(BIN)/python --constraint constraints.txt --editable '.[demo,stack]' --group dev
	@! $(BIN)/uv pip show --quiet --python $(BIN)/python pyspark-client 2>/dev/null || \
	  { echo "pyspark-client is installed in $(VENV); it overwrites files of pyspark: make clean, then again" >&2; exit 1; }
	@touch $@
