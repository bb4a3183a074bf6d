# Included by the experiments of the papers' system figures: jobs (kvdim-jct), costs, and serving simulated from them (kvdim-serve).
# A folder's Makefile sets its defaults, includes this, and calls jobs and serve.
#
#   make -C experiments/<name>                                    the demo checkpoint, on the CPU, small
#   make -C experiments/<name> SHAPE=llama-3.1-8b                 a published shape with random weights, on a GPU
#
# SHAPE    in place of MODEL; results go to results/$(SHAPE) unless OUT says otherwise
# SPREAD   singular values that a shape's heads get, by which zack and fdc choose widths (docs/jct.md)
# CAL      text of a model's bases                     (default: the first)
# REPEATS  runs of every job, samples of every iteration (default 3)
# JCT      further options of kvdim-jct;  SERVE of kvdim-serve
# COSTS    folder with costs-<trace>.h5 that were measured elsewhere (default: measured here)
# MORE     with COSTS: further files of it, costs-<word>-<trace>.h5 for each word, with methods that were measured apart
# METHODS  methods to compare in place of the rates' series; with COSTS, some of its methods (default: all)
# STOCK    series of the rates whose costs are measured a second time with --attention stock, as NAME@stock (ZACK/KE, FDC/KE)
# ARRIVALS requests of every simulated point (default 2000 for each replica); ARRIVALS_<trace> of one trace
# SLACK    the bound on the mean normalised latency, in times that of `none` when requests never meet (default 5)
this := $(abspath $(dir $(lastword $(MAKEFILE_LIST))))
SHAPE ?=
ifneq ($(SHAPE),)
OUT ?= $(this)/../results/$(SHAPE)
endif
include $(this)/common.mk
comma := ,
empty :=
space := $(empty) $(empty)
list   = $(subst $(space),$(comma),$(strip $(1)))

SPREAD  ?= $(ROOT)/data/widths/kvdim25m-sigma.csv
CAL     ?= $(firstword $(labels))
REPEATS ?= 3
JCT     ?=
SERVE   ?=
COSTS   ?=
MORE    ?=
METHODS ?=
STOCK   ?=
SLACK   ?= 5
ARRIVALS ?=
# 61,500 tokens come out of a request of pg19.
ARRIVALS_pg19 ?= 200
# Requests of theirs are short: 2000 last seconds on a GPU, too few for a queue that grows to show.
ARRIVALS_imdb      ?= $(or $(ARRIVALS),$(if $(SHAPE)$(COSTS),20000))
ARRIVALS_humaneval ?= $(or $(ARRIVALS),$(if $(SHAPE)$(COSTS),20000))

bases := $(if $(SHAPE),$(call here,$(SPREAD)),$(call spectrum,$(CAL),$(TOKENS)))
which := $(if $(SHAPE),--shape $(SHAPE) --spread $(bases),$(model) --spectrum $(bases))
inputs :=

# Makes the bases of a model once.
define need_bases
$(if $(SHAPE),,$(eval $(call calibrate,$(CAL),$(TOKENS))))
endef

# Activations of a checkpoint before and after RoPE, for the matrices of palu and the tables of kvquant. A shape has random ones.
CALIBRATION ?= 2048
dump     := $(out)/dumps/$(CAL)-pre-t$(CALIBRATION)-s$(SEQ_LEN).h5
needs_dump = $(if $(SHAPE),,$(if $(findstring palu,$(1))$(findstring kvquant,$(1)),$(dump)))
$(dump): $(call text_of,$(CAL)) $(model_files)
	@mkdir -p $(@D)
	$(bin)/kvdim-collect $(model) --text $< $(call field_of,$(CAL)) --tokens $(CALIBRATION) --seq-len $(SEQ_LEN) --label $(CAL) --rope both --dtype f16 -q -o $@

# A sweep that was stopped goes on where it was. OPTIONS belong to the target.
jct_into = $(bin)/kvdim-jct $(which) $(OPTIONS) $(JCT) -q --resume -o $@.unfinished && mv $@.unfinished $@

