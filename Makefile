# kvdim. `make help` lists the targets. Everything that is built is under $(BUILD)/.

BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
PYTHON  ?= /usr/bin/python3
OPT     ?= -O2 -g
# Folder with usr/include, usr/lib (or include, lib) of packages unpacked by hand.
EXTRA_PREFIX ?=
# 1: every warning of a compiler is an error. Continuous integration sets CI, a user's build goes on.
WERROR ?= $(if $(CI),1,0)
# 1: print whole commands instead of one short line per file.
V ?= 0

KVD_VERSION := 1.0.0

# make separates names at spaces, and a .pc file its flags. An empty BUILD would be the root folder.
$(foreach v,BUILD PREFIX,$(if $(word 2,$($(v))),$(error $(v) is '$($(v))', expected one folder without spaces)))
$(if $(strip $(BUILD)),,$(error BUILD is empty, expected a folder))
# Programs and the .pc file contain the path.
$(if $(filter-out /%,$(PREFIX)),$(error PREFIX is '$(PREFIX)', expected an absolute path))

comma := ,
# $(call step,CC,FILE) at the start of a recipe line prints "  CC    FILE" in place of the command.
step = $(if $(filter 1,$(V)),,@printf '  %-5s %s\n' '$(1)' '$(2)' && )

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

# ---- what is here ---------------------------------------------------------------------------
NVCC ?= nvcc
CUDA ?= $(if $(shell command -v $(NVCC) 2>/dev/null),1,0)
# Open MPI and MPICH both print their compiler's command line; the headers may be missing all the same.
MPI_FLAGS ?= $(shell mpicc -show 2>/dev/null)
MPI  ?= $(shell echo '#include <mpi.h>' | $(CC) $(filter -I%,$(MPI_FLAGS)) -x c -fsyntax-only - >/dev/null 2>&1 && echo 1 || echo 0)
# The toolkit's folder: nvcc may be a link elsewhere, and the libraries are next to the real one.
CUDA_HOME ?= $(if $(filter 1,$(CUDA)),$(abspath $(dir $(realpath $(shell command -v $(NVCC) 2>/dev/null)))..))

extra_dirs := $(foreach d,$(EXTRA_PREFIX),$(wildcard $(d) $(d)/usr))
# Debian keeps HDF5 and OpenBLAS in folders below these.
extra_in    = $(wildcard $(foreach d,$(extra_dirs),$(addprefix $(d)/,$(1))))
extra_inc  := $(addprefix -I,$(call extra_in,include include/hdf5/serial include/x86_64-linux-gnu/openblas-pthread))
extra_lib  := $(foreach l,$(call extra_in,lib $(addprefix lib/x86_64-linux-gnu,/ /hdf5/serial /openblas-pthread)),-L$(l) -Wl,-rpath,$(abspath $(l)))

# pkg-config where it knows the package; the plain name where a library ships no .pc file.
pc = $(shell pkg-config $(1) $(2) 2>/dev/null)
HDF5_PC := $(firstword $(foreach p,hdf5 hdf5-serial,$(if $(call pc,--exists --print-errors,$(p)),,$(p))))
hdf5_inc  := $(or $(call pc,--cflags,$(HDF5_PC)),$(addprefix -I,$(wildcard /usr/include/hdf5/serial)))
hdf5_lib  := $(or $(call pc,--libs,$(HDF5_PC)),$(addprefix -L,$(wildcard /usr/lib/x86_64-linux-gnu/hdf5/serial)) -lhdf5)
# The high-level library (dimension scales) is next to the other: -lhdf5_hl, or -lhdf5_openmpi_hl on Debian.
hdf5_hl   := $(patsubst %,%_hl,$(filter-out %_hl,$(filter -lhdf5%,$(hdf5_lib))))
blas_inc  := $(call pc,--cflags,openblas)
blas_lib  := $(or $(call pc,--libs,openblas),-lopenblas)

