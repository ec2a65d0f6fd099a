# Every target sets up .venv itself when it is missing or stale, so that a
# clone, make and Python are all one needs. PYTHON=python3.12 picks another.
PYTHON ?= $(firstword $(foreach p,python3.11 python3,$(shell $(p) -c 'print("$(p)")' 2>/dev/null)))
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
BIN := .venv/bin
# Named for the Python version, so that another PYTHON is seen as stale.
READY := .venv/.ready-$(VERSION)
METADATA := setup.cfg pyproject.toml tf_sparse_dp/version.py

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

export TF_CPP_MIN_LOG_LEVEL ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
# No machine has the same accelerators; the checks are about the CPU.
export CUDA_VISIBLE_DEVICES ?= -1

# An environment that was moved with its clone runs somebody else's code.
ifneq ($(wildcard $(READY)),)
ifneq ($(shell $(BIN)/python -c 'import sys; print(sys.prefix)' 2>/dev/null),$(CURDIR)/.venv)
$(shell rm -f $(READY))
endif
endif

.PHONY: help demo test examples lint format bench bench-check bench-page bench-overhead bench-mechanisms bench-errors bench-scaling bench-scale bench-accuracy bench-paper bench-agreement bench-peers bench-audit bench-faults lanes agreement tpu-check clean
help:
	@echo "make demo    train a private recommender; ARGS='--epsilon 8' passes options"
	@echo "make test    the tests on Keras 3 and on tf-keras, and the examples in docstrings"
	@echo "make examples   whether the programs in examples/, the notebook and the code in docs/ run"
	@echo "make lint    ruff and mypy"
	@echo "make format  let ruff rewrite what it can"
	@echo "make bench-check   whether README.md and docs/results.md say what was measured; takes seconds"
	@echo "make bench   measure all of it again: hours; each part is make bench-...: benchmarks/README.md has them"
	@echo "make bench-page   make docs/results.md of what was measured"
	@echo "make lanes   a short test on the oldest TensorFlow and the newest dp-accounting"
	@echo "make tpu-check   whether private steps compile for TPUs, without a TPU; downloads 3 GB"
	@echo "make clean   remove what the other targets made"

$(READY): $(METADATA)
	@test -n "$(VERSION)" || { echo "No Python found; say which: make PYTHON=/path/to/python3"; exit 1; }
	@echo "Setting up .venv for Python $(VERSION); the first time takes a few minutes"
	@if test "$$($(BIN)/python -c 'import sys; print(sys.prefix, "%d.%d" % sys.version_info[:2])' 2>/dev/null)" != "$(CURDIR)/.venv $(VERSION)"; then \
	  rm -rf .venv; $(PYTHON) -m venv .venv; fi
	@rm -f .venv/.ready-*
	@$(BIN)/python -m pip install -q -e '.[test,demo,dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py $(ARGS)

# Whatever does not depend on Keras is marked `once` and left out of the second run.
# Tracing is Python and keeps one core busy; a process takes up to 3 GB.
# Stealing work leaves most of a file to one process, which traces it once.
JOBS ?= 2
PARALLEL = -n $(JOBS) --dist worksteal
PROGRAMS := tests/examples
test: $(READY)
	$(BIN)/python -m pytest -q $(PARALLEL) --ignore=$(PROGRAMS) $(ARGS)
	TF_USE_LEGACY_KERAS=1 $(BIN)/python -m pytest -q $(PARALLEL) --ignore=$(PROGRAMS) -m "not once" $(ARGS)
	$(BIN)/python -m pytest -q --doctest-modules --doctest-ignore-import-errors tf_sparse_dp

examples: $(READY)
	$(BIN)/python -m pytest -q $(PARALLEL) $(PROGRAMS) $(ARGS)
	TF_USE_LEGACY_KERAS=1 $(BIN)/python -m pytest -q $(PARALLEL) $(PROGRAMS) -m "not once" $(ARGS)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/ruff format

# What README.md claims rests on these, one record each in benchmarks/results.
# One after another: they measure time. benchmarks/README.md says how long.
BENCHMARKS := peers mechanisms errors scaling agreement paper audit faults accuracy
bench:
	@taken=""; for name in $(BENCHMARKS); do \
	  begin=$$SECONDS; $(MAKE) bench-$$name; \
	  taken+="$$(printf '%6d s  %s' $$((SECONDS - begin)) bench-$$name)"$$'\n'; \
	done; printf '\n%s' "$$taken"
	@$(MAKE) bench-page bench-check

bench-page: $(READY)
	$(BIN)/python -m benchmarks.claims write

bench-check: $(READY)
	$(BIN)/python -m benchmarks.claims check

# The record is kept if everything is measured as usual, without ARGS.
KEEP = $(if $(ARGS),,--json benchmarks/results/$(@:bench-%=%).json)

bench-overhead: $(READY)
	$(BIN)/python -m benchmarks.overhead $(ARGS)

bench-mechanisms: $(READY)
	$(BIN)/python -m benchmarks.mechanisms $(KEEP) $(ARGS)

bench-audit: $(READY)
	$(BIN)/python -m benchmarks.audit $(ARGS)

bench-faults: $(READY)
	$(BIN)/python -m tests.faults.fuzz $(or $(ARGS),--cases 1000 --output benchmarks/results/faults.json)

