# Everything a checkout needs, from a Python >= 3.11, make and a C++20 compiler; the rest comes into .venv.
PYTHON ?= python3
MODEL ?= smollm2-135m-instruct
TEST_MODELS := smollm2-135m-instruct qwen2.5-coder-0.5b-instruct gemma3-270m
SERVE_ARGS ?=
CLIENTS ?= langchain litellm llm schemathesis

BIN := .venv/bin
NATIVE_FILES = $(shell find native -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt)
CXX_FILES = $(filter %.cpp %.h,$(NATIVE_FILES))

# pip's cmake finds pip's ninja by the path.
export PATH := $(CURDIR)/$(BIN):$(PATH)

# Two pips must not work in one .venv.
.NOTPARALLEL:
.PHONY: help serve test lint bench clients sanitize neon avx512 format models clean
.DELETE_ON_ERROR:

help:
	@echo 'make serve     build, fetch $(MODEL) and serve it (MODEL=..., SERVE_ARGS=...)'
	@echo 'make test      native tests under sanitizers, then pytest, on real models'
	@echo 'make lint      formats, ruff, mypy, import directions'
	@echo 'make bench     prefill and decode rates of $(MODEL)'
	@echo 'make clients   tests with clients that other people write, which it installs (CLIENTS=...)'
	@echo 'make sanitize  native tests only, with AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make neon      native tests for AArch64 under qemu-user, where it and the compiler are installed'
	@echo 'make avx512    native tests of the AVX-512 kernels through SIMDe, where its headers are installed'
	@echo 'make format    rewrite the sources as lint wants them'
	@echo 'make models    fetch the models of the tests'
	@echo 'make clean     remove build results and caches; .venv and models stay'

serve: .venv/.installed
	$(BIN)/ferrite pull $(MODEL)
	$(BIN)/ferrite-server --model $(MODEL) --default-max-tokens 1024 --hard-max-tokens 4096 $(SERVE_ARGS)

# One worker a core, at most four since each may hold a model; files as a whole, for their fixtures start servers.
test: .venv/.installed .venv/.developer sanitize neon models
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

lint: .venv/.installed .venv/.developer
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_imports.py

bench: .venv/.installed
	$(BIN)/ferrite pull $(MODEL)
	$(BIN)/ferrite bench --model $(MODEL)

clients: .venv/.installed .venv/.developer models
	$(BIN)/python -m pip install --quiet $(addprefix --group ,$(CLIENTS))
	$(BIN)/python -m pytest tests/clients

sanitize: .venv/.builder
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DFERRITE_TESTS=ON -DFERRITE_SANITIZE=ON
	$(BIN)/cmake --build build/sanitize
	$(BIN)/ctest --test-dir build/sanitize/native --output-on-failure --no-tests=error

neon: .venv/.builder
	@if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then \
	  $(BIN)/cmake -S . -B build/neon -G Ninja -DFERRITE_TESTS=ON --toolchain native/tests/aarch64.cmake && \
	  $(BIN)/cmake --build build/neon && \
	  $(BIN)/ctest --test-dir build/neon/native --output-on-failure --no-tests=error; \
	else echo 'skipped: NEON tests need g++-aarch64-linux-gnu and qemu-user'; fi

avx512: .venv/.builder
	@if [ -e /usr/include/simde/x86/avx512.h ]; then \
	  $(BIN)/cmake -S . -B build/avx512 -G Ninja -DFERRITE_TESTS=ON -DFERRITE_TEST_AVX512_SIMDE=ON && \
	  $(BIN)/cmake --build build/avx512 && \
	  $(BIN)/ctest --test-dir build/avx512/native --output-on-failure --no-tests=error; \
	else echo 'skipped: AVX-512 emulation needs libsimde-dev'; fi

format: .venv/.developer
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_FILES)

models: .venv/.installed
	$(BIN)/ferrite pull $(TEST_MODELS)

clean:
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# Stamps live in .venv, so that removing it starts over.
.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(PYTHON) is too old: Python 3.11 or newer is needed")'
	@echo 'Setting up .venv; the first time takes some minutes.'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

.venv/.builder: .venv/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --group build
	@touch $@

# No build isolation: its throw-away cmake would make every build a full one.
.venv/.installed: .venv/.builder CMakeLists.txt $(NATIVE_FILES)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable .
	@touch $@

.venv/.developer: .venv/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --group test --group lint
	@touch $@