# clang 19 counts `double / N` with an `enum { N = 8 }` among the conversions of -Wconversion. Such a
# constant is an int in C, and its conversion is exact.
no_enum  := $(shell $(CC) -Werror -Wenum-float-conversion -x c -fsyntax-only /dev/null 2>/dev/null && echo -Wno-enum-float-conversion)
WARN     := -Wall -Wextra -Wpedantic -Wshadow -Wconversion $(no_enum) $(if $(filter 1,$(WERROR)),-Werror)
# clang has OpenMP only with libomp-dev; without it everything runs on one thread.
OPENMP   ?= $(shell echo 'int x;' | $(CC) -fopenmp -include omp.h -x c -fsyntax-only - >/dev/null 2>&1 && echo 1 || echo 0)
# CFLAGS, CPPFLAGS and LDFLAGS of the user are added to these.
override CFLAGS := -std=c11 -D_GNU_SOURCE $(OPT) $(if $(filter 1,$(OPENMP)),-fopenmp,-Wno-unknown-pragmas) $(WARN) $(CFLAGS)
override CPPFLAGS := -Isrc -Iinclude -I$(BUILD)/gen $(patsubst -I%,-isystem %,$(extra_inc) $(hdf5_inc) $(blas_inc)) $(CPPFLAGS)
# Compresses faster than zlib, which serves where it is missing.
LIBDEFLATE ?= $(shell echo 'int x;' | $(CC) $(CPPFLAGS) -include libdeflate.h -x c -fsyntax-only - >/dev/null 2>&1 && echo 1 || echo 0)
override CPPFLAGS += $(if $(filter 1,$(LIBDEFLATE)),-DKVD_LIBDEFLATE=1)
LDLIBS   := -Wl,--as-needed $(LDFLAGS) $(extra_lib) $(filter -L%,$(hdf5_lib)) $(hdf5_hl) $(hdf5_lib) $(blas_lib) -llapacke $(blas_lib) -ljansson -lpcre2-8 -lutf8proc -lxxhash -lcsv $(if $(filter 1,$(LIBDEFLATE)),-ldeflate) -lz -ldl -lpthread -lm

# A .cu file is compiled for sm_80 and sm_90a; one named *_sm90.cu uses Hopper's own instructions and is compiled for it alone.
# --Werror turns ptxas's advice (a wgmma that is serialised, C7510 and its kin) into an error.
NVFLAGS  := -std=c++17 -O3 -lineinfo -Isrc -I$(BUILD)/gen -Xcompiler -fPIC,-Wall,-Wextra,-Wno-c++20-compat$(if $(filter 1,$(WERROR)),$(comma)-Werror --Werror all-warnings)
SM90     := -gencode arch=compute_90a,code=sm_90a
SM80     := -gencode arch=compute_80,code=sm_80
ifeq ($(CUDA),1)
override CPPFLAGS += -DKVD_CUDA=1 -isystem $(CUDA_HOME)/include
LDLIBS   += -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lpthread -lstdc++
endif

ifeq ($(MPI),1)
override CPPFLAGS += -DKVD_MPI=1 $(patsubst -I%,-isystem %,$(filter -I%,$(MPI_FLAGS)))
LDLIBS   += $(filter -L% -l% -Wl%,$(MPI_FLAGS))
endif

