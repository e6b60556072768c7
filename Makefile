# Needs python3 (3.10 or newer, with venv) and make; everything else is installed into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-fast test-processes test-parts test-device test-hosts lint promises bench docs clean

setup: $(READY)

# torch comes first and pinned: what is installed after it then finds it there and pulls in no other build.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

# The whole story on built-in data: photographs, a script that trains on them badly, what is slow, what helps, and a
# stopwatch around the bare training and the tuned one. At most five minutes on 2 cores.
demo: $(READY)
	$(BIN)/python -m slipstream.testing.demo write demo
	cd demo && $(abspath $(BIN))/slipstream check --seconds 10 train.py
	cd demo && $(abspath $(BIN))/slipstream tune --seconds 10 --budget 200s train.py
	$(BIN)/python -m slipstream.testing.demo stopwatch demo

# Two halves side by side, one for each core. The zoo depends on timing, so it runs alone afterwards.
test: $(READY)
	$(MAKE) --no-print-directory --jobs 3 lint test-processes test-parts
	$(MAKE) --no-print-directory test-device
	$(BIN)/python -m pytest tests/zoo

# What calls a device, on a simulated CUDA that is built with the user's compiler (one minute, once). Without a compiler
# the tests are skipped, with a message.
test-device: $(READY)
	$(BIN)/python -m slipstream.testing.simulated_cuda --skip-without-compiler --machine tests-$$$$ -m pytest tests/device

# Lint, types, import rules and the tests that start no process of their own. Under two minutes.
FAST := $(addprefix tests/,diagnose fit golden recipe report/exports report/json_export report/terminal report/text \
	rewrite testing tuning verify/test_confidence_sequence.py verify/test_numerics.py)

test-fast: $(READY)
	$(MAKE) --no-print-directory --jobs 2 lint test-fast-pytest

test-fast-pytest: $(READY)
	$(BIN)/python -m pytest $(FAST)

PROCESSES := $(addprefix tests/,promises supervise trial observe sandbox launch store machine wire workflows)

# What is alive in a process is what the tests of `memory` count: they get a process of their own.
test-processes: $(READY)
	$(BIN)/python -m pytest tests/memory
	$(BIN)/python -m pytest $(PROCESSES)

test-parts: $(READY)
	$(BIN)/python -m pytest $(foreach folder,$(PROCESSES) tests/memory tests/zoo tests/device,--ignore $(folder))

# The tests as on other machines: an older instruction set, one core, and 64 cores for what runs in the tests' own
# process. About 50 minutes on 2 cores.
test-hosts: $(READY)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(MAKE) --no-print-directory test
	taskset --cpu-list 0 $(MAKE) --no-print-directory test
	SLIPSTREAM_TEST_CORES=64 $(MAKE) --no-print-directory test-parts

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The promises on every script of the zoo; `make test` takes one of each shape.
promises: $(READY)
	SLIPSTREAM_EVERY=1 $(BIN)/python -m pytest tests/promises tests/zoo tests/techniques tests/supervise/test_script_shapes.py

# PEERS: the python of an environment with other loaders (see benchmarks/loaders.py); without it they are left out.
# PUBLIC: a folder of public training scripts (see benchmarks/numerics_errors.py); without it they are left out.
# TUNED: a folder of public training scripts with a run.json each (see benchmarks/public_tunings.py).
# A dash: the page is complete, and the next one follows, even if a threshold is missed. These pages continue with the
# rows that are missing or of an older search.
bench: $(READY)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/history.py
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/batched.py
	$(BIN)/python benchmarks/loaders.py $(if $(PEERS),--peers-python $(PEERS))
	$(BIN)/python benchmarks/decoders.py
	$(BIN)/python benchmarks/decode_cache.py
	$(BIN)/python benchmarks/resizing.py
	$(BIN)/python benchmarks/handover.py
	$(BIN)/python benchmarks/cold_files.py
	$(BIN)/python benchmarks/threaded.py
	$(BIN)/python benchmarks/worker_memory.py
	$(BIN)/python benchmarks/memory_accounting.py
	$(BIN)/python benchmarks/checkpointing.py
	$(BIN)/python benchmarks/fit.py
	$(BIN)/python benchmarks/record_noise.py
	-$(BIN)/python benchmarks/never_fooled.py
	$(BIN)/python benchmarks/starts.py
	$(BIN)/python benchmarks/patched.py
	-$(BIN)/python benchmarks/near_best.py
	-$(BIN)/python benchmarks/kept_promise.py
	-$(BIN)/python benchmarks/noisy.py
	-$(BIN)/python benchmarks/demo_runs.py
	$(BIN)/python benchmarks/numerics_errors.py $(if $(PUBLIC),--public $(PUBLIC))
	$(if $(TUNED),$(BIN)/python benchmarks/public_tunings.py --public $(TUNED))

# Rewrites the parts of docs/ that come from the code, and builds the site into site/. A warning is an error.
docs: $(VENV)/.ready-docs
	$(BIN)/python -m slipstream.report.docs_pages docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/.ready-docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf demo site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist
