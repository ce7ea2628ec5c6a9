# Everything a fresh Debian or Ubuntu with Rust needs; `cargo x` has the single steps.

# rustup puts cargo where only a login shell looks.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
BUILT := $(or $(CARGO_TARGET_DIR),target)/release

.DEFAULT_GOAL := help
.PHONY: help prepare prepare-test prepare-wheel demo test wheel bench clean

help:
	@echo 'make demo    build rackpool, show it at work, and write report/index.html'
	@echo 'make test    every check that CI runs'
	@echo 'make wheel   the Python wheel, in target/python/dist'
	@echo 'make bench   the benchmarks'
	@echo 'make clean   remove what was built and reported'

prepare:
	@bash deploy/prepare.sh

prepare-test:
	@bash deploy/prepare.sh test

prepare-wheel:
	@bash deploy/prepare.sh wheel

demo: prepare
	cargo build --locked --release --bins
	$(BUILT)/rackpool demo
	@echo 'The report is in $(CURDIR)/report/index.html'

test: prepare-test
	cargo --locked x ci $(CHECKS)

wheel: prepare-wheel
	cargo --locked x wheel

bench: prepare
	cargo --locked x bench

clean:
	cargo clean
	rm -rf report