# ---- what is built --------------------------------------------------------------------------
# A program is src/<folder>/kvdim_<stage>.c; every other .c is library code.
prog_src := $(wildcard src/*/kvdim_*.c)
# Folders named cuda/ are left out without nvcc.
lib_src  := $(filter-out $(prog_src) $(if $(filter 1,$(CUDA)),,$(wildcard src/*/cuda/*.c src/*/*/cuda/*.c)),$(wildcard src/*/*.c src/*/*/*.c src/*/*/*/*.c))
cu_src   := $(if $(filter 1,$(CUDA)),$(wildcard src/*/*.cu src/*/*/*.cu src/*/*/*/*.cu))
prog_of   = $(BUILD)/bin/$(subst _,-,$(basename $(notdir $(1))))
PROGS    := $(foreach s,$(prog_src),$(call prog_of,$(s)))
LIB      := $(BUILD)/libkvdim.a
lib_obj  := $(lib_src:src/%.c=$(BUILD)/%.o) $(cu_src:src/%.cu=$(BUILD)/%.cu.o)

# Test programs are tests/<room>/test_*.c and need cmocka. tests/*/gpu_*.c run kernels, print ok/not ok/skip
# lines themselves, and need only a driver. All are built into $(BUILD)/tests/ under their base names.
test_src  := $(wildcard tests/*/test_*.c) $(if $(filter 1,$(CUDA)),$(wildcard tests/*/gpu_*.c))
test_bin   = $(addprefix $(BUILD)/tests/,$(basename $(notdir $(1))))
TESTS     := $(call test_bin,$(test_src))
tool_src  := $(wildcard tests/tools/tool_*.c) docs/examples/read_spectrum.c
TOOLS     := $(call test_bin,$(tool_src)) $(if $(filter 1,$(CUDA)),$(BUILD)/tests/lose_gpu.so)
# Benchmarks of kernels include a header of CUDA and are left out without nvcc.
bench_src := $(filter-out $(if $(filter 1,$(CUDA)),,$(shell grep -l cuda tests/bench/bench_*.c)),$(wildcard tests/bench/bench_*.c))
BENCHES   := $(call test_bin,$(bench_src))
fuzz_src  := $(wildcard tests/fuzz/fuzz_*.c)
FUZZERS   := $(fuzz_src:tests/fuzz/%.c=$(BUILD)-fuzz/%)

