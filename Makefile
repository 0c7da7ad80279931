# Needs Python 3.11 or later, git and make. Everything else goes into .venv.
#
#   make run PYTHON=python3.12         another Python
#   make run TORCH_FROM="--index-url https://download.pytorch.org/whl/cpu"
#                                      torch without CUDA, where the default wheel would bring gigabytes of it
#   make test TORCH=2.11.0             another torch than the tested one

PYTHON ?= python3
TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH_FROM ?=
WORKERS ?= 2
PREFIX ?= /opt/vantage

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := bench/.venv
PEERS_READY := $(PEERS)/.ready
LENS := bench/.lens
AUTHORS := bench/.authors
DOCS := tools/.docs
# Downloads take minutes: on a terminal pip shows how far it is; in a log it says only what went wrong.
PIP := -m pip --disable-pip-version-check $(shell test -t 2 || echo --quiet) install

# One thread for each worker: two workers of two threads each would fight for two cores. Each begins with a half of the
# tests in their order, so that what the tests of a file share is made once, and takes from the other when it is done.
# Bytecode is kept, whatever the shell says: these tests start hundreds of processes, and each would compile all of it.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := MAKEFLAGS= OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal
MUTATION := $(wildcard tests/mutation.py tests/mutation/__main__.py)

# The studio's page, which Vite builds into the package.
PAGE := vantage/serve/studio/page/index.html
PAGE_FROM := $(shell find web/src web/public -type f) web/index.html web/vite.config.ts web/tsconfig.json
MODULES := web/node_modules/.ready
NPM := sh web/npm.sh $(VENV)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env types lists web kernels browser cross ray triton lens smollm2 authors run test test-all check format bench bench-compare docs docs-env \
	dist install release clean

help: ## say what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

run: env web ## install what is needed, bring the default model and open the studio
	$(BIN)/vantage studio

test: check web browser ## the checks and every test that is not slow
	$(NPM) --silent test
	VANTAGE_HYPOTHESIS=quick $(PYTEST) -m "not slow"

test-all: check web browser ray cross triton lens authors kernels docs-env ## the checks, every test and the mutation run
	$(NPM) --silent test
	$(PYTEST)
ifneq ($(MUTATION),)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutation
else
	@echo "no mutation run: there is no tests/mutation yet"
endif

check: env ## ruff, basedpyright and import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: env ## let ruff put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: docs-env ## build the site from docs/ into site/, without a network; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "site/index.html"

dist: env web cross kernels ## the wheels, the source archive and the bill of materials, in dist/
	$(BIN)/python tools/dist.py

install: ## the wheel that `make dist` built for this machine, with the server, into an environment of its own in PREFIX
	test -x $(PREFIX)/bin/pip || $(PYTHON) -m venv $(PREFIX)
	$(PREFIX)/bin/python $(PIP) -c constraints.txt --no-deps $(TORCH_FROM) torch
	$(PREFIX)/bin/python $(PIP) -c constraints.txt "$$(ls dist/*manylinux*_$$(uname -m).whl)[serve,hub]"

release: env ## check the tree, run every test, make dist and tag the version; nothing is uploaded
	$(BIN)/python tools/release.py

bench-compare: env ## flag what fell by more than 10 % since the results kept for this kind of machine; KEEP=1 keeps the last ones
	$(BIN)/python -m bench.compare $(if $(KEEP),--keep)

bench: env $(PEERS_READY) lens smollm2 ## measure against the peers: make bench NAME="forward decode" ROUNDS=20 ONLY="16 512"
	$(BIN)/python -m bench $(NAME) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only $(ONLY))

clean: ## remove what make made, the environments included
	rm -rf $(VENV) $(PEERS) $(LENS) $(AUTHORS) $(DOCS) site web/node_modules $(dir $(PAGE)) vantage/kernels/native/built build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find vantage tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

env: $(READY) ## only the environment

types: env ## write the page's types from the models of the studio's API
	$(BIN)/python -m vantage.serve.studio.types

# A file is replaced once it is written: some are read by what writes the next.
lists: env ## write anew what is generated from the code: the lists of parts, kernels, families and public names
	$(BIN)/python -m vantage.parts > $(VENV)/list && cp $(VENV)/list docs/parts.md
	$(BIN)/python -m vantage.families.table > $(VENV)/list && cp $(VENV)/list docs/families.md
	$(BIN)/python tools/public_types.py > $(VENV)/list && cp $(VENV)/list vantage/__init__.pyi
	$(BIN)/python tools/reference.py > $(VENV)/list && cp $(VENV)/list docs/reference.md
	$(BIN)/python -m tools.kernel_table
	$(BIN)/python -m tests.conformance.test_variants

web: $(PAGE) ## build the studio's page, where its sources have changed

kernels: env ## build the native CPU kernels ahead, for the wheel: Linux on x86-64 and, with a cross compiler, aarch64
	$(BIN)/python -m vantage.kernels.native.built_ahead