bench-errors: $(READY)
	$(BIN)/python -m benchmarks.errors $(KEEP) $(ARGS)

bench-scaling: $(READY)
	$(BIN)/python -m benchmarks.scaling $(KEEP) $(ARGS)

bench-scale: $(READY)
	$(BIN)/python -m benchmarks.scale $(ARGS)

bench-accuracy: $(READY)
	$(BIN)/python -m benchmarks.accuracy $(ARGS)

bench-paper: $(READY)
	$(BIN)/python examples/reproduce_paper.py $(KEEP) $(ARGS)
	$(if $(ARGS),,cp paper_rates/report.png docs/paper_rates.png)

# Whatever has no record: make bench-exponential, make bench-row-updates.
SCRIPTS := bias-reduction compressed-sensing denoising exponential output-perturbation row-updates selection selection-share
.PHONY: $(SCRIPTS:%=bench-%)
$(SCRIPTS:%=bench-%): bench-%: $(READY)
	$(BIN)/python benchmarks/$(subst -,_,$*).py $(ARGS)

# Each lane has an environment of its own. The first has the oldest TensorFlow
# and the Keras of its day; the second the newest dp-accounting and numpy.
LANE_tensorflow_2.16 := tensorflow==2.16.* keras<3.4 tf-keras==2.16.* dp-accounting==0.4.3
LANE_dp_accounting_0.6 := tensorflow<2.22 tf-keras<2.22 dp-accounting>=0.6,<0.7
LANES := tensorflow_2.16 dp_accounting_0.6

.lanes/%/.ready: $(METADATA) Makefile
	@echo "Setting up $(@D)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install -q pytest pytest-xdist -e . $(foreach r,$(LANE_$*),'$(r)')
	@touch $@

lanes: $(LANES:%=.lanes/%/.ready) .lanes/jax_privacy/.ready
	for lane in $(LANES); do \
	  echo "lane $$lane"; \
	  .lanes/$$lane/bin/python -m pytest -q -n $(JOBS) -m lane; \
	  TF_USE_LEGACY_KERAS=1 .lanes/$$lane/bin/python -m pytest -q -n $(JOBS) -m "lane and not once"; \
	done
	.lanes/dp_accounting_0.6/bin/python -m benchmarks.agreement ours --quick | .lanes/jax_privacy/bin/python -m benchmarks.agreement jax_privacy --quick

# jax_privacy has an environment of its own; our answers come from another.
.lanes/jax_privacy/.ready: Makefile
	@echo "Setting up $(@D)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install -q 'jax-privacy==2.0.*'
	@touch $@

bench-agreement: $(READY) .lanes/jax_privacy/.ready
	$(BIN)/python -m benchmarks.agreement ours | .lanes/jax_privacy/bin/python -m benchmarks.agreement jax_privacy $(KEEP)
agreement: bench-agreement

# Peers whose steps are measured beside ours.
.lanes/tf_privacy/.ready: Makefile
	@echo "Setting up $(@D)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install -q tensorflow==2.15.1 tensorflow-privacy==0.9.0
	@touch $@

.lanes/opacus/.ready: Makefile
	@echo "Setting up $(@D)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install -q torch==2.13.0 'opacus==1.6.*'
	@touch $@

PEERS := tf_privacy opacus jax_privacy
bench-peers: $(READY) $(PEERS:%=.lanes/%/.ready)
	$(BIN)/python -m benchmarks.peers $(ARGS)

# Lowered for TPUs by one environment, compiled for them by another, and run on
# the CPU for comparison. The libtpu that TensorFlow asks for is not its own: the
# newest ends the process when it is loaded. Nothing here needs it.
.lanes/tensorflow_tpu/.ready: Makefile
	@echo "Setting up $(@D)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install -q tensorflow-tpu==2.20.0 'dp-accounting>=0.4.3,<0.7' 'scipy>=1.9'
	@$(@D)/bin/python -m pip uninstall -q -y libtpu
	@touch $@

.lanes/jax_tpu/.ready: Makefile
	@echo "Setting up $(@D)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install -q 'jax[tpu]==0.10.2'
	@touch $@

# Compilers take one core each; the programs are run on the CPU beside them.
# With ARGS=--all also what takes longer: docs/tpu.md has what came out.
TPU_PROGRAMS := .lanes/tpu_programs
tpu-check: $(READY) .lanes/tensorflow_tpu/.ready .lanes/jax_tpu/.ready
	rm -rf $(TPU_PROGRAMS)
	.lanes/tensorflow_tpu/bin/python -m tools.tpu_check.lower $(TPU_PROGRAMS) $(ARGS)
	@.lanes/jax_tpu/bin/python -m tools.tpu_check.compile $(TPU_PROGRAMS) & compiling=$$!; \
	failed=0; \
	$(BIN)/python -m tools.tpu_check.ordinary $(TPU_PROGRAMS) || failed=1; \
	.lanes/jax_tpu/bin/python -m tools.tpu_check.execute $(TPU_PROGRAMS) || failed=1; \
	wait $$compiling || failed=1; \
	exit $$failed

clean:
	rm -rf .venv .lanes build demo *.egg-info .pytest_cache .mypy_cache .ruff_cache