# libkvdim-attention: the attention kernels of include/kvdim/attention.h, for programs of others. The
# shared library exports the functions of that header alone; the archive holds one object with the others
# made local. Objects of C files are compiled again as position-independent code.
ATTN_ABI   := $(shell sed -n 's/^\#define KVDIM_ATTENTION_ABI //p' include/kvdim/attention.h)
attn_src   := $(addprefix src/common/,err.c half.c memory.c threads.c utf8.c) $(wildcard src/kernels/*_ref.c) \
              $(addprefix src/kernels/,layout.c) $(wildcard src/kernels/cpu/*.c src/kernels/library/*.c) \
              $(if $(filter 1,$(CUDA)),$(wildcard src/kernels/library/cuda/*.c))
attn_cu    := $(if $(filter 1,$(CUDA)),$(addprefix src/kernels/cuda/,append.cu decode.cu decode_plan.cu decode_short_sm90.cu prefill_mma.cu prefill_plan.cu prefill_sm90.cu prefill_wide_sm90.cu prefill_window_sm90.cu))
attn_obj   := $(attn_src:src/%.c=$(BUILD)/pic/%.o) $(attn_cu:src/%.cu=$(BUILD)/%.cu.o)
ATTN_SO    := $(BUILD)/lib/libkvdim-attention.so.$(ATTN_ABI)
ATTN_A     := $(BUILD)/lib/libkvdim-attention.a
ATTN_LIBS  := $(if $(filter 1,$(CUDA)),-L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lstdc++) -lpthread -lm

all: $(PROGS) $(ATTN_SO) $(ATTN_A)

$(BUILD)/gen/common/version.h: FORCE
	@mkdir -p $(@D)
	@printf '#define KVD_VERSION "$(KVD_VERSION)"\n#define KVD_GIT_REVISION "%s"\n#define KVD_CFLAGS "%s"\n#define KVD_DATADIR "%s"\n' \
	  "$$({ [ -e .git ] && git describe --always --dirty --abbrev=12 2>/dev/null; } || echo unknown)" "$(CFLAGS)" \
	  "$(PREFIX)/share/kvdim" >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# Objects are rebuilt when the compiler or its flags change.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(CC) $(CPPFLAGS) $(CFLAGS)' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# A header that is missing stops the build with one line, before hundreds of files fail to compile.
$(BUILD)/headers: HEADERS := hdf5.h cblas.h lapacke.h csv.h jansson.h pcre2.h utf8proc.h xxhash.h zlib.h
$(BUILD)/headers-tests: HEADERS := cmocka.h
$(BUILD)/headers $(BUILD)/headers-tests: $(BUILD)/flags
	@$(CC) --version >/dev/null 2>&1 || { echo "the compiler '$(CC)' does not run; set CC=" >&2; exit 1; }
	@missing=; for h in $(HEADERS); do \
	   printf '#if !__has_include(<%s>)\n#error\n#endif\n' $$h | $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1 || missing="$$missing $$h"; \
	 done; [ -z "$$missing" ] || { echo "no header$$missing: scripts/setup.sh lists the packages;" \
	   "'make demo' and 'make check' install them on Debian and Ubuntu" >&2; exit 1; }
	@touch $@

$(BUILD)/%.o: src/%.c $(BUILD)/flags | $(BUILD)/headers $(BUILD)/gen/common/version.h
	@mkdir -p $(@D)
	$(call step,CC,$<)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

# nvcc's flags change seldom; its objects follow their own sources and this stamp.
$(BUILD)/nvflags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(NVCC) $(NVFLAGS)' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/%_sm90.cu.o: src/%_sm90.cu $(BUILD)/nvflags
	@mkdir -p $(@D)
	$(call step,NVCC,$<)$(NVCC) $(NVFLAGS) $(SM90) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(BUILD)/%.cu.o: src/%.cu $(BUILD)/nvflags
	@mkdir -p $(@D)
	$(call step,NVCC,$<)$(NVCC) $(NVFLAGS) $(SM80) $(SM90) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(BUILD)/pic/%.o: src/%.c $(BUILD)/flags | $(BUILD)/headers $(BUILD)/gen/common/version.h
	@mkdir -p $(@D)
	$(call step,CC,$<)$(CC) $(CPPFLAGS) $(CFLAGS) -fPIC -MMD -MP -c $< -o $@

$(ATTN_SO): $(attn_obj)
	@mkdir -p $(@D)
	@echo '{ global: kvdim_*; local: *; };' >$(BUILD)/lib/exports.map
	$(call step,LD,$@)$(CC) $(CFLAGS) -shared -Wl,-soname,$(@F) $(if $(findstring sanitize,$(CFLAGS)),,-Wl$(comma)-z$(comma)defs) -Wl,--version-script=$(BUILD)/lib/exports.map $^ $(LDFLAGS) $(ATTN_LIBS) -o $@
	@ln -sf $(@F) $(@:.$(ATTN_ABI)=)
$(ATTN_A): $(attn_obj)
	@mkdir -p $(@D)
	@rm -f $@
	$(call step,AR,$@)$(LD) -r $^ -o $(@:.a=.o) && objcopy -w --keep-global-symbol='kvdim_*' $(@:.a=.o) && $(AR) rcs $@ $(@:.a=.o)

# The GPU code of methods is one object, so that a program has all of it or none: the vtables of the
# methods point to it by weak symbols, for which a linker takes nothing out of an archive.
gpu_methods := $(filter $(BUILD)/methods/cuda/gpu_method.o $(patsubst src/%.c,$(BUILD)/%.o,$(wildcard src/methods/*/cuda/*.c)),$(lib_obj))
ifneq ($(gpu_methods),)
lib_obj := $(filter-out $(gpu_methods),$(lib_obj)) $(BUILD)/methods/gpu_methods.o
$(BUILD)/methods/gpu_methods.o: $(gpu_methods)
	$(call step,LD,$@)$(CC) -r -nostdlib -o $@ $^
endif

$(LIB): $(lib_obj)
	@rm -f $@
	$(call step,AR,$@)$(AR) rcs $@ $^

define program_rule
$(call prog_of,$(1)): $(1:src/%.c=$(BUILD)/%.o) $(LIB)
	@mkdir -p $$(@D)
	$$(call step,LD,$$@)$$(CC) $$(CFLAGS) $$^ $$(LDLIBS) -o $$@
endef
$(foreach s,$(prog_src),$(eval $(call program_rule,$(s))))

vpath %.c $(sort $(dir $(test_src) $(tool_src) $(bench_src)))
$(BUILD)/tests/%: %.c $(LIB)
	@mkdir -p $(@D)
	$(call step,CC,$<)$(CC) $(CPPFLAGS) -Itests -Itests/lib $(CFLAGS) -MMD -MP -MF $@.d $< $(LIB) $(LDLIBS) $(if $(filter test_%,$*),-lcmocka) -o $@
$(filter $(BUILD)/tests/test_%,$(TESTS)): | $(BUILD)/headers-tests
$(PROGS): | $(BUILD)/unpacked-model
$(TESTS) $(BENCHES): | $(BUILD)/unpacked
# The demo model, and fixtures and measured files, from their archives. A measured file that was made again here stops the tests, not the programs.
$(BUILD)/unpacked-model: scripts/archives.sh $(wildcard data/models/*/files.tar.xz)
	@mkdir -p $(@D)
	@sh scripts/archives.sh unpack data
	@touch $@