browser: ## a Chromium for the browser tests: the machine's, or Debian's where it may be installed
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; \
	} || echo "There is no Chromium here and none can be installed: the browser tests are skipped."

cross: ## compilers and emulators for the kernels of other processors and of Windows: Debian's, where they may be installed
	@command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null && test -d /usr/include/simde && \
		command -v x86_64-w64-mingw32-g++-posix >/dev/null && command -v wine >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
			g++-aarch64-linux-gnu qemu-user libsimde-dev g++-mingw-w64-x86-64 wine wine64 >/dev/null; \
	} || echo "No cross compiler here and none can be installed: the tests of other processors are skipped."

ray: env ## Ray, for the tests on more than one node
	@$(BIN)/python -c 'import ray.serve' 2>/dev/null || \
		$(BIN)/python $(PIP) -c constraints.txt --no-build-isolation -e '.[ray]' || \
		echo "Ray cannot be installed here: its tests are skipped."

triton: env ## Triton, whose interpreter runs the GPU kernels in the tests; torch for CUDA brings its own
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python $(PIP) triton==3.6.0 || \
		echo "Triton cannot be installed here: the tests of the fused kernel are skipped."

lens: ## TransformerLens in an environment of its own, which the tests and the bench of interventions compare with
	@$(LENS)/bin/python -c 'import transformer_lens' 2>/dev/null || { \
		echo "installing TransformerLens into $(LENS)" && $(PYTHON) -m venv $(LENS) && \
		$(LENS)/bin/python $(PIP) $(TORCH_FROM) $$(grep '^torch==' bench/transformer_lens.txt) && \
		$(LENS)/bin/python $(PIP) -r bench/transformer_lens.txt; \
	} || echo "TransformerLens cannot be installed here: its tests are skipped."

smollm2: env ## the model that most benches run
	@$(BIN)/vantage pull smollm2 >/dev/null || echo "SmolLM2 cannot be pulled here: its benches fail."

authors: ## the authors' own code of parts, in an environment of its own, which the tests compare with
	@$(AUTHORS)/bin/python -c 'import entmax, kvpress, fla' 2>/dev/null || { \
		echo "installing the authors' code into $(AUTHORS)" && $(PYTHON) -m venv $(AUTHORS) && \
		$(AUTHORS)/bin/python $(PIP) $(TORCH_FROM) $$(grep '^torch==' tests/oracles/authors.txt) && \
		$(AUTHORS)/bin/python $(PIP) -r tests/oracles/authors.txt; \
	} || echo "The authors' code cannot be installed here: its tests are skipped."

docs-env: ## what builds the site, in an environment of its own
	@$(DOCS)/bin/python -c 'import material' 2>/dev/null || { \
		echo "installing mkdocs-material into $(DOCS)" && $(PYTHON) -m venv $(DOCS) && $(DOCS)/bin/python $(PIP) -r tools/docs_requirements.txt; \
	} || echo "mkdocs-material cannot be installed here: the test of the site is skipped."

# torch comes first and by itself, so that the pinned version is the one that is found and nothing pulls another. What it
# needs comes with the rest: an index of torch alone (TORCH_FROM) has other versions of that than the pinned ones.
# The build tools come next, so that they are pinned as well: pip would fetch its own into a separate place.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Vantage needs Python 3.11 or later: make PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python $(PIP) -c $(VENV)/constraints.txt --no-deps $(TORCH_FROM) torch
	$(BIN)/python $(PIP) -c $(VENV)/constraints.txt hatchling editables
	$(BIN)/python $(PIP) -c $(VENV)/constraints.txt --no-build-isolation -e '.[test,dev]'
	touch $@

# llama.cpp for AMX, compiled by GCC before 14, reads a configuration of its tiles that was never written, and crashes.
OLD_GCC_FOR_AMX = $(shell grep -qsw amx_int8 /proc/cpuinfo && test "$$(gcc -dumpversion | cut -d. -f1)" -lt 14 && echo yes)
CLANG = $(lastword $(sort $(notdir $(wildcard /usr/bin/clang /usr/bin/clang-[12][0-9]))))
$(PEERS_READY): bench/requirements.txt
	@test -z "$(OLD_GCC_FOR_AMX)" || test -n "$(CLANG)" || \
		{ echo "llama.cpp crashes on a processor with AMX if GCC before 14 compiles it: install clang 16 or later"; exit 1; }
	test -x $(PEERS)/bin/pip || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(PIP) $(TORCH_FROM) $$(grep '^torch==' bench/requirements.txt)
	$(if $(OLD_GCC_FOR_AMX),CC=$(CLANG) CXX=$(subst clang,clang++,$(CLANG))) $(PEERS)/bin/python $(PIP) -r bench/requirements.txt
	touch $@

$(MODULES): web/package.json web/package-lock.json | $(READY)
	$(NPM) ci --no-audit --no-fund --loglevel=error
	touch $@

$(PAGE): $(MODULES) $(PAGE_FROM)
	$(NPM) --silent run build
	touch $@
