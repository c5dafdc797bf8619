# Two commands on a machine with only Python 3.10 or newer: `make demo` and `make test`.
# Both set up .venv on their first run; versions are written in pyproject.toml only.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python

# torch goes in first and by itself: asked for through a range, it brings gigabytes of GPU libraries.
TORCH := $(shell sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)

# Packages to compare with that cannot share our environment.
PEERS := .peers
ORT_TRAINING := $(PEERS)/onnxruntime-training
LANGUAGES := $(PEERS)/languages

# The oldest onnxruntime that pyproject.toml allows, and one between it and the newest, which `make test` runs on.
RUNTIMES := 1.20 1.24
TRAINING_PROOFS := tests/training/test_paths.py tests/training/test_accuracy.py tests/conformance/test_training.py

# Every Python that pyproject.toml speaks of; those that are not on this machine are left out.
PYTHONS := 3.10 3.11 3.12 3.13
PYTHON_PROOFS := tests/autodiff/test_gradient.py tests/optim/test_graph.py tests/training/test_update.py tests/api/test_module.py \
  tests/runtime tests/low_rank/test_forms.py

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 18

.PHONY: demo
demo: $(VENV)/demo ## train an ONNX file from elsewhere on handwritten digits and write it to onward-demo/
	@$(VENV)/bin/onward demo

.PHONY: web-demo
web-demo: $(VENV)/demo ## a page that learns your handwriting in the browser, on http://localhost:4173
	cd web && npm ci --ignore-scripts --no-audit --no-fund
	$(PY) web/demo/export_model.py
	cd web && npm run demo

.PHONY: test
test: lint ## lint, then run every test but the slow ones
	$(PY) -m pytest -m "not slow"

.PHONY: test-all
test-all: lint ## lint, then run every test
	$(PY) -m pytest

.PHONY: test-runtimes
test-runtimes: $(RUNTIMES:%=$(PEERS)/onnxruntime-%/created) ## prove training graphs on older onnxruntimes too; PROOFS="-m slow"
	for version in $(RUNTIMES); do \
	  PYTHONPATH=src $(PEERS)/onnxruntime-$$version/bin/python -m pytest $(TRAINING_PROOFS) -m "not slow" $(PROOFS) || exit 1; \
	done

.PHONY: test-web
test-web: $(VENV)/test ## install onward-web's packages, build it, and train in Node, in wasm and in Chromium
	cd web && npm ci --ignore-scripts --no-audit --no-fund && npm run check && npm run build
	$(PY) -m pytest tests/edge

.PHONY: test-languages
test-languages: $(VENV)/test $(LANGUAGES)/created ## train with an exported folder in Python, Node, C++, Java and C#
	cd web && npm ci --ignore-scripts --no-audit --no-fund
	$(PY) -m pytest tests/edge/test_other_languages.py -rs

.PHONY: test-pythons
test-pythons: $(VENV)/test ## install the wheel for every Python of this machine, and prove it there
	rm -rf $(PEERS)/wheel
	$(PY) -m build --outdir $(PEERS)/wheel .
	@# pyenv hides all versions but one, unless it is told which ones are wanted. With the sources on the path, pip would
	@# take them for the installed package.
	@pythons=$$(pyenv versions --bare 2>/dev/null | grep -E '^3\.1[0-3]\.' | paste -sd:); \
	[ -z "$$pythons" ] || export PYENV_VERSION=$$pythons; \
	unset PYTHONPATH; \
	for version in $(PYTHONS); do \
	  python$$version -c '' 2>/dev/null || { echo "there is no Python $$version here"; continue; }; \
	  venv=$(PEERS)/python-$$version; \
	  python$$version -m venv --clear $$venv && \
	  $$venv/bin/python -m pip install --quiet $(PEERS)/wheel/*.whl && \
	  $$venv/bin/python -W error tests/packaging/first_use.py && \
	  $$venv/bin/python -m pip install --quiet "llvmlite>=0.45,<1" "hypothesis>=6.100,<7" "pytest>=8,<10" "pytest-xdist>=3.6,<4" "safetensors>=0.4,<1" && \
	  $$venv/bin/python -m pytest $(PYTHON_PROOFS) -m "not slow" || exit 1; \
	done

.PHONY: lint
lint: $(VENV)/test ## check style, formatting and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

.PHONY: format
format: $(VENV)/test ## format the code and fix what can be fixed by itself
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

.PHONY: coverage-table
coverage-table: $(VENV)/test ## write docs/coverage.md: which operators have a gradient
	$(PY) -m tests.conformance.table

.PHONY: docs
docs: $(VENV)/test ## build the documentation site into out/site
	$(PY) scripts/draw_graphs.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "open out/site/index.html; to search in it: $(PY) -m http.server -d out/site"

.PHONY: real-models
real-models: $(VENV)/test ## gradients of real models from packages against differences; MODELS="silero --explain"
	$(PY) -m tests.real_models.run $(MODELS)

.PHONY: bench
bench: $(VENV)/test $(ORT_TRAINING)/created ## time training steps against PyTorch and others; BENCH="--quick"
	$(PY) -m benchmarks.run --ort-training $(ORT_TRAINING)/bin/python $(BENCH)
	$(PY) -m benchmarks.estimators $(BENCH)
	$(PY) -m benchmarks.ortmodule $(BENCH)
	$(PY) -m benchmarks.comparison

.PHONY: edge-table
edge-table: $(VENV)/test ## write sizes and times of exported folders into docs/edge.md (after make test-web)
	$(PY) -m benchmarks.edge

.PHONY: comparison
comparison: $(VENV)/test ## write the newest results of `make bench` into README.md and docs/comparison.md
	$(PY) -m benchmarks.comparison

.PHONY: record-golden
record-golden: $(ORT_TRAINING)/created ## record tests/golden again from onnxruntime-training
	$(ORT_TRAINING)/bin/python tests/golden/record.py

.PHONY: clean
clean: ## remove the environment and all that was generated
	rm -rf $(VENV) $(PEERS) .real-models onward-demo out build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The files below are stamps: an environment is made again when pyproject.toml changes.

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "onward needs Python 3.10 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	@echo "setting up $(VENV), once"
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/demo: $(VENV)/created pyproject.toml
	$(PY) -m pip install --quiet --editable ".[cli,report]"
	@touch $@

$(VENV)/test: $(VENV)/created pyproject.toml
	$(PY) -m pip install --quiet "$(TORCH)"
	$(PY) -m pip install --quiet --editable ".[demo,test]"
	@touch $@

# The last release of onnxruntime-training; it has wheels for Python 3.8 to 3.11 and needs older neighbours.
$(ORT_TRAINING)/created:
	@echo "setting up $(ORT_TRAINING), once"
	$(PYTHON) -m venv $(ORT_TRAINING)
	$(ORT_TRAINING)/bin/python -m pip install --quiet "$(TORCH)"
	$(ORT_TRAINING)/bin/python -m pip install --quiet "onnxruntime-training-cpu==1.19.2" "numpy<2" "onnx<1.17"
	@touch $@

$(LANGUAGES)/created: scripts/other_languages.py
	@echo "fetching libraries for C++, Java and C# into $(LANGUAGES), once"
	$(PY) scripts/other_languages.py $(LANGUAGES)
	@touch $@

$(PEERS)/onnxruntime-%/created: pyproject.toml
	@echo "setting up $(@D), once"
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet "onnxruntime==$*.*" "hypothesis>=6.100,<7" "pytest>=8,<10" "pytest-xdist>=3.6,<4" .
	@touch $@
