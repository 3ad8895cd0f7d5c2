# Additive: one Makefile for everything.
#: make              build every program into build/bin
#: make demo         train, stream and explain on this repository's text (TEXT=file: on yours)
#: make run          the service on 127.0.0.1:8080, data in build/data
#: make test         the programs on a CPU; installs the packages it needs
#: make unit pytest  its two halves
#: tests/bare        the same and `make demo` in an empty Debian 12 or 13, with nothing beside the clone (see its --help)
#: make tests/golden  additive-eval, which compares models with golden numbers
#: make test-golden  golden sets that are not in the repository: ADDITIVE_GOLDEN=folder
#: make test-emulated   the CUDA backend on an emulated device (ADDITIVE_ALL_CASES=1: every size)
#: make test-slow    that, and what takes long: failing calls, killed engines on full disks, the page in a browser, the fuzzers, sanitizers
#: make fuzz-api     API_SECONDS=480: generated requests for all of proto/openapi.yaml (installs schemathesis, 90 MB)
#: make soak         MINUTES=30: mixed load on the service; fails when memory, files, threads or disk grow
#: make kills        MINUTES=10: kill every process again and again under load; fails when an acknowledged change is lost
#: make test-aarch64 every program and example cross-built for aarch64; the unit tests and the examples run in an emulator
#: make image        the container image; make image-test builds and runs it (root, no Docker engine needed)
#: make slurm-test   run deploy/train.sbatch on a Slurm of one node (root)
#: make image-cuda   the one with the CUDA plug-in (BASE, CUDA_IMAGE, CUDA_ARCHS: deploy/Dockerfile.cuda); image-cuda-test: without a GPU
#: make bench        everything beside its ceilings and PyTorch, a quarter of an hour (BENCH=--quick: minutes)
#: make bench-http   load over HTTP, --threads default and 1 (BENCH='--service …': other programs, see tests/bench/bench_http.py)
#: make bench-quality   TRAIN=file VALID=file EPOCHS=1: what kinds of attention learn at equal parameters, and what a token costs
#: make cuda         the CUDA plug-in (needs nvcc); gpu-kit test-gpu bench-gpu: see cuda/README.md
#: make examples     programs that use the library, to build/examples
#: make lib          libadditive.a, libadditive.so and additive.pc in build/lib, additive.h in build/include
#: make manual       pages of the manual and completions of shells, as programs write them, to build/share
#: make install      the next two (PREFIX=/usr/local)
#: make install-programs   programs to PREFIX/bin, pages of the manual to PREFIX/share
#: make install-lib  the library, to PREFIX/lib and PREFIX/include
#: make lint format deps clean compile_commands.json
#:   BUILD=release|debug|asan|tsan|aarch64   release goes to build/, the others to build/NAME/
#:   V=1                             show the commands
#:   CC=gcc|clang CFLAGS= CPPFLAGS= CXXFLAGS= LDFLAGS=   as usual; WERROR=yes: a warning is an error
#:   CUDA=/usr/local/cuda            a CUDA toolkit: the plug-in is built, and test-slow compiles its kernels
#:   WITH_CUDA=no|yes|auto           the same with CUDA_HOME or /usr/local/cuda; auto: if it has a compiler
#:   WITH_MPI=auto|yes|no            additive-train; auto: if Open MPI is installed
#:   ADDITIVE_DEPS=no                demo and test install no packages

BUILD ?= release
ifeq ($(origin CC),default)
CC = gcc
endif
PYTHON ?= /usr/bin/python3
PKG_CONFIG ?= pkg-config
OUT := $(if $(filter release,$(BUILD)),build,build/$(BUILD))

VERSION := 0.1.0

# Short lines while building; V=1 shows the commands.
Q := $(if $(V),,@)
say = @$(if $(V),:,printf '  %-5s %s\n' $(1) $(2))

# --- flags -----------------------------------------------------------------
WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(filter yes,$(WERROR)),-Werror)
CFLAGS_release := -O2 -g1
CFLAGS_debug := -O0 -g3
CFLAGS_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
CFLAGS_tsan := -O1 -g -fsanitize=thread
CFLAGS_aarch64 := -O2 -g
ifeq ($(BUILD),aarch64)
SYSROOT := $(CURDIR)/$(OUT)/sysroot
CC = aarch64-linux-gnu-gcc --sysroot=$(SYSROOT)
PKG_CONFIG = PKG_CONFIG_SYSROOT_DIR=$(SYSROOT) PKG_CONFIG_LIBDIR=$(SYSROOT)/usr/lib/aarch64-linux-gnu/pkgconfig pkg-config
export RUN_UNIT = qemu-aarch64 -L $(SYSROOT)
endif
# The OpenMP runtime is not instrumented, so a thread sanitizer would report its barriers.
# Without it, what is named only in a `parallel` pragma is unused.
OPENMP := $(if $(filter tsan,$(BUILD)),-fopenmp-simd -Wno-unused-parameter -Wno-unused-variable,-fopenmp)
# CPPFLAGS, CFLAGS, CXXFLAGS and LDFLAGS of the caller come after these.
ALL_CPPFLAGS := -I. -I$(OUT) -D_GNU_SOURCE -DADDITIVE_VERSION='"$(VERSION)"' \
                $(shell $(PKG_CONFIG) --cflags jansson nettle libpcre2-8 libutf8proc sentencepiece libuv sqlite3 libmicrohttpd gnutls libcurl 2>/dev/null) $(CPPFLAGS)
ALL_CFLAGS := -std=c17 $(WARN) $(CFLAGS_$(BUILD)) $(OPENMP) -fstack-protector-strong $(CFLAGS)
ALL_LDFLAGS := $(filter -fsanitize%,$(CFLAGS_$(BUILD))) $(OPENMP) $(LDFLAGS)
ifeq ($(CFLAGS_$(BUILD)),)
$(error BUILD must be release, debug, asan, tsan or aarch64)
endif