# $(call jobs,name,input lengths,output lengths,methods,further options): a file of jobs.
define jobs
inputs += $(results)/$(1).h5
$(results)/$(1).h5: OPTIONS := $(addprefix --method ,$(4)) --input-len $(call list,$(2)) --output-len $(call list,$(3)) --repeats $(REPEATS) $(5) $(addprefix --calibration ,$(call needs_dump,$(4)))
$(results)/$(1).h5: $(bases) $(call needs_dump,$(4)) $(if $(SHAPE),,$(model_files))
	@mkdir -p $$(@D)
	$$(jct_into)
endef

# Longest input and output of the traces, most requests at once that costs are measured for, and steps of the one job of a method: the lengths are
# those of ZACK Table 3, FDC Table 6, ZDC Table 2 (data/paper).
longest_imdb         := 821 87
longest_arxiv        := 14100 464
longest_cocktail     := 28800 246
longest_humaneval    := 697 552
longest_cocktail-fdc := 104900 246
longest_pg19         := 419 97500
longest_pile         := 19200 1100
longest_sharegpt     := 3200 991
most_imdb         ?= 256
most_humaneval    ?= 256
most_sharegpt     ?= 128
most_pile         ?= 64
most_arxiv        ?= 64
most_cocktail     ?= 32
most_cocktail-fdc ?= 16
most_pg19         ?= 32
most     = $(if $(SHAPE)$(COSTS),$(most_$(1)),4)
costs_of = $(if $(COSTS),$(foreach word,$(1) $(addsuffix -$(1),$(MORE)),$(call here,$(COSTS))/costs-$(word).h5),$(results)/costs-$(1).h5 $(if $(STOCK),$(results)/costs-stock-$(1).h5))
# Names of methods under the stock kernel, as kvdim-serve has them.
at_stock = $(foreach m,$(1),$(shell echo '$(m)' | sed 's/^[^,]*/&@stock/'))

# $(call measure_costs,trace,methods,word of the file's name,further options)
define measure_costs
$(results)/costs-$(3)$(1).h5: OPTIONS := $(addprefix --method ,$(2)) --input-len $(word 1,$(longest_$(1))) --output-len $(word 2,$(longest_$(1))) --batch 1 --max-batch $(call most,$(1)) $(if $(SHAPE),--steps 64) --iterations --repeats $(REPEATS) $(4) $(addprefix --calibration ,$(call needs_dump,$(2)))
$(results)/costs-$(3)$(1).h5: $(bases) $(call needs_dump,$(2)) $(if $(SHAPE),,$(model_files))
	@mkdir -p $$(@D)
	$$(jct_into)
endef

chosen = $(or $(filter-out none,$(METHODS)),$(1))
# $(call serve,trace,methods,options of kvdim-serve): costs at the lengths of a trace, and rates below and beyond what `none` sustains.
define serve
$(if $(COSTS),,$(call measure_costs,$(1),none $(call chosen,$(2))))
$(if $(COSTS),,$(if $(STOCK),$(call measure_costs,$(1),$(call of_rates,$(1),$(STOCK)),stock-,--attention stock)))
inputs += $(results)/serving-$(1).h5
$(results)/serving-$(1).h5: $(call costs_of,$(1)) $(this)/sweep.sh
	@mkdir -p $$(@D)
	SLACK=$(SLACK) ARRIVALS=$(or $(ARRIVALS_$(1)),$(ARRIVALS)) sh $(this)/sweep.sh $(bin)/kvdim-serve $(call list,$(call costs_of,$(1))) $(1) $$@ $(if $(COSTS),$(addprefix --method ,$(METHODS)),$(addprefix --method ,none $(call chosen,$(2)) $(if $(STOCK),$(call at_stock,$(call of_rates,$(1),$(STOCK)))))) --max-batch $(call most,$(1)) $(3) $(SERVE)
endef

# $(call of_rates,trace[,series]): methods of the file $(rates_of) for the shape (without one, of its first) and trace, those of
# the series (default SERIES).
SERIES ?=
rates_of ?= $(CURDIR)/rates.csv
of_rates = $(shell awk -F, -v shape='$(SHAPE)' -v trace='$(1)' -v series='$(or $(2),$(SERIES))' 'NR > 1 && !shape { shape = $$1 } \
  NR > 1 && $$1 == shape && $$2 == trace && index(" " series " ", " " $$3 " ") { split($$0, x, "\""); print x[2] }' $(rates_of))
