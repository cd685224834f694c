# SPDX-License-Identifier: Apache-2.0
# The front door. CMake and Ninja do the work (CMakePresets.json); `make help` lists what there is.

PREFIX ?= /usr/local
DESTDIR ?=
DEMO_MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
DEMO_TEXT := docs/examples/war-and-peace.txt

.PHONY: FORCE all help deps demo serve models test check format attack soak bench cuda install \
        uninstall dist deb wheel site clean debug asan tsan

all: build/build.ninja ## build/kvasir and the libraries, release
	@cmake --build build

build/build.ninja: CMakePresets.json
	@command -v cmake ninja pkg-config >/dev/null || \
	    { echo 'cmake, ninja or pkg-config is missing: run `make deps` first' >&2; exit 1; }
	@cmake --preset release >/dev/null

help: ## this list
	@sed -nE 's/^([a-z]+):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

deps: ## Debian packages for building, testing and the demo, where missing
	@tools/deps.sh all

models: ## fetch all three models (843 MB) into models/
	@tools/fetch-model.sh all

# For this machine only, and a model: less to compile.
build-native/kvasir: FORCE
	@tools/deps.sh demo
	@cmake --preset native >/dev/null && cmake --build build-native --target kvasir
	@tools/fetch-model.sh

demo: build-native/kvasir ## from nothing to two answers, over a 16-bit and a quantized cache
	@build-native/kvasir demo -m $(DEMO_MODEL) -f $(DEMO_TEXT) -p 'Summarize this conversation.' \
	    --temp 0 --repetition-penalty 1.1

serve: build-native/kvasir ## the same to a server on http://127.0.0.1:8080; Ctrl-C ends it
	@build-native/kvasir serve -m $(DEMO_MODEL) --kv-bits 8,4

test: ## everything CI runs (.ci/run), below 35 minutes on 2 cores
	@tools/test.sh

check: ## for daily work, 3 minutes: build, rules on the sources, unit tests
	@tools/test.sh check

format: ## clang-format over the whole tree
	@tools/check.sh --files-c | xargs clang-format -i

attack: ## a minute of attacks on the program (tools/attack.sh); needs `make check` first
	@tools/attack.sh

soak: ## long tests; the log goes to bench/results/
	@tools/soak.sh

bench: ## speed beside other programs; results go to bench/results/
	@tools/bench.sh
	@tools/bench-engine.sh
	@tools/bench-server.sh

cuda: ## build-cuda/kvasir, which can use a GPU, and build-cuda/opcheck; where nvcc is
	@PATH="$$PATH:/usr/local/cuda/bin"; command -v nvcc >/dev/null || \
	    { echo 'cuda: nvcc is missing: the CUDA backend needs the CUDA toolkit' >&2; exit 1; }; \
	stamp=$$(tools/opcheck.sh stamp) && cmake --preset cuda >/dev/null && \
	    cmake --build build-cuda --target kvasir opcheck && echo "$$stamp" >build-cuda/opcheck.stamp

install: all ## into PREFIX (default /usr/local), below DESTDIR
	@DESTDIR='$(DESTDIR)' cmake --install build --prefix '$(PREFIX)'

uninstall: all ## removes what `make install` with the same PREFIX and DESTDIR puts there
	@DESTDIR='$(DESTDIR)' tools/uninstall.sh build '$(PREFIX)'

dist: all ## build-dist/kvasir-VERSION-ARCHITECTURE-linux.tar.gz: runs anywhere with a C library
	@tools/dist.sh

deb: ## build-deb/*.deb: Debian packages
	@tools/deb.sh

wheel: ## build-wheel/dist/*.whl: the Python package, with the program
	@tools/wheel.sh

site: ## build/site/: the documentation as a site
	@tools/site.sh

debug: ## build-debug/: for a debugger
	@cmake --preset debug && cmake --build build-debug

asan: ## build-asan/, and the tests that are fast enough there
	@tools/test.sh asan

tsan: ## build-tsan/, and the tests that use threads
	@tools/test.sh tsan

clean: ## removes all build folders; models stay
	rm -rf build build-*
