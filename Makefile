# Needs Python (3.11 or newer), pip and make. Each of the two main commands has its own virtual environment:
#   make demo   train ETD on MiniGrid-DoorKey-8x8 until solved, film it, write a report
#   make test   install everything the tests need, and run them
# make docs builds the site in build/site.
# To use another interpreter: PYTHON=python3.12 make demo

PYTHON ?= python3
DEMO := .venv-demo/bin
TEST := .venv-test/bin
DOCS := .venv-docs/bin

.PHONY: demo test lint slow docs clean

demo: .venv-demo/ready
	$(DEMO)/etd train --env MiniGrid-DoorKey-8x8-v0 --steps 300_000 --until 0.9 --out demo --overwrite
	$(DEMO)/etd watch demo
	$(DEMO)/etd report demo
	@echo
	@echo "Learning curve:  demo/report-curves.png"
	@echo "Solved level:    demo/episode.gif"
	@echo "Report page:     demo/report.html"

test: .venv-test/ready
	$(TEST)/python -m pytest -n 2 --dist loadfile

lint: .venv-test/ready
	$(TEST)/ruff check .
	$(TEST)/ruff format --check .
	$(TEST)/mypy

slow: .venv-test/ready
	$(TEST)/python -m pytest -m slow

docs: .venv-docs/ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/mkdocs build --strict
	@echo "The site:        build/site/index.html"

.venv-demo/ready: pyproject.toml
	$(call install,.venv-demo,.)

.venv-test/ready: pyproject.toml
	$(call install,.venv-test,.[test])

.venv-docs/ready: pyproject.toml
	$(call install,.venv-docs,.[docs])

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "etd needs Python 3.11 or newer; this is `$(PYTHON) --version`. Try PYTHON=python3.12 make $@"; exit 1; }
	$(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --upgrade pip
	$(1)/bin/python -m pip install --quiet -e '$(2)'
	@touch $@
endef

clean:
	rm -rf .venv-demo .venv-test .venv-docs .venv-release .cache build demo dist

# For maintainers -------------------------------------------------------------------------------------------------

RELEASE := .venv-release/bin

.PHONY: format wheel release

format: .venv-test/ready
	$(TEST)/ruff check --fix .
	$(TEST)/ruff format .

wheel: .venv-release/ready
	rm -rf dist
	$(RELEASE)/python -m build

# Builds and checks; uploading is left to a person: twine upload dist/*
release: wheel
	$(RELEASE)/twine check --strict dist/*

.venv-release/ready:
	$(PYTHON) -m venv .venv-release
	$(RELEASE)/python -m pip install --quiet --upgrade pip build twine
	@touch $@
