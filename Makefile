# Every target sets up what it needs in .venv; nothing is installed outside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROTOS := $(wildcard common/*/*.proto agent/*/api/*.proto agent/*/*/api/*.proto tests/runtime/api/*.proto)

.PHONY: help demo page test test-fast test-storm check bench gpu e2e pictures image release version proto format clean

help:
	@echo "make demo       the whole way of a GPU pod on a simulated node, under a minute (V=1: all of it)"
	@echo "make page       the web page of four simulated nodes, until Ctrl-C"
	@echo "make test       all tests, with branch coverage"
	@echo "make test-fast  what needs no process and no whole node"
	@echo "make test-storm all tests beside a load of 20, until they have passed ten times (LOAD=, RUNS=, TESTS=)"
	@echo "make check      format, lint, types, layers"
	@echo "make bench      what is measured, against what (BENCH=name for one)"
	@echo "make gpu        checks on a real GPU; says what it skips where there is none"
	@echo "make e2e        tests against the real cluster of KUBECONFIG"
	@echo "make pictures   those of docs/images, with Chromium"
	@echo "make image      the image, with docker, podman or buildah (IMAGE=, PLATFORMS=, PUSH=1)"
	@echo "make release    fill dist/: wheel, kubectl gpu for krew, one YAML an overlay, chart, checksums"
	@echo "make format     format and fix what ruff can"
	@echo "make proto      generate the messages of .proto files again"

CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "gpu-turnstile needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }

$(STAMP): pyproject.toml
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,check]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m simulator demo $(if $(V),--verbose)

page: $(STAMP)
	@$(BIN)/python -m simulator page

# Compiled once, not by each worker and each process that a test starts.
test test-fast test-storm: export PYTHONDONTWRITEBYTECODE :=

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses=auto --dist=worksteal --cov --cov-report=
	$(BIN)/coverage report --fail-under=90

test-fast: $(STAMP)
	$(BIN)/python -m pytest --numprocesses=auto --dist=worksteal -m "not slow"

# Not in CI: it takes hours. It names the first test that did not pass.
test-storm: $(STAMP)
	$(BIN)/python -m tests.storm $(if $(LOAD),--load $(LOAD)) $(if $(RUNS),--runs $(RUNS)) $(TESTS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m bench $(BENCH)

release: $(STAMP)
	$(BIN)/python -m release $(if $(IMAGE),--image $(IMAGE)) \
	  $(if $(PROXY_IMAGE),--proxy-image $(PROXY_IMAGE)) $(if $(URL),--url $(URL))

# Of several names in IMAGE the first is built and the others are further tags. docker needs buildx.
BUILDERS := docker podman buildah
ifneq ($(filter image,$(MAKECMDGOALS)),)
BUILDER := $(shell for each in $(BUILDERS); do $$each version >/dev/null 2>&1 && echo $$each && break; done)
endif
NAMES = $(or $(IMAGE),gpu-turnstile)
TAGS = $(addprefix --tag=,$(NAMES))
COMMIT = $(or $(shell git rev-parse HEAD 2>/dev/null),unknown)
LABELS = --build-arg=VERSION=$(shell $(MAKE) -s version) --build-arg=REVISION=$(COMMIT)
ON = $(if $(PLATFORMS),--platform=$(shell echo $(PLATFORMS) | tr ' ' ,))
DIGEST := build/image.digest

image:
	@test -n "$(BUILDER)" || { echo "no builder of images works here: $(BUILDERS)"; exit 1; }
	@mkdir -p $(dir $(DIGEST))
ifeq ($(BUILDER),docker)
	docker buildx build $(LABELS) $(ON) $(TAGS) $(if $(PUSH),--push --sbom=true --provenance=mode=max \
	  --metadata-file=$(DIGEST).json,$(if $(PLATFORMS),,--load)) .
	$(if $(PUSH),sed -n 's/.*"containerimage.digest": *"\([^"]*\)".*/\1/p' $(DIGEST).json >$(DIGEST))
else
	$(BUILDER) build $(LABELS) $(ON) $(if $(PLATFORMS),--manifest=$(firstword $(NAMES)),$(TAGS)) .
	$(if $(PUSH),for each in $(NAMES); do $(BUILDER) $(if $(PLATFORMS),manifest push --all,push) \
	  --digestfile=$(DIGEST) $(firstword $(NAMES)) docker://$$each || exit 1; done)
endif

version:
	@sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml

gpu: $(STAMP)
	@$(BIN)/python -m bench.gpu

e2e: $(STAMP)
	$(BIN)/python -m pytest -m e2e tests/e2e

pictures: $(STAMP)
	$(BIN)/python -m tests.view.pictures

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. $(PROTOS)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
