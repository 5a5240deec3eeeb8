.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := bench,dev,docs,lint,tensorboard,tracker,trees
KILLS ?= 40
SEED ?= 0
DEMO ?= laptop
PAGE ?= results/laptop/report.html
# Pythons of `make versions`, as versions or paths, and which of them it takes.
OLDEST ?= 3.11
NEWEST ?= 3.13
ENDS ?= oldest newest
DURATIONS := --durations=0 --durations-min=1

# Each process of the tests would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo test test-here test-testbed unit versions lint docs format bench house messages statistics lab lab-steps recording gpu-proof screen screenshots chaos faults fuzz soak release clean

help: ## Show what can be made
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

venv: .venv/complete ## Make .venv with all that measuring, testing and reporting need

# $(call install,EXTRAS): uv installs in seconds; where it cannot be had, pip does in minutes. Without
# a GPU torch for CPUs is enough, a thirtieth of the download; its index is not in reach everywhere.
define install
@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
@[ -x $(BIN)/uv ] || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv || true
@if [ -x $(BIN)/uv ]; then \
	install() { $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python \
		-c constraints.txt -e '.[$(1)]' "$$@"; }; \
	install --torch-backend=auto 2>/dev/null || { \
		echo "Installing the torch of the usual index: about 6 GB with CUDA's libraries."; \
		install; }; \
else \
	echo "Installing without uv: about 6 GB with torch's CUDA libraries, in some minutes."; \
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(1)]'; \
fi
@touch $@
endef

.venv/bench: pyproject.toml constraints.txt
	$(call install,bench)

.venv/complete: .venv/bench
	$(call install,$(EXTRAS))

# What was measured becomes a page also where a launch or the check failed. What `run` prints of it
# the report prints, too.
demo: .venv/bench ## Measure world sizes 1 and 2 on this machine and make the report
	@worst=0; for step in "run $(DEMO)" "run verify" "report results/laptop"; do \
		echo "$(BIN)/lockstep $$step"; \
		code=0; \
		case $$step in "run $(DEMO)") exec 3>/dev/null ;; *) exec 3>&1 ;; esac; \
		$(BIN)/lockstep $$step >&3 || code=$$?; \
		[ $$code -le 1 ] || exit $$code; \
		[ $$code = 0 ] || worst=$$code; \
	done; exit $$worst

# Two lanes of about equal length: the testbed, which waits half of its time; and all else, in two
# processes, which wait for ranks and browsers.
test: venv ## Run what a change must pass, tests that start ranks and browsers included
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target test-testbed test-here

test-here: venv
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder \
		-m "not (slurm or chaos)" $(DURATIONS)

# CI, where a missing image is a failure, makes it while the tests beside begin.
test-testbed: venv
	@[ -z "$$CI" ] || tests/testbed/image
	$(BIN)/python -m pytest -m "slurm and not chaos" $(DURATIONS)

unit: venv ## Run the quick tests only, in under a minute
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile -m "not (slow or browser or slurm)"

# The bounds are those of pyproject.toml: uv takes the lowest, or the newest, of each.
versions: .venv/bench ## Run the quick tests with the oldest and the newest Python and torch that we allow
	@worst=0; for end in $(ENDS); do \
		case $$end in \
			oldest) set -- oldest $(OLDEST) lowest-direct ;; \
			newest) set -- newest $(NEWEST) highest ;; \
			*) echo "ENDS takes oldest and newest, not $$end"; exit 1 ;; \
		esac; \
		echo "$$1: Python $$2"; \
		$(BIN)/uv venv --quiet --clear --python $$2 .venv-$$1 && \
		$(BIN)/uv pip install --quiet --python .venv-$$1/bin/python --resolution $$3 \
			-e '.[$(EXTRAS)]' && \
		.venv-$$1/bin/python -m pytest -q --numprocesses=2 --dist=loadfile \
			-m "not (slow or browser or slurm)" || worst=1; \
	done; exit $$worst

lint: venv ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: venv ## Build the documents into build/site; a warning or a dead link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: venv ## Bring all files into style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

define figures
worst=0; for one in $(1); do \
	PYTHONUNBUFFERED=1 $(BIN)/python tests/validation/figures_$$one.py $(2) || worst=1; \
done; exit $$worst
endef

bench: venv ## Print what the suite itself costs, beside the goals; never fails on a figure
	$(BIN)/python tests/validation/figures.py