$(BUILD)/unpacked: $(BUILD)/unpacked-model $(shell find results tests -name files.tar.xz 2>/dev/null)
	@sh scripts/archives.sh unpack results tests
	@touch $@
unpack: $(BUILD)/unpacked
# The dependency file of an older build may name a test's former path: the test is then compiled again.
tests/%.c: ;

# A library that a test loads into a program, in which it makes calls to the GPU fail.
$(BUILD)/tests/lose_gpu.so: tests/tools/lose_gpu.c
	@mkdir -p $(@D)
	$(call step,CC,$<)$(CC) $(CPPFLAGS) $(CFLAGS) -shared -fPIC $< -ldl -lpthread -o $@

# kvdim-attn for a machine that has a GPU but neither HDF5 nor the rest: needs libc, libm, cuBLAS and a driver.
static_dirs = $(patsubst -L%,%,$(filter -L%,$(hdf5_lib) $(blas_lib) $(extra_lib))) /usr/lib/x86_64-linux-gnu /usr/lib64
static_lib  = $(or $(firstword $(wildcard $(addsuffix /lib$(1).a,$(static_dirs)))),$(shell $(CC) -print-file-name=lib$(1).a))
$(BUILD)/bin-static/kvdim-attn: $(BUILD)/kernels/kvdim_attn.o $(LIB)
	@mkdir -p $(@D)
	$(call step,LD,$@)$(CC) $(filter-out -fopenmp,$(CFLAGS)) $^ -static-libgcc $(foreach l,hdf5_hl hdf5 sz aec z lapacke openblas gfortran quadmath jansson pcre2-8 utf8proc xxhash csv $(if $(filter 1,$(LIBDEFLATE)),deflate) $(if $(filter 1,$(OPENMP)),gomp),$(call static_lib,$(l))) \
	  $(if $(filter 1,$(CUDA)),-L$(CUDA_HOME)/lib64 -Wl$(comma)-rpath$(comma)$(CUDA_HOME)/lib64 -lcudart_static -lrt $(call static_lib,stdc++)) -ldl -lpthread -lm -o $@
	@strip $@

# ---- targets people type --------------------------------------------------------------------
.PHONY: fuzzers build-tests all help setup-demo setup-check found demo check test lint asan valgrind fuzz bench bench-gpu bench-collect bench-calibration check-gpu bench-report attn-static results-pages claims readme-figure unpack format install uninstall man clean FORCE
FORCE:

