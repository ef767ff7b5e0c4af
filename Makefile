# The front door: every target builds what it needs through the presets of CMakePresets.json.

# Installs missing packages (Debian, Ubuntu). On another system: make test SETUP=true
SETUP ?= tools/setup
JOBS ?= $(shell nproc)

# Objects come from ccache where there is one; the setting lets it look into precompiled headers.
ifneq ($(shell command -v ccache 2>/dev/null),)
export CMAKE_C_COMPILER_LAUNCHER ?= ccache
export CMAKE_CXX_COMPILER_LAUNCHER ?= ccache
export CCACHE_SLOPPINESS ?= pch_defines,time_macros
endif

# $(call build,preset,targets)
build = cmake --preset $(1) --log-level=WARNING >/dev/null && \
        cmake --build --preset $(1) -j $(JOBS) $(if $(2),--target $(2)) -- --quiet
# $(call check,preset): ctest ends with the number of tests and failures.
check = ctest --preset $(1) -j $(JOBS) --no-tests=error --progress

.PHONY: help demo bundles test test-serving cuda-gate report-check bench bench-report lint format asan tsan clang neon fuzz mutation install-check clean

help: ## What there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

demo: ## A small trained model, plain, with chains and with trees; recorded rounds against the oracle
	@$(SETUP)
	@$(call build,release,kdtree_cli)
	@tools/demo

bundles: ## Record the verify steps of bundles/ again
	@$(SETUP)
	@$(call build,release,kdtree_cli)
	@tools/make_bundles

test: ## Build and run the tests
	@$(SETUP)
	@$(call build,dev)
	@$(call check,dev)

test-serving: ## The tests against transformers and SGLang (installs torch: 5 GB)
	@$(SETUP) serving
	@$(call build,dev,model_logits)
	@tools/serving_venv
	@build/serving-venv/bin/python -m pytest -q -p no:cacheprovider tests/serving

cuda-gate: ## Compile the CUDA kernels for every target and check what they take; no GPU
	@$(SETUP) cuda
	@tools/cuda_gate

report-check: ## Open pages of generate --report in headless Chromium; screenshots go to build/report/
	@$(SETUP) report
	@$(call build,dev,kdtree_cli report_sample)
	@tools/check_report
	@tests/report/check_report_selftest build/report/sample.html

bench: ## Run the benchmarks; results go to bench/results/
	@$(SETUP) bench
	@$(call build,release)
	@tools/bench_venv
	@bench/run

bench-report: ## Rewrite the tables of README.md and docs/ from bench/results/
	@tools/bench_report

lint: ## clang-format, clang-tidy, cppcheck, shellcheck and the project's own checks
	@$(SETUP) lint
	@tools/lint

format: ## Format the C, C++ and CUDA sources
	@$(SETUP) lint
	@git ls-files -z '*.h' '*.c' '*.cc' '*.cu' '*.cuh' | xargs -0 clang-format -i

asan: ## The tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(SETUP)
	@$(call build,asan)
	@$(call check,asan)

tsan: ## The tests of core, trees, attention, model, engine and C ABI under ThreadSanitizer
	@$(SETUP)
	@$(call build,tsan,core_test tree_test attention_test model_test engine_test capi_test)
	@$(call check,tsan)

clang: ## Build with clang and run the tests
	@$(SETUP) fuzz
	@$(call build,clang)
	@$(call check,clang)

install-check: ## Install the release build, move it, and use it from C
	@$(SETUP)
	@$(call build,release,kdtree_shared kdtree_cli)
	@tests/install/check build/release
	@tests/abi/symbols build/release/libkdtree.so

neon: ## Cross-compile for arm64 and run the tests of trees and attention under qemu-user
	@$(SETUP) neon
	@tools/arm64_sysroot
	@$(call build,neon,tree_test attention_test)
	@$(call check,neon)

fuzz: ## Fuzz the parsers for a bounded time
	@$(SETUP) fuzz
	@tools/fuzz

mutation: ## Change operators one at a time; a test must notice each
	@$(SETUP)
	@tools/mutate --count 60

clean: ## Remove build/
	rm -rf build