# --- what is where -----------------------------------------------------------
# A folder's sources are all its .c files; main.c of a folder is a program.
sources = $(filter-out %/main.c,$(sort $(wildcard $(foreach d,$(1),$(d)/*.c))))
objects = $(patsubst %.c,$(OUT)/obj/%.o,$(1))
# C++ is where a library speaks nothing else.
CXX = $(subst clang,clang++,$(subst gcc,g++,$(CC)))
CXX_OBJ := $(patsubst %.cc,$(OUT)/obj/%.o,engine/text/sentencepiece/sp_train.cc)

CORE_DIRS := engine/base engine/tensor engine/tensor/ops engine/cpu engine/cpu/reference engine/model engine/model/forms engine/model/mixers engine/model/bart engine/model/transformer engine/model/trilinear engine/model/architectures engine/text engine/text/huggingface engine/text/sentencepiece engine/text/grammar engine/train engine/train/objectives engine/train/optimizers
DAEMON_ROOMS := net requests keys compute catalog queue sessions generation jobs evaluations faithfulness batches library
ENGINE_DIRS := $(CORE_DIRS) engine/serve engine/explain engine/store engine/recipe engine/daemon $(addprefix engine/daemon/,$(DAEMON_ROOMS))
# Sources of proto that engine/base calls.
BASE_PROTO := proto/log_record.c proto/nearest.c
CORE_OBJ = $(call objects,$(call sources,$(CORE_DIRS)) $(BASE_PROTO)) $(CXX_OBJ) $(KERNEL_OBJ)
ENGINE_OBJ = $(call objects,$(call sources,$(ENGINE_DIRS)) $(BASE_PROTO)) $(CXX_OBJ) $(KERNEL_OBJ)
# Generated from proto/openapi.yaml and proto/engine.yaml, with the number of the interface of plug-ins.
CONTRACT := $(addprefix $(OUT)/gen/,schemas.h schemas.c limits.h routes.h routes.c recipe.h recipe.def sampling.def options.h)
INTERFACE := $(OUT)/gen/backend_abi.h
GEN := $(CONTRACT) $(INTERFACE)
PROTO_OBJ = $(call objects,$(call sources,proto)) $(OUT)/obj/gen/schemas.o
SERVER_OBJ = $(call objects,$(call sources,server)) $(OUT)/obj/gen/embedded.o $(OUT)/obj/gen/routes.o
CONFIG_OBJ = $(call objects,$(call sources,proto/config)) $(OUT)/obj/proto/config/toml_file.o
# Objects of proto for programs that do not link the contract.
OPTIONS_SRC := proto/manual.c proto/nearest.c proto/options.c
CLI_OBJ = $(call objects,$(call sources,clients/cli clients/load) $(OPTIONS_SRC) proto/log_record.c) $(CONFIG_OBJ)

# Kernels are compiled once per instruction set; the backend picks at run time, from those that are linked.
KERNEL_SRC := $(sort $(wildcard engine/cpu/kernels/*.c))
X86 := $(filter x86_64%,$(shell $(CC) -dumpmachine 2>/dev/null))
ISAS ?= baseline $(if $(X86),avx2 avx512)
# The next set's products of integers change the kernels of two sources; cpu.c takes the others from the set before it.
KERNEL_VNNI := $(if $(filter avx512,$(ISAS)),$(addprefix engine/cpu/kernels/,linear.c linear_cross_entropy.c))
# For processors of before 2013: less optimized, in half the compile time.
ISA_baseline := $(if $(and $(X86),$(filter release,$(BUILD))),-O2)
ISA_avx2 := -march=x86-64-v3
ISA_avx512 := -march=x86-64-v4 -mprefer-vector-width=512
ISA_avx512vnni := $(ISA_avx512) -mavx512vnni
KERNEL_OBJ := $(foreach i,$(ISAS),$(patsubst %.c,$(OUT)/obj/%.$(i).o,$(KERNEL_SRC))) $(patsubst %.c,$(OUT)/obj/%.avx512vnni.o,$(KERNEL_VNNI))
# The sets that this machine runs best and worst, for `make demo`, which must not take long.
HOST_ISAS = baseline $(if $(X86),$(or $(shell grep -owm1 avx512vl /proc/cpuinfo | sed s/vl//),$(shell grep -owm1 avx2 /proc/cpuinfo)))
# A thread count must not change a bit, so additions must be fused in all tiles of a kernel or in none. gcc 14 avoids
# chains of fused operations in some loops; this turns that off.
KERNEL_OPT := $(if $(filter release aarch64,$(BUILD)),-O3) -ffp-contract=fast -fno-math-errno -fno-trapping-math \
              $(if $(findstring clang,$(CC)),-Wno-pass-failed,--param=avoid-fma-max-bits=0)

# Libraries by pkg-config; where it does not know them all, by their usual names. oneDNN has no file of its own.
libs = $(or $(shell $(PKG_CONFIG) --libs $(1) 2>/dev/null),$(2))
CORE_PKGS := jansson zlib libzstd nettle libpcre2-8 libutf8proc sentencepiece
PROTO_LIBS := $(call libs,jansson,-ljansson) -lstdc++
CORE_LIBS := -ldnnl -lunistring $(call libs,$(CORE_PKGS),-ljansson -lz -lzstd -lnettle -lpcre2-8 -lutf8proc -lsentencepiece_train -lsentencepiece) -lstdc++ -ldl -lm
ENGINE_LIBS := $(CORE_LIBS) $(call libs,libuv sqlite3,-luv -lsqlite3) -lpthread
SERVER_LIBS := $(call libs,libmicrohttpd gnutls libuv jansson,-lmicrohttpd -lgnutls -luv -ljansson) -lstdc++ -ldl -lm
CLI_LIBS := $(call libs,libcurl libedit jansson nettle,-lcurl -ledit -ljansson -lnettle) -lstdc++ -lm
# additive-train is built if this is not empty: the package of MPI.
WITH_MPI ?= auto
MPI ?= $(if $(filter no,$(WITH_MPI))$(filter aarch64,$(BUILD)),,$(if $(filter yes,$(WITH_MPI))$(shell $(PKG_CONFIG) --exists ompi-c 2>/dev/null && echo yes),ompi-c))
RANK_DIRS := $(CORE_DIRS) engine/recipe engine/rank

PROGRAMS := $(addprefix $(OUT)/bin/,$(if $(MPI),additive-train) additived additive-httpd additive)

.PHONY: all
all: $(PROGRAMS)

# --- the library ---------------------------------------------------------------
# libadditive is the compute core, serving, explaining, and recipes of training. Its objects are those of the programs.
# They are position independent enough for a shared object, since every symbol but those of additive.h is
# local to it. Sources with thread-local variables, or variables of the C library, are compiled with -fPIC.
LIBRARY_SOVERSION := 0
OBJCOPY ?= $(if $(filter aarch64,$(BUILD)),aarch64-linux-gnu-)objcopy
LIBRARY_DIRS := $(CORE_DIRS) engine/serve engine/explain engine/recipe engine/library
LIBRARY_OBJ = $(filter-out %/tokenizer_training.o %/death_log.o,$(call objects,$(call sources,$(LIBRARY_DIRS)) engine/rank/rank_plan.c $(BASE_PROTO) proto/schema.c)) $(OUT)/obj/gen/schemas.o $(CXX_OBJ) $(KERNEL_OBJ)
# With sanitizers, whose variables are the program's, the archive alone.
LIBRARY := $(addprefix $(OUT)/lib/,libadditive.a $(if $(findstring sanitize,$(CFLAGS_$(BUILD))),,libadditive.so) additive.pc)
$(OUT)/obj/engine/base/reserve.o $(OUT)/obj/engine/recipe/job_tokenizer.o: ALL_CFLAGS += -fPIC
.PHONY: lib
lib: $(LIBRARY) $(OUT)/include/additive.h
$(OUT)/include/additive.h: engine/library/additive.h
	@mkdir -p $(@D)
	$(Q)cp $< $@
# The functions that additive.h declares.
$(OUT)/lib/symbols: engine/library/additive.h
	@mkdir -p $(@D)
	$(Q)sed -nE 's/^[a-z].*[ *](additive_[a-z_]+)\(.*/\1/p' $< | sort -u > $@
$(OUT)/lib/libadditive.so.$(VERSION): $(OUT)/lib/symbols $(LIBRARY_OBJ)
	$(call say,link,$@)
	$(Q){ echo '{ global:'; sed 's/$$/;/' $<; echo 'local: *; };'; } > $(@D)/exports
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libadditive.so.$(LIBRARY_SOVERSION) -Wl,--version-script=$(@D)/exports \
	  -Wl,-z,defs -o $@ $(filter %.o,$^) $(CORE_LIBS)
$(OUT)/lib/libadditive.so: $(OUT)/lib/libadditive.so.$(VERSION)
	$(Q)ln -sf $(<F) $(@D)/libadditive.so.$(LIBRARY_SOVERSION) && ln -sf libadditive.so.$(LIBRARY_SOVERSION) $@
# One object, in which every other symbol is local, so that a program may use the same names.
$(OUT)/lib/libadditive.a: $(OUT)/lib/symbols $(LIBRARY_OBJ)
	$(call say,ar,$@)
	$(Q)$(CC) -r -nostdlib -o $(@D)/additive.o $(filter %.o,$^)
	$(Q)$(OBJCOPY) --keep-global-symbols=$< $(@D)/additive.o
	@rm -f $@
	$(Q)$(AR) rcs $@ $(@D)/additive.o && rm $(@D)/additive.o
# `prefix` is the build folder, until `make install` writes its own.
pc_file = { echo 'prefix=$(1)'; echo 'Name: additive'; echo 'Description: Run, train and explain small language models'; \
  echo 'Version: $(VERSION)'; echo 'Cflags: -I$${prefix}/include'; echo 'Libs: -L$${prefix}/lib -ladditive'; \
  echo 'Libs.private: $(CORE_LIBS) $(filter -fopenmp,$(OPENMP)) -lpthread'; }
$(OUT)/lib/additive.pc: Makefile
	@mkdir -p $(@D)
	$(Q)$(call pc_file,$(abspath $(OUT))) > $@

# The library's examples, linked with the archive.
EXAMPLES := $(patsubst clients/examples/%.c,$(OUT)/examples/%,$(wildcard clients/examples/*.c))
$(EXAMPLES): $(OUT)/examples/%: clients/examples/%.c $(LIBRARY) $(OUT)/include/additive.h
	@mkdir -p $(@D)
	$(call say,cc,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -O2 -D_POSIX_C_SOURCE=200809L -I$(OUT)/include -o $@ $< $(OUT)/lib/libadditive.a $(CORE_LIBS) -lpthread
.PHONY: examples test-examples
examples: $(EXAMPLES)
test-examples: examples
	tests/run_examples $(OUT)/examples

$(OUT)/bin/additived: $(OUT)/obj/engine/daemon/main.o $(ENGINE_OBJ) $(PROTO_OBJ) $(CONFIG_OBJ)
$(OUT)/bin/additived: LDLIBS = $(ENGINE_LIBS)
$(OUT)/bin/additive-train: $(OUT)/obj/engine/rank/main.o $(call objects,$(call sources,$(RANK_DIRS))) $(CXX_OBJ) $(KERNEL_OBJ) $(PROTO_OBJ)
$(OUT)/bin/additive-train: LDLIBS = $(CORE_LIBS) $(shell $(PKG_CONFIG) --libs $(MPI))
$(OUT)/obj/engine/rank/mpi_ranks.o: ALL_CPPFLAGS += $(patsubst -I%,-isystem %,$(shell $(PKG_CONFIG) --cflags-only-I $(MPI) 2>/dev/null))
$(OUT)/bin/additive-httpd: $(OUT)/obj/server/main.o $(SERVER_OBJ) $(PROTO_OBJ) $(CONFIG_OBJ)
$(OUT)/bin/additive-httpd: LDLIBS = $(SERVER_LIBS)
$(OUT)/bin/additive: $(OUT)/obj/clients/cli/main.o $(CLI_OBJ)
$(OUT)/bin/additive: LDLIBS = $(CLI_LIBS)
$(OUT)/bin/%:
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) $(LDLIBS)

# A file made while make reads this, and written only when it changes.
keep = $(shell mkdir -p $(dir $(1)); echo '$(subst ','\'',$(2))' | cmp -s - $(1) || echo '$(subst ','\'',$(2))' > $(1))

# Objects are rebuilt when the compiler or the flags change.
FLAGS := $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(CXXFLAGS) $(KERNEL_OPT)
$(call keep,$(OUT)/flags,$(FLAGS))

# An architecture, model form, objective or kind of optimiser is a source of its folder: list FILE, MACRO, FOLDER.
list = $(call keep,$(OUT)/gen/$(1),$(foreach s,$(basename $(notdir $(call sources,$(3)))),$(2)($(s))))
$(call list,architectures.def,ARCHITECTURE,engine/model/architectures)
$(call list,forms.def,FORM,engine/model/forms)
$(call list,objectives.def,OBJECTIVE,engine/train/objectives)
$(call list,optimizers.def,OPTIMIZER,engine/train/optimizers)

# So are the readers of golden files, and the families of op cases that unit tests run.
$(call keep,$(OUT)/gen/golden_readers.def,$(foreach r,$(basename $(notdir $(call sources,tests/golden/readers))),GOLDEN_READER($(r))))
$(call list,op_case_families.def,OP_CASE_FAMILY,tests/unit/support/op_cases)

# The first build has no list of the generated files that a source includes, so all come first.
$(OUT)/obj/%.o: %.c $(OUT)/flags | $(GEN)
	@mkdir -p $(@D)
	$(call say,cc,$@)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
$(CXX_OBJ) $(OUT)/obj/proto/config/toml_file.o: $(OUT)/obj/%.o: %.cc $(OUT)/flags
	@mkdir -p $(@D)
	$(call say,c++,$@)
	$(Q)$(CXX) $(ALL_CPPFLAGS) -std=c++17 $(filter-out -Wstrict-prototypes -Wmissing-prototypes,$(WARN)) $(CFLAGS_$(BUILD)) $(CXXFLAGS) -MMD -MP -c -o $@ $<
define kernel_rule
$(OUT)/obj/engine/cpu/kernels/%.$(1).o: engine/cpu/kernels/%.c $(OUT)/flags | $(GEN)
	@mkdir -p $$(@D)
	$$(call say,cc,$$@)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(KERNEL_OPT) $(ISA_$(1)) -DCPU_ISA=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISAS) avx512vnni,$(eval $(call kernel_rule,$(i))))

# The contract as C. `stamp` is newer than the contract; a generated file keeps the date of its last change. The empty
# recipe makes make read that date after the stamp is made.
$(OUT)/gen/stamp: proto/openapi.yaml proto/engine.yaml proto/generate.py
	@mkdir -p $(@D)
	$(call say,gen,$@)
	$(Q)$(PYTHON) proto/generate.py $(filter %.yaml,$^) $(@D)
	@touch $@
$(CONTRACT): $(OUT)/gen/stamp
	@:
# It travels inside the front end, too, and so do the pages.
EMBEDDED := proto/openapi.yaml $(addprefix clients/web/,saved.html saved.js style.css)
WEB := $(filter-out %/saved.html %/saved.js,$(sort $(wildcard clients/web/*.html clients/web/*.css clients/web/*.js clients/web/*.svg)))
$(OUT)/gen/embedded.c: server/embed.py $(EMBEDDED) $(WEB)
	@mkdir -p $(@D)
	$(call say,gen,$@)
	$(Q)$(PYTHON) server/embed.py $@ $(EMBEDDED) -- $(WEB)
$(INTERFACE): engine/tensor/interface.py $(wildcard engine/tensor/ops/*.h)
	@mkdir -p $(@D)
	$(call say,gen,$@)
	$(Q)$(PYTHON) $< $@
-include $(INTERFACE:.h=.d)
$(OUT)/obj/gen/%.o: $(OUT)/gen/%.c $(OUT)/flags
	@mkdir -p $(@D)
	$(call say,cc,$@)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# --- CUDA ----------------------------------------------------------------------
# The plug-in has machine code for each of these that the compiler knows, which covers today's devices (8.6 and 8.9 run
# the code for 8.0). It has PTX for later ones. The PTX is for 9.0: code for older versions has no griddepcontrol.wait
# (cuda/ptx.cuh), so none of its kernels begins early. With `CUDA=FOLDER`, a toolkit, it is one of the programs. Targets
# that are for GPUs have a default.
WITH_CUDA ?= no
TOOLKIT = $(or $(CUDA_HOME),/usr/local/cuda)
FOUND_TOOLKIT = $(patsubst %/bin/nvcc,%,$(wildcard $(TOOLKIT)/bin/nvcc))
CUDA ?= $(if $(filter yes,$(WITH_CUDA))$(filter cuda cuda-check gpu-kit test-gpu bench-gpu,$(MAKECMDGOALS)),$(TOOLKIT),$(if $(filter auto,$(WITH_CUDA)),$(FOUND_TOOLKIT)))
CUDA_SRC := $(sort $(wildcard cuda/*.cu))
NVCC ?= $(if $(CUDA),$(CUDA)/bin/nvcc)
CUDA_CODES = $(eval CUDA_CODES := $(shell $(NVCC) --list-gpu-code))$(CUDA_CODES)
CUDA_ARCHS ?= $(foreach a,80 90a 100 103 110 120,$(if $(filter sm_$(a:a=),$(CUDA_CODES)),$(a)))
# Code for 8.0 runs on all of 8.x, and PTX of 9.0 serves devices later than these.
# One of each generation, for `make test-slow`; `make cuda-check` is of all, in twice the time.
CUDA_SLOW_ARCHS := 80 90a 120
CUDA_GENCODE = $(call gencode,$(CUDA_ARCHS)) -gencode arch=compute_90,code=compute_90
gencode = $(foreach a,$(1),-gencode arch=compute_$(a),code=sm_$(a))
NVCCFLAGS := -std=c++17 -O3 --compress-mode=size -I. -I$(OUT) -D_GNU_SOURCE $(if $(filter yes,$(WERROR)),-Werror all-warnings -Xcompiler -Werror) -Xcompiler -fPIC,-Wall,-Wextra
CUDA_OBJ := $(patsubst %.cu,$(OUT)/obj/%.o,$(CUDA_SRC))
# Machine code for one device alone, a quick look at one source; the compiler reads host code for it too.
CUDA_TEST_ONLY := $(patsubst %.cu,$(OUT)/cuda-check/%.cubin,$(CUDA_SRC))
.PHONY: cuda
cuda: $(OUT)/bin/additive-cuda.so
$(if $(NVCC),$(call keep,$(OUT)/cuda-flags,$(NVCC) $(NVCCFLAGS) $(CUDA_GENCODE)))
$(CUDA_OBJ): gencodes = $(CUDA_GENCODE)
$(CUDA_OBJ): $(OUT)/obj/%.o: %.cu $(OUT)/cuda-flags | $(INTERFACE)
	$(nvcc)
$(CUDA_TEST_ONLY): gencodes = $(call gencode,90a)
$(CUDA_TEST_ONLY): $(OUT)/cuda-check/%.cubin: %.cu | $(INTERFACE)
	$(nvcc)
define nvcc
	@mkdir -p $(@D)
	$(call say,nvcc,$@)
	$(Q)$(NVCC) $(NVCCFLAGS) -Xptxas -v $(gencodes) -MMD -MP $(if $(filter %.cubin,$@),-cubin,-c) -o $@ $< 2>$(basename $@).ptxas || { cat $(basename $@).ptxas >&2; exit 1; }
endef
$(OUT)/bin/additive-cuda.so: $(CUDA_OBJ)
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(NVCC) -shared -o $@ $^ -lcublasLt -Xlinker -rpath=$(abspath $(dir $(NVCC))/../lib64)
ifneq ($(and $(NVCC),$(filter release,$(BUILD))),)
PROGRAMS += $(OUT)/bin/additive-cuda.so
all: $(OUT)/bin/additive-cuda.so
endif

# Every machine with a toolkit can compile and inspect the kernels, with a package's disassembler, but only one with a
# GPU can run them.
CUDA_VENV := build/cuda-venv
$(CUDA_VENV)/ready: tests/cuda_requirements.txt
	$(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@
.PHONY: cuda-check
cuda-check: $(CUDA_OBJ) $(CUDA_VENV)/ready
	@PATH="$$(echo $(CUDA_VENV)/lib/python*/site-packages/nvidia/cu*/bin):$(dir $(NVCC)):$$PATH" \
	  tests/cuda_resources cuobjdump cuda/hot_kernels cuda $(CUDA_OBJ)

# The plug-in's sources, compiled for a CPU: tests/emulator is the device. Two plug-ins: OUT/emulator/ runs whole
# programs, and OUT/emulator/checked/ checks every access of a kernel, for unit tests (tests/emulator/README.md).
EMULATOR := $(OUT)/emulator/additive-cuda.so
EMULATOR_CHECKED := $(OUT)/emulator/checked/additive-cuda.so
EMULATOR_SRC := $(sort $(wildcard tests/emulator/*.cc))
# Kernels with -O1: a third less to compile than -O2, and as fast to run, since the time goes into the device around them.
EMULATOR_FLAGS := -std=c++17 -g1 -fPIC -ftls-model=initial-exec -D_GNU_SOURCE -I. -I$(OUT) -Itests/emulator/include \
                  -Wall -Wextra $(filter -Werror,$(WARN)) -Wno-unknown-pragmas
# The calls that a thread sanitizer inserts before every access are the emulator's own functions; nothing of the
# compiler's runtime is linked. Loops that a compiler turned into memcpy or memset would have no such calls.
EMULATOR_CALLS := -fsanitize=thread,alignment $(if $(findstring clang,$(CC)),\
                  -mllvm -tsan-instrument-func-entry-exit=0 -fno-builtin-memset -fno-builtin-memcpy,\
                  --param tsan-instrument-func-entry-exit=0 -fno-tree-loop-distribute-patterns)
emulator_objects = $(patsubst %.cu,$(1)/%.o,$(CUDA_SRC)) $(patsubst %.cc,$(1)/%.o,$(EMULATOR_SRC))
$(OUT)/emulator/checked/%.o: EMULATOR_FLAGS += -DEMULATOR_CHECKED
$(OUT)/emulator/checked/%.o: %.cu | $(INTERFACE)
	@mkdir -p $(@D)
	$(call say,c++,$@)
	$(Q)$(CXX) -O1 $(EMULATOR_FLAGS) $(EMULATOR_CALLS) -include cuda_runtime.h -MMD -MP -x c++ -c -o $@ $<
$(OUT)/emulator/checked/%.o: %.cc
	@mkdir -p $(@D)
	$(call say,c++,$@)
	$(Q)$(CXX) -O2 $(EMULATOR_FLAGS) -MMD -MP -c -o $@ $<
$(OUT)/emulator/%.o: %.cu | $(INTERFACE)
	@mkdir -p $(@D)
	$(call say,c++,$@)
	$(Q)$(CXX) -O1 $(EMULATOR_FLAGS) -include cuda_runtime.h -MMD -MP -x c++ -c -o $@ $<
$(OUT)/emulator/%.o: %.cc
	@mkdir -p $(@D)
	$(call say,c++,$@)
	$(Q)$(CXX) -O2 $(EMULATOR_FLAGS) -MMD -MP -c -o $@ $<
$(EMULATOR): $(call emulator_objects,$(OUT)/emulator)
$(EMULATOR_CHECKED): $(call emulator_objects,$(OUT)/emulator/checked)
# The plug-in is its NCCL too (nccl.cc).
$(EMULATOR) $(EMULATOR_CHECKED):
	$(call say,link,$@)
	$(Q)$(CXX) -shared -o $@ $^ -ldl
	@ln -sf $(@F) $(@D)/libnccl.so.2
# The emulator's own tests: kernels with planted faults.
EMULATOR_TEST := $(OUT)/emulator/test_emulator
$(EMULATOR_TEST): $(patsubst %.cu,$(OUT)/emulator/checked/%.o,$(sort $(wildcard tests/emulator/*.cu))) \
                  $(patsubst %.cc,$(OUT)/emulator/checked/%.o,$(EMULATOR_SRC))
	$(call say,link,$@)
	$(Q)$(CXX) -o $@ $^ -ldl

# --- tests -------------------------------------------------------------------
UNIT_SRC := $(sort $(wildcard tests/unit/*/test_*.c))
ifeq ($(BUILD),tsan)
# Tests that refuse memory on purpose replace malloc, and test_threads replaces open; the thread sanitizer's runtime
# supports neither. Of these tests only test_threads has threads to check. oneDNN's own threads are not instrumented, so
# it gets one.
UNIT_SRC := $(filter-out tests/unit/base/test_memory.c tests/unit/daemon/test_threads.c \
              $(shell grep -lr support/allocations.h tests/unit),$(UNIT_SRC))
export OMP_NUM_THREADS := 1
export TSAN_OPTIONS ?= suppressions=$(CURDIR)/tests/tsan.supp
endif
programs_of = $(patsubst tests/unit/%.c,$(OUT)/unit/%,$(1))
CUDA_UNIT_BIN := $(call programs_of,$(filter tests/unit/cuda/%,$(UNIT_SRC)))
UNIT_BIN := $(call programs_of,$(filter-out tests/unit/cuda/%,$(UNIT_SRC)))
# A test is compiled once and run once. Without optimization it compiles in less than half the time.
$(OUT)/obj/tests/unit/%.o: ALL_CFLAGS := $(subst -O2,-O0,$(ALL_CFLAGS))
# An archive, so that a test links only the helpers it uses; q: files of two folders may have one name.
UNIT_SUPPORT := $(OUT)/obj/tests/unit/support.a
$(UNIT_SUPPORT): $(call objects,$(call sources,tests/unit/support tests/unit/support/op_cases))
	@rm -f $@
	$(Q)$(AR) qcs $@ $^
# A test links much and runs once, so binutils' faster linker is used, without line numbers for debuggers (the names of
# functions stay); `make UNIT_LINKER=` takes the compiler's own and keeps the numbers.
UNIT_LINKER ?= $(if $(filter release,$(BUILD)),-fuse-ld=gold -Xlinker -S)
# Folders that a test of an area links: those up to its own.
area = $(firstword $(subst /, ,$(1)))
with = $(if $(filter server,$(1)),SERVER,$(if $(filter cli,$(1)),CLI,$(if $(filter proto,$(1)),PROTO,$(if $(filter cuda,$(1)),CUDA_TEST,$(if $(filter golden,$(1)),GOLDEN,$(if $(filter library,$(1)),LIBRARY,$(if $(filter serve explain store daemon,$(1)),ENGINE,CORE)))))))
CUDA_TEST_OBJ = $(CORE_OBJ) $(call objects,$(call sources,engine/serve engine/explain))
CUDA_TEST_LIBS = $(CORE_LIBS)
GOLDEN_OBJ = $(CORE_OBJ) $(OUT)/obj/tests/golden/label_graph.o
GOLDEN_LIBS = $(CORE_LIBS)
LIBRARY_LIBS = $(CORE_LIBS)
unit_objects = $($(call with,$(1))_OBJ) $(if $(filter SERVER ENGINE,$(call with,$(1))),$(PROTO_OBJ)) $(if $(filter PROTO,$(call with,$(1))),$(CONFIG_OBJ))
.SECONDEXPANSION:
$(UNIT_BIN) $(CUDA_UNIT_BIN): $(OUT)/unit/%: $(OUT)/obj/tests/unit/%.o $$(call unit_objects,$$(call area,$$*)) $$(UNIT_SUPPORT)
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) $(UNIT_LINKER) -rdynamic -o $@ $(filter %.o,$^) $(UNIT_SUPPORT) -lcmocka $($(call with,$(call area,$*))_LIBS) -lm

.PHONY: unit
unit: $(UNIT_BIN)
	@CC='$(CC)' tests/in_memory tests/run_unit $(UNIT_BIN)

VENV := build/venv
$(VENV)/ready: tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

# Libraries of other people that ask the service, for a slow test.
CLIENTS_VENV := build/clients-venv
$(CLIENTS_VENV)/ready: tests/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

# A browser's driver, for tests of the page. The browser is Debian's.
WEB_VENV := build/web-venv
$(WEB_VENV)/ready: tests/web/requirements.txt tests/requirements.txt
	$(PYTHON) -m venv $(WEB_VENV)
	$(WEB_VENV)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

# A library that lets calls of a program fail (tests/faults). It replaces malloc, so the compiler must not know it.
FAULTS := $(OUT)/faults/faults.so
$(FAULTS): tests/faults/faults.c tests/faults/faults.h
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(ALL_CPPFLAGS) -std=c17 $(WARN) -O2 -g -fPIC -fvisibility=hidden -fno-builtin -shared -o $@ $< -ldl
FAULTS_ALL := $(if $(filter aarch64 tsan,$(BUILD)),,$(FAULTS))

# Answers questions about grammars of JSON Schemas, for tests/api.
GRAMMAR_TEXTS := $(OUT)/tests/grammar_texts
$(GRAMMAR_TEXTS): $(OUT)/obj/tests/api/grammar_texts.o $(UNIT_SUPPORT) \
                  $(filter-out %/constraint.o %/token_trie.o,$(call objects,$(call sources,engine/text/grammar engine/base) engine/text/call_search.c $(BASE_PROTO)))
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(UNIT_SUPPORT) -ljansson -lnettle -lm

# Computes golden numbers, and what a model folder gives for given tokens. Tests call it, and it is not installed.
GOLDEN := $(OUT)/bin/additive-eval
.PHONY: tests/golden
tests/golden: $(GOLDEN)
$(GOLDEN): $(call objects,$(sort $(wildcard tests/golden/*.c tests/golden/readers/*.c)) $(OPTIONS_SRC)) $(CORE_OBJ)
$(GOLDEN): LDLIBS = $(CORE_LIBS)
TESTED := all $(GOLDEN)
# tests/e2e/test_library.py compiles programs without sanitizers.
LIBRARY_TESTED := $(if $(filter release,$(BUILD)),lib)

PYTEST = env ADDITIVE_BIN=$(CURDIR)/$(OUT)/bin ADDITIVE_BUILD=$(BUILD) tests/run_pytest $(VENV)/bin/python -m pytest -q
# More processes than processors, since tests also wait; a file's tests share services, so they stay together.
PYTEST_JOBS ?= -n $(shell echo $$(($$(nproc) * 2))) --dist loadfile
# Slow tests compute more than they wait.
SLOW_JOBS ?= -n $(shell nproc) --dist loadfile
.PHONY: pytest
pytest: $(TESTED) $(LIBRARY_TESTED) $(FAULTS_ALL) $(GRAMMAR_TEXTS) $$(BENCH_BIN) $(VENV)/ready
	tests/in_memory $(PYTEST) $(PYTEST_JOBS) tests/api tests/e2e $(if $(FAULTS_ALL),tests/faults)

# Tests that need a CUDA device, on the emulated one. Its fibres are x86-64 code, and its calls for the thread sanitizer
# are its own.
EMULATED_UNIT := $(CUDA_UNIT_BIN) $(OUT)/unit/tensor/test_sample $(EMULATOR_TEST)
EMULATED := $(if $(filter aarch64 tsan,$(BUILD)),,$(EMULATOR) $(EMULATOR_CHECKED) $(EMULATED_UNIT))
.PHONY: test-emulated
test-emulated: $(TESTED) $(EMULATED) $(VENV)/ready
	@$(if $(EMULATED),,echo 'BUILD=$(BUILD) has no emulated device' >&2; exit 1)
	@ADDITIVE_EMULATOR=$(abspath $(dir $(EMULATOR_CHECKED))) tests/in_memory tests/run_unit $(EMULATED_UNIT)
	tests/in_memory $(PYTEST) -m 'emulated and not slow' $(PYTEST_JOBS) tests/e2e

# Golden sets that are not in the repository: ADDITIVE_GOLDEN=FOLDER.
.PHONY: test-golden
test-golden: $(TESTED) $(EMULATED) $(VENV)/ready
	$(PYTEST) -m 'not slow' $(PYTEST_JOBS) tests/e2e/test_golden.py tests/e2e/test_golden_sources.py tests/e2e/test_convert_3lin.py

# Tests that take too long for `make test`. Budgets: SWEEP_SECONDS (for each sweep), KILLS, FUZZ_SECONDS (for each
# driver). The sanitizer build looks for leaks and for memory accessed after a failed call.
FUZZ_SECONDS ?= 20
.PHONY: pytest-slow pytest-web pytest-faults test-slow soak kills
pytest-slow: $(TESTED) $$(BENCH_BIN) $(EMULATED) $(FAULTS_ALL) $(GRAMMAR_TEXTS) $(VENV)/ready $(CLIENTS_VENV)/ready
	ADDITIVE_CUDA=$(or $(CHECKED_CUDA),$(CUDA)) $(PYTEST) -m slow $(SLOW_JOBS) tests/api tests/e2e tests/faults
pytest-web: all $(WEB_VENV)/ready
	$(subst $(VENV)/,$(WEB_VENV)/,$(PYTEST)) -m slow $(SLOW_JOBS) tests/web
pytest-faults: $(TESTED) $(FAULTS) $(VENV)/ready
	$(PYTEST) -m slow $(SLOW_JOBS) tests/faults
test-slow:
	@deploy/deps clang chromium $(TEST_PACKAGES)
	$(MAKE) -j$(shell nproc) $(TESTED) $(BENCH_BIN) $(EMULATED) $(if $(NVCC),cuda-check CUDA_ARCHS='$(CUDA_SLOW_ARCHS)')
	@$(if $(NVCC),,echo 'left out: no kernel is compiled for a GPU, since CUDA names no toolkit')
	$(MAKE) CUDA= CHECKED_CUDA=$(CUDA) pytest-slow
	$(MAKE) CUDA= pytest-web
	$(MAKE) CUDA= test-emulated
	$(MAKE) CUDA= -j$(shell nproc) BUILD=asan all tests/golden
	$(MAKE) CUDA= BUILD=asan KILLS=$(or $(KILLS),30) SWEEP_SECONDS=$(or $(SWEEP_SECONDS),120) pytest-faults
	tests/fuzz/run $(FUZZ_SECONDS)
FUZZ_VENV := build/fuzz-venv
$(FUZZ_VENV)/ready: tests/fuzz/requirements.txt
	$(PYTHON) -m venv $(FUZZ_VENV)
	$(FUZZ_VENV)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@
.PHONY: fuzz-api
fuzz-api: all $(FUZZ_VENV)/ready
	ADDITIVE_BIN=$(CURDIR)/$(OUT)/bin ADDITIVE_BUILD=$(BUILD) $(FUZZ_VENV)/bin/python tests/fuzz/openapi.py $(or $(API_SECONDS),480) $(FUZZ_API)
soak: all $(VENV)/ready
	ADDITIVE_BIN=$(CURDIR)/$(OUT)/bin $(VENV)/bin/python tests/faults/soak.py --minutes $(or $(MINUTES),30) $(SOAK)
kills: all $(VENV)/ready
	ADDITIVE_BIN=$(CURDIR)/$(OUT)/bin $(VENV)/bin/python tests/faults/kills.py --minutes $(or $(MINUTES),10)

# Measurements, never tests: programs on the folders of the engine.
BENCH_BIN := $(patsubst tests/bench/%.c,$(OUT)/bench/%,$(sort $(wildcard tests/bench/*.c)))
BENCH_SUPPORT := $(call objects,$(sort $(wildcard tests/bench/support/*.c)) tests/unit/support/datasets.c)
$(BENCH_BIN): $(OUT)/bench/%: $(OUT)/obj/tests/bench/%.o $(BENCH_SUPPORT) $$(call objects,$$(call sources,engine/serve engine/explain)) $$(CORE_OBJ)
	@mkdir -p $(@D)
	$(call say,link,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -rdynamic -o $@ $^ $(CORE_LIBS)
BENCH_CUDA := $(if $(NVCC),$(patsubst tests/bench/%.cu,$(OUT)/bench/%,$(sort $(wildcard tests/bench/*.cu))))
$(BENCH_CUDA): $(OUT)/bench/%: tests/bench/%.cu $(OUT)/cuda-flags
	@mkdir -p $(@D)
	$(call say,nvcc,$@)
	$(Q)$(NVCC) $(NVCCFLAGS) $(CUDA_GENCODE) -o $@ $<
BENCH_VENV := build/bench-venv
$(BENCH_VENV)/ready: tests/bench/requirements.txt
	deploy/deps g++ python3-dev libjemalloc2 libtcmalloc-minimal4
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@
.PHONY: bench bench-http bench-quality
bench: $(BENCH_BIN) $(BENCH_VENV)/ready
	$(BENCH_VENV)/bin/python tests/bench/bench.py $(BENCH)
bench-http: all $(OUT)/bench/bench_http
	python3 tests/bench/bench_http.py $(BENCH)
bench-quality: $(BENCH_BIN) $(BENCH_VENV)/ready
	$(BENCH_VENV)/bin/python tests/bench/quality.py $(if $(TRAIN),--train $(TRAIN)) $(if $(VALID),--valid '$(VALID)') \
	  $(if $(EPOCHS),--epochs $(EPOCHS)) $(BENCH)

# Further programs and tests: cmocka, Open MPI, virtual environments, shells whose completions are tried, the manual's checker.
TEST_PACKAGES := libcmocka-dev libopenmpi-dev openmpi-bin python3-venv fish zsh mandoc
.PHONY: test test-programs
# The virtual environment comes first: it waits for the network while others compile, hence one more job.
test-programs: $(VENV)/ready $(TESTED) $(LIBRARY_TESTED) $(UNIT_BIN) $(BENCH_BIN) $(FAULTS_ALL) $(GRAMMAR_TEXTS)
test:
	@deploy/deps $(TEST_PACKAGES)
	$(MAKE) -j$(shell echo $$(($$(nproc) + 1))) test-programs
	$(MAKE) all unit pytest lint-arrows lint-words

# On a GPU. The kit is made where our libraries are and runs where a driver and a toolkit are (tests/gpu).
GPU_KIT := build/gpu-kit
.PHONY: gpu-kit test-gpu bench-gpu
gpu-kit: $(TESTED) cuda $(CUDA_UNIT_BIN) $(BENCH_BIN) $(BENCH_CUDA) $(VENV)/ready
	$(VENV)/bin/python tests/gpu/kit.py $(OUT) $(GPU_KIT)
test-gpu: gpu-kit
	$(PYTHON) tests/gpu/test_gpu.py --kit $(GPU_KIT) $(TEST_GPU)
bench-gpu: gpu-kit
	python3 tests/bench/bench_gpu.py --kit $(GPU_KIT) --out build/bench-gpu --table cuda/BENCHMARKS.md $(BENCH)

.PHONY: test-aarch64
test-aarch64:
	deploy/aarch64 build/aarch64/sysroot
	$(MAKE) BUILD=aarch64 all unit test-examples

# --- the service -------------------------------------------------------------
SERVICE := $(addprefix $(OUT)/bin/,additive additived additive-httpd)
.PHONY: demo run image image-test image-cuda image-cuda-test slurm-test install install-programs install-lib
demo:
	@echo 'Installs missing packages, builds (a minute on 2 cores), trains for a minute, then generates text and explains a token.'
	@deploy/deps
	@began=$$(date +%s); $(MAKE) --no-print-directory -j$$(nproc) ISAS='$(HOST_ISAS)' $(SERVICE) && echo "built in $$(($$(date +%s) - began)) s"
	@clients/examples/demo.sh $(OUT)/bin $(if $(TEXT),$(abspath $(TEXT)))
run: $(SERVICE)
	$(OUT)/bin/additive serve --listen 127.0.0.1:8080 --data build/data
build_image = $(if $(shell docker info >/dev/null 2>&1 && echo yes),docker build,buildah bud --format docker)
image:
	$(build_image) -t additive -f deploy/Dockerfile .
image-test:
	deploy/image_test
image-cuda:
	$(build_image) $(foreach a,BASE CUDA_IMAGE CUDA_ARCHS,$(if $($a),--build-arg '$a=$($a)')) -t additive-cuda -f deploy/Dockerfile.cuda .
slurm-test: all
	deploy/slurm_test $(OUT)/bin
image-cuda-test: $(EMULATOR)
	PLUGIN=$(EMULATOR) deploy/image_test cuda
# Files installed under share: each program writes its own page, and `additive` those of its commands.
SHARE := $(OUT)/share
PAGES_8 := $(patsubst $(OUT)/bin/%,$(SHARE)/man/man8/%.8,$(filter %/additived %/additive-httpd %/additive-train,$(PROGRAMS)))
COMPLETIONS := bash-completion/completions/additive zsh/site-functions/_additive fish/vendor_completions.d/additive.fish
.PHONY: manual
manual: $(SHARE)/man/man1/additive.1 $(PAGES_8) $(addprefix $(SHARE)/,$(COMPLETIONS))
$(SHARE)/man/man1/additive.1: $(OUT)/bin/additive
	@rm -f $(@D)/*.1 && mkdir -p $(@D)
	$(call say,man,$(@D))
	$(Q)$(RUN_UNIT) $< manual $(@D)
$(PAGES_8): $(SHARE)/man/man8/%.8: $(OUT)/bin/%
	@mkdir -p $(@D)
	$(call say,man,$@)
	$(Q)$(RUN_UNIT) $< --man > $@.new && mv $@.new $@
$(SHARE)/bash-completion/%: SHELL_NAME = bash
$(SHARE)/zsh/%: SHELL_NAME = zsh
$(SHARE)/fish/%: SHELL_NAME = fish
$(addprefix $(SHARE)/,$(COMPLETIONS)): $(OUT)/bin/additive
	@mkdir -p $(@D)
	$(call say,gen,$@)
	$(Q)$(RUN_UNIT) $< completion $(SHELL_NAME) > $@.new && mv $@.new $@
PREFIX ?= /usr/local
install: install-programs install-lib
install-programs: all manual
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(filter-out %.so,$(PROGRAMS)) $(DESTDIR)$(PREFIX)/bin
	$(if $(wildcard $(OUT)/bin/additive-cuda.so),install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/additive $(OUT)/bin/additive-cuda.so)
	cd $(SHARE) && find . -type f -exec install -D -m 644 '{}' '$(abspath $(DESTDIR)$(PREFIX))/share/{}' \;

install-lib: lib
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include engine/library/additive.h
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib $(OUT)/lib/libadditive.a $(OUT)/lib/libadditive.so.$(VERSION)
	cp -Pf $(OUT)/lib/libadditive.so $(OUT)/lib/libadditive.so.$(LIBRARY_SOVERSION) $(DESTDIR)$(PREFIX)/lib
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	$(call pc_file,$(PREFIX)) > $(DESTDIR)$(PREFIX)/lib/pkgconfig/additive.pc

# --- system packages ----------------------------------------------------------
.PHONY: deps
deps:
	@deploy/deps $(TEST_PACKAGES)

# --- housekeeping ---------------------------------------------------------------
.PHONY: lint lint-arrows lint-words format clean help
lint-arrows:
	@tests/lint_arrows
lint-words:
	@tests/lint_words
lint: lint-arrows lint-words $(GEN)
	cppcheck --quiet --std=c11 --error-exitcode=1 --enable=warning,portability --inline-suppr --suppress=missingInclude \
	  --suppress=invalidPointerCast `# packed weights and scratch are bytes with a layout of their own` \
	  -I. -I$(OUT) -D_GNU_SOURCE -DCPU_ISA=baseline --suppress=unknownMacro engine proto server clients
help:
	@sed -n 's/^#: //p' Makefile
# The commands of a whole build, for editors and analysers.
compile_commands.json: Makefile
	@$(MAKE) --no-print-directory -Bn V=1 all | $(PYTHON) deploy/compile_commands.py >$@
format:
	clang-format -i $$(git ls-files '*.c' '*.h')
clean:
	rm -rf build

-include $(shell find $(OUT)/obj $(OUT)/emulator $(OUT)/cuda-check -name '*.d' 2>/dev/null)