help:
	@echo 'make                build the programs into $(BUILD)/bin'
	@echo 'make demo           install what is missing, build, run the whole pipeline on the demo model'
	@echo 'make check          install what is missing, build, run all tests'
	@echo 'make test           the tests alone            make lint    clang-format and cppcheck, where installed'
	@echo 'make asan           the tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make valgrind       the pipeline on a few hundred tokens under valgrind'
	@echo 'make fuzz           every parser under libFuzzer, FUZZ_SECONDS=60 each (needs clang)'
	@echo 'make bench          measure; prints medians and the ratios that docs/benchmarks.md quotes'
	@echo 'make bench-gpu      time the attention kernels against their rivals on this GPU, into results/gpu (GPU_OUT=DIR)'
	@echo 'make check-gpu      the device tests, and small cases under compute-sanitizer, into results/gpu/checks'
	@echo 'make bench-calibration  every program that calibrates, from a checkpoint of 8B on this GPU'
	@echo 'make bench-collect  kvdim-collect with the shape of an 8B model on this GPU (BENCH_DIR=/var/tmp: whose disk)'
	@echo 'make attn-static    kvdim-attn alone, to be carried to a machine with a GPU and nothing else'
	@echo 'make unpack         extract the demo model, the results and the fixtures of tests from their archives'
	@echo 'make results-pages  the HTML page of every folder of results, from its measured files'
	@echo 'make claims         the ledger from the committed files; fails where README or docs differ (UPDATE=1 writes)'
	@echo 'make format         clang-format the sources'
	@echo 'make install        PREFIX=/usr/local DESTDIR= : programs, library, man pages, published numbers, widths'
	@echo 'make uninstall      removes from PREFIX and DESTDIR what make install put there'
	@echo 'make compile_commands.json   for editors'
	@echo 'make clean'
	@echo 'variables: CUDA=0|1 MPI=0|1 EXTRA_PREFIX=DIR OPT="-O2 -g" CC=... BUILD=build CFLAGS= CPPFLAGS= LDFLAGS= (added)'
	@echo '           V=1 (print whole commands) WERROR=1 (warnings are errors; set where CI is set)'

found:
	@[ '$(OPENMP)' = 1 ] || echo 'OpenMP: $(CC) has none, programs run on one thread'
	@if [ '$(CUDA)' = 1 ]; then echo "CUDA: $$($(NVCC) --version | sed -n 's/.*release //p')"; \
	 else echo 'CUDA: CUDA=0 or no nvcc, CUDA parts are left out'; fi
	@if [ '$(MPI)' = 1 ]; then echo 'MPI: found, kvdim-collect runs on several ranks'; \
	 else echo 'MPI: no mpicc with its headers, MPI parts are left out'; fi

setup-demo:
	@sh scripts/setup.sh demo '$(EXTRA_PREFIX)'
setup-check:
	@sh scripts/setup.sh check '$(EXTRA_PREFIX)'

# The sub-make looks for libraries again, after packages were installed.
demo: setup-demo
	@$(MAKE) --no-print-directory found
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@sh scripts/demo.sh $(BUILD)

check: setup-check
	@$(MAKE) --no-print-directory found
	@$(MAKE) --no-print-directory -j$$(nproc) build-tests
	@$(MAKE) --no-print-directory test

build-tests: all $(TESTS) $(TOOLS)
test: build-tests
	@BUILD=$(BUILD) PYTHON=$(PYTHON) sh tests/run.sh

lint:
	@sh scripts/lint.sh

asan:
	$(MAKE) test CUDA=0 BUILD=build-asan OPT='-O1 -g -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined'

valgrind: all
	@BUILD=$(BUILD) sh scripts/valgrind.sh

# libFuzzer comes with clang; OpenMP is left out, parsers have no threads.
FUZZ_SECONDS ?= 60
FUZZ_CFLAGS  := -std=c11 -D_GNU_SOURCE -O1 -g -Wno-unknown-pragmas -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
$(BUILD)-fuzz/lib/%.o: src/%.c | $(BUILD)/headers $(BUILD)/gen/common/version.h
	@mkdir -p $(@D)
	$(call step,CC,$<)clang $(CPPFLAGS) $(FUZZ_CFLAGS) -MMD -MP -c $< -o $@
