# Every command sets up its own environment in .venv first, and only when something has changed.
#
#   ARGS="..."         more arguments for `make train`, such as ARGS="experiment=grpo seed=2"
#   ENGINE=transformers  sample with transformers on machines that vLLM does not serve
#   PYTEST_ARGS="..."  more arguments for pytest, such as PYTEST_ARGS="-k budget -x -n 0"
#   WORKERS=2        processes that share the tests, file by file, the longest ones first
#   PYTHON, TORCH_INDEX_URL, TORCH_BUILD   see .ci/setup

RUN := .venv/bin/python -m

# Who samples rollouts: vllm or transformers. Setup installs it, training and tests use it.
export ENGINE ?= vllm
TRAIN := e3rl.train $(if $(filter-out vllm,$(ENGINE)),engine=$(ENGINE))

WORKERS ?= 2
PYTEST := pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Threads of torch that wait for work must give their core away; see src/e3rl/process/environment.py.
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help setup train test check fast slow lint audit format docs hooks wheel clean distclean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' Makefile

setup: ## create or update .venv (every other command does it by itself)
	@bash .ci/setup

train: setup ## the main job: train, validate, and draw the curves
	$(RUN) $(TRAIN) $(ARGS)

test: setup ## all tests but the slow ones, short training runs included (some twenty minutes on two cores)
	$(RUN) $(PYTEST) -m "not slow" $(PYTEST_ARGS)

check: lint audit fast ## linters, types, known vulnerabilities, the fast tests: before a commit

fast: setup ## the fast tests alone: no whole commands, no training runs, no vLLM (a minute)
	$(RUN) $(PYTEST) -m "not slow and not end_to_end" --ignore=tests/end_to_end --ignore-glob='*/test_vllm_*' $(PYTEST_ARGS)

slow: setup ## the slow tests: whole runs and studies
	$(RUN) $(PYTEST) -m slow $(PYTEST_ARGS) || [ $$? -eq 5 ] # 5: nothing is marked slow

lint: setup ## ruff and mypy
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

audit: setup ## packages of .venv with known vulnerabilities; needs the network, and says where it is not
	bash .ci/audit

format: setup ## let ruff rewrite the layout and what it can repair
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

docs: setup ## build the documentation into build/docs, where every warning is an error
	@$(RUN) mkdocs --version > /dev/null 2>&1 || \
		$(RUN) pip install --disable-pip-version-check --quiet --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

hooks: setup ## run the linters at every git commit from now on
	$(RUN) pre_commit install

wheel: setup ## the release: dist/ gets a source distribution and the wheel that is made from it
	rm -rf dist
	$(RUN) build

clean: ## remove build outputs and caches; runs/ and .venv stay
	rm -rf build dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name .venv -prune -o -name runs -prune -o -name .git -prune -o \
		\( -name __pycache__ -o -name '*.egg-info' -o -name .ipynb_checkpoints \) \
		-type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv as well
	rm -rf .venv
