# Two commands do everything on a fresh machine: `make demo` runs the main job, `make test` runs the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Where `make demo` keeps its nights.
NIGHTS ?= runs/nights
# Harbor needs Python 3.12 or newer.
HARBOR_PYTHON ?= python3.12
HARBOR_VENV ?= .venv-harbor
HARBOR := harbor==0.26.0

.PHONY: demo test test-all lint browser without-engine docs mutants house bench bench-harbor pictures soak setup clean

# Wheels are enough; the stamp makes a second call cheap.
$(STAMP): pyproject.toml
	@echo "setup: virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: Python 3.11 or newer is needed; set PYTHON=" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		echo "setup: installing python3-venv" && apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; } || \
		{ echo "setup: $(PYTHON) cannot make virtual environments; install python3-venv" >&2; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "setup: installing tbench and its dependencies"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# Bytecode is made here: where Python is told to write none, each command would compile all that it imports.
setup: $(STAMP)
	@$(BIN)/python -m compileall -q tbench harness reports
	@$(BIN)/tbench setup

# Some 500 MB that only runs over a Ray cluster need: their tests are skipped without it.
$(VENV)/.ray: $(STAMP)
	@echo "setup: installing ray"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,ray]' && touch $@ || \
		echo "setup: ray cannot be installed, so nothing of it is tried" >&2

# A run of 24 trials; then ten nights, of which the last ones are an alarm (exit code 5), and the pages about them. Nights
# that are there already are not played again.
demo: setup
	@$(BIN)/tbench demo
	@$(BIN)/tbench nightly --demo $(NIGHTS); test $$? -eq 5 || { echo "demo: the nights did not end with their alarm" >&2; exit 1; }

lint: $(STAMP)
	@command -v shellcheck >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		echo "lint: installing shellcheck" && apt-get update -qq && apt-get install -y -qq shellcheck >/dev/null; } || \
		echo "lint: no shellcheck, so the shell scripts are not checked" >&2
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# What shows the pages to the tests: the browser of the distribution, not one that playwright would download.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		echo "browser: installing chromium" && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
		echo "browser: no chromium, so no page is tried in a browser" >&2

# What starts containers without an engine: most tests that need some container take theirs there, at half the cost.
without-engine:
	@{ command -v skopeo && command -v umoci && command -v buildah && command -v slirp4netns; } >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		echo "without-engine: installing skopeo, umoci, buildah and slirp4netns" && apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends skopeo umoci buildah slirp4netns >/dev/null; } || \
		echo "without-engine: no skopeo, umoci, buildah and slirp4netns, so all containers of the tests are Docker's" >&2

# If setup has to start the engine, its data are in memory where there is plenty: containers live half as long there.
test test-all: export TBENCH_DOCKERD_ROOT ?= $(shell test "$$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -gt 16000000 2>/dev/null && echo /dev/shm/tbench-docker)

# Four workers for two cores: two begin with what starts containers, one with what types into them, which mostly wait; one
# begins with the rest, and each goes on with what is left (tests/conftest.py).
# What pytest makes of the tests' text is made once, while lint has the other core, and not by each worker.
test: setup browser without-engine
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --collect-only -q -n 0 >/dev/null 2>&1 & \
		$(MAKE) --no-print-directory lint && wait && $(BIN)/python -m pytest -m "not slow" -n 4

test-all: setup lint browser without-engine $(VENV)/.ray
	@$(BIN)/python -m pytest --hypothesis-profile=explore -n 4

# Which changes of the code that verdicts rest on no test notices.
mutants: $(STAMP)
	@$(BIN)/python tests/mutants.py

# How large the house is: files, lines, rooms, floors, arrows, commands, settings.
house: $(STAMP)
	@$(BIN)/python tests/house.py

# The tables of settings in docs/reference/.
docs: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python tests/settings_tables.py

bench: setup $(VENV)/.ray
	@$(BIN)/python tests/bench

# Where an index lacks the newest of what this Harbor asks for, what an earlier one asks for does as well.
$(HARBOR_VENV)/.installed:
	@echo "bench-harbor: $(HARBOR) in $(HARBOR_VENV)"
	@command -v $(HARBOR_PYTHON) >/dev/null || { echo "bench-harbor: no $(HARBOR_PYTHON); set HARBOR_PYTHON=" >&2; exit 2; }
	@test -x $(HARBOR_VENV)/bin/pip || $(HARBOR_PYTHON) -m venv $(HARBOR_VENV)
	@$(HARBOR_VENV)/bin/pip install --quiet --disable-pip-version-check $(HARBOR) 2>/dev/null || { \
		$(HARBOR_VENV)/bin/pip install --quiet --disable-pip-version-check harbor && \
		$(HARBOR_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps $(HARBOR); }
	@touch $@

# tbench and Harbor in turn, with one task, one endpoint and one engine.
bench-harbor: setup $(HARBOR_VENV)/.installed
	@$(BIN)/python tests/beside_harbor --harbor $(HARBOR_VENV)/bin/harbor

# Hundreds of trials while endpoint and containers are harmed: every verdict, and nothing left behind.
soak: setup
	@$(BIN)/python tests/soak

# The pictures in docs/pictures, of a real run; with tmux and chromium.
pictures: setup browser
	@$(BIN)/python tests/pictures.py

# Containers of dead runs, the shared network, the tools volume, the images that tbench built.
clean:
	@$(BIN)/tbench clean --all