$(BUILD)-fuzz/libkvdim.a: $(lib_src:src/%.c=$(BUILD)-fuzz/lib/%.o)
	@rm -f $@
	$(call step,AR,$@)$(AR) rcs $@ $^
$(BUILD)-fuzz/fuzz_%: tests/fuzz/fuzz_%.c $(BUILD)-fuzz/libkvdim.a
	$(call step,CC,$<)clang $(CPPFLAGS) $(subst fuzzer-no-link,fuzzer,$(FUZZ_CFLAGS)) $^ $(LDLIBS) -o $@
fuzzers: $(FUZZERS)
fuzz: fuzzers $(BUILD)/unpacked
	@sh scripts/fuzz.sh $(BUILD)-fuzz $(FUZZ_SECONDS)

bench: all $(BENCHES)
	@BUILD=$(BUILD) sh scripts/bench.sh

# Tables, figures and the page need no GPU: make bench-report, here or elsewhere.
GPU_OUT ?= results/gpu
BENCH_DIR ?= /var/tmp
bench-gpu: $(BUILD)/bin/kvdim-attn
	@ATTN=$(BUILD)/bin/kvdim-attn sh scripts/bench_gpu.sh $(GPU_OUT)
check-gpu: $(filter $(BUILD)/tests/gpu_%,$(TESTS))
	@sh scripts/check_gpu.sh $(GPU_OUT)/checks $(BUILD)/tests

bench-collect: $(BUILD)/bin/kvdim-collect $(BUILD)/tests/bench_gpu_forward $(BUILD)/tests/bench_gpu_dump
	@BUILD=$(BUILD) sh scripts/bench_collect_gpu.sh $(BENCH_DIR)
bench-calibration: $(addprefix $(BUILD)/bin/kvdim-,collect spectrum sensitivity eval fit) $(BUILD)/tests/tool_shape $(BUILD)/tests/tool_rusage
	@BUILD=$(BUILD) sh scripts/bench_calibration_gpu.sh
bench-report: $(BUILD)/bin/kvdim-report
	$(BUILD)/bin/kvdim-report $(GPU_OUT) -o $(GPU_OUT)/report
attn-static: $(BUILD)/bin-static/kvdim-attn

# The page of every folder of measured files, next to them in report/, which git ignores.
results-pages: $(BUILD)/bin/kvdim-report $(BUILD)/unpacked
	@for d in $$(find results -name '*.h5' -not -path '*/report/*' -printf '%h\n' | sort -u); do echo "$$d/report/index.html"; $(BUILD)/bin/kvdim-report $$d -q -o $$d/report || exit 1; done

# The ledger of the papers' claims from the committed files that measure them. Fails where results/ledger.md, README.md
# or docs/ differ from it; UPDATE=1 writes results/ledger.md and the tables in the documents anew.
claim_files = $$(find results/kvdim-25m results/kvdim-6m results/kvdim-25m-recall/rates-at-equal-accuracy results/kvdim-25m-recall/two-level-settings \
                results/kvdim-6m-recall/rates-at-equal-accuracy results/h200/figures results/h200/ablations results/h100/palu-70b -name '*.h5' \
                -not -path '*/methods-sweep/*' -not -path '*/report/*' | LC_ALL=C sort)
.PHONY: claim-files
claim-files: # prints them
	@printf '%s\n' $(claim_files)