messages: ## Print every sentence that the program can print; OPTIONS="--sample 40 --seed 1" draws some
	@$(PYTHON) tests/validation/figures_messages.py $(OPTIONS)

house: ## Print how large the house is, beside what it should be
	@$(PYTHON) tests/validation/figures_house.py

# Each script prints what it has as it goes; one that fails does not take the others along.
statistics: venv ## Print how often intervals, verdicts, findings and predictions hold where the truth is known
	@$(call figures,statistics compare looks models check)

lab: venv ## Put causes of known size into real steps and find them again; root, an hour, a quiet machine
	@$(call figures,lab $(if $(OPTIONS),,kinds steps),$(OPTIONS))

lab-steps: venv ## The part of it without root: causes that come unevenly, and steps of many kinds
	@$(call figures,kinds steps)

recording: venv ## Record the campaign of `lockstep demo` over links of a known rate; root, a quiet machine
	$(BIN)/python tests/validation/record_demo.py $(OPTIONS)

gpu-proof: .venv/bench ## Show on one GPU what has only run on CPUs; parts of minutes, taken up where they were cut
	$(BIN)/python tests/validation/gpu_proof.py $(OPTIONS)

# A window of Chromium is never as narrow as a phone, so the page is shown in a frame.
screenshots: ## Picture a page (PAGE) at 1280 and 390 px, light, dark and printed, in results/screenshots
	@set -e; ls $(PAGE); mkdir -p results/screenshots; cd results/screenshots; \
	look() { chromium --headless --no-sandbox --disable-gpu --hide-scrollbars \
		--allow-file-access-from-files "$$@" 2>/dev/null; }; \
	for width in 1280 390; do \
		echo "<style>body { margin: 0 } iframe { width: $${width}px; height: 5000px; border: 0 }</style>" \
			"<iframe src=\"file://$(abspath $(PAGE))\"></iframe>" >frame.html; \
		for scheme in light:1 dark:0; do \
			look --blink-settings=preferredColorScheme=$${scheme#*:} --window-size=$$width,5000 \
				--screenshot=$$width-$${scheme%:*}.png "file://$$PWD/frame.html"; \
		done; \
	done; rm frame.html; \
	look --no-pdf-header-footer --print-to-pdf=printed.pdf "file://$(abspath $(PAGE))"; ls

screen: venv ## Print how often `lockstep screen` names a node or link that is really slowed, in half an hour
	$(BIN)/python tests/validation/figures_screen.py

# Two lanes, and all of it runs whatever fails. What needs the testbed waits for Slurm half of its
# time.
chaos: venv ## Run what takes an hour: tests of faults and bad input, and random kills
	@mkdir -p results/chaos; \
	$(BIN)/python -m pytest -m "chaos and slurm" $(DURATIONS) >results/chaos/slurm.txt 2>&1 & slurm=$$!; \
	$(BIN)/python -m pytest -m "chaos and not slurm" $(DURATIONS); tests=$$?; \
	$(MAKE) soak; soak=$$?; \
	wait $$slurm; slurm=$$?; cat results/chaos/slurm.txt; exit $$((tests || soak || slurm))

faults: venv ## Put faults into real measurements, on this machine and on the testbed
	$(BIN)/python -m pytest tests/chaos/test_faults_ranks.py tests/chaos/test_faults_slurm.py

fuzz: venv ## Feed hostile contents to every reader of files, a minute each; --seconds and --only in OPTIONS
	$(BIN)/python tests/chaos/fuzz.py $(OPTIONS)

soak: venv ## Kill processes of campaigns at random; KILLS, SEED
	$(BIN)/python tests/chaos/soak.py --kills $(KILLS) --seed $(SEED)

# The tests say whether CITATION.cff, codemeta.json and CHANGELOG.md name this version.
release: venv ## Build wheel, sdist, and the demo's page and bundle, with checksums, into dist/
	$(BIN)/python -m pytest -q tests/test_repository.py -k "version or tag"
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	$(BIN)/lockstep demo --to dist/demo >dist/demo.txt
	$(BIN)/lockstep bundle dist/demo --to dist/demo.tar.gz --license CC-BY-4.0
	mv dist/demo/report.html dist/demo.html && rm -r dist/demo
	cd dist && sha256sum *.whl *.tar.gz *.html *.txt >SHA256SUMS && cat SHA256SUMS

clean: ## Remove the environment and caches, never results
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