claims: $(BUILD)/bin/kvdim-report $(BUILD)/unpacked
	@$(BUILD)/bin/kvdim-report $(claim_files) --no-plots -o $(BUILD)/claims | grep 'figures and tables of the papers'
	@$(PYTHON) scripts/claims.py $(BUILD)/claims/tables/ledger.csv results/ledger.md README.md $(wildcard docs/*.md) $(if $(UPDATE),--update)

# The figures of README and docs/results.md from committed results; need h5py and gnuplot.
readme-figure: $(BUILD)/unpacked $(BUILD)/bin/kvdim-report
	$(PYTHON) scripts/readme_figure.py docs/figures/quality-by-bytes.svg results/kvdim-25m/methods-sweep/*-on-wikipedia-t4096.h5
	$(BUILD)/bin/kvdim-report --published results/kvdim-25m/similarity-*.h5 results/kvdim-6m/similarity-*.h5 -q -o $(BUILD)/published
	cp $(BUILD)/published/figures/published-readings.svg docs/figures/readings.svg

format:
	clang-format -i $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh')

man: $(PROGS)
	@BUILD=$(BUILD) sh scripts/man.sh

# Quoted for the shell, because DESTDIR may have spaces.
root  := '$(DESTDIR)$(PREFIX)'
share := $(root)/share/kvdim
install: all man
	install -d $(root)/bin $(root)/share/man/man1 $(root)/share/man/man3 $(share)
	install -m 755 $(PROGS) $(root)/bin
	install -m 644 $(patsubst %,$(BUILD)/man/%.1,$(notdir $(PROGS))) $(root)/share/man/man1
	install -m 644 $(BUILD)/man/kvdim-attention.3 $(root)/share/man/man3
	install -d $(root)/lib/pkgconfig $(root)/include/kvdim
	install -m 644 include/kvdim/*.h $(root)/include/kvdim
	install -m 755 $(ATTN_SO) $(root)/lib
	install -m 644 $(ATTN_A) $(root)/lib
	ln -sf $(notdir $(ATTN_SO)) $(root)/lib/libkvdim-attention.so
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' 'Name: kvdim-attention' 'Description: attention on KV caches whose heads have unequal widths' \
	  'Version: $(KVD_VERSION)' 'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -lkvdim-attention' \
	  'Libs.private: $(if $(filter 1,$(OPENMP)),-fopenmp) $(ATTN_LIBS)' >$(root)/lib/pkgconfig/kvdim-attention.pc
	cp -r data/paper data/widths plots $(share)/
	chmod -R a+rX $(addprefix $(share)/,paper widths plots) $(root)/lib/pkgconfig/kvdim-attention.pc

# Removes the files that install copies, by name, and then the folders of share/kvdim that are empty.
installed = $(addprefix bin/,$(notdir $(PROGS))) $(patsubst %,share/man/man1/%.1,$(notdir $(PROGS))) share/man/man3/kvdim-attention.3 \
  $(addprefix lib/,$(notdir $(ATTN_SO)) libkvdim-attention.so libkvdim-attention.a pkgconfig/kvdim-attention.pc) $(wildcard include/kvdim/*.h) \
  $(patsubst data/%,share/kvdim/%,$(shell find data/paper data/widths -type f)) $(addprefix share/kvdim/,$(shell find plots -type f))
uninstall:
	if [ -d $(root) ]; then cd $(root) && rm -f $(installed); fi
	if [ -d $(root)/include/kvdim ]; then rmdir --ignore-fail-on-non-empty $(root)/include/kvdim; fi
	if [ -d $(share) ]; then find $(share) -depth -type d -empty -delete; fi

# One entry per source file, from the same flags that build it.
compile_commands.json: Makefile
	@{ printf '['; sep=''; for f in $(lib_src) $(prog_src) $(test_src); do \
	  printf '%s\n{"directory": "%s", "file": "%s", "command": "%s"}' "$$sep" '$(CURDIR)' "$$f" \
	    '$(CC) $(CPPFLAGS) -Itests -Itests/lib $(CFLAGS) -c '"$$f"; sep=,; done; printf '\n]\n'; } >$@

clean:
	rm -rf build build-asan build-fuzz demo compile_commands.json
	$(if $(filter build build-asan,$(BUILD)),,@echo "kept '$(BUILD)': remove a build folder of another name yourself")

-include $(shell find $(BUILD) $(BUILD)-fuzz -name '*.d' 2>/dev/null)
