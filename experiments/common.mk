# Included by every experiments/<name>/Makefile: variables, and the rules that make spectra.
#
#   make -C experiments/<name> MODEL=DIR TEXTS="a.txt b.jsonl" TOKENS=8192
#
# MODEL    checkpoint folder or file                       (default: the demo checkpoint)
# TEXTS    texts; the name without folder and ending is the label (default: the demo texts)
# FIELD_<label>=NAME   key or column of a .jsonl, .json or .csv text
# TOKENS   calibration tokens per text                     (default 8192: every demo text has more)
# SEQ_LEN  longest sequence                                (default 512)
# SEED     of random token ids                             (default 1)
# OUT      results                                         (default results/<model name>)
# BIN      the programs                                    (default build/bin)
# PLOTS=0  report without figures
#
# Relative paths are those of the folder that make was called in. Files that experiments share
# (moments, spectra, studies of tokens) are made once, under OUT/moments, OUT/spectra, OUT/tokens; the name of each says text, tokens,
# sequence length, so changed settings make new files and never mix with old ones.

ROOT    := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)
here     = $(if $(filter /%,$(1)),$(1),$(PWD)/$(1))
# Folder of the results in OUT; an experiment with variants sets `name`.
NAME    := $(or $(name),$(notdir $(CURDIR)))

MODEL   ?= $(ROOT)/data/models/kvdim-6m
TEXTS   ?= $(sort $(wildcard $(ROOT)/data/texts/*.txt))
TOKENS  ?= 8192
SEQ_LEN ?= 512
SEED    ?= 1
BIN     ?= $(ROOT)/build/bin
OUT     ?= $(ROOT)/results/$(notdir $(model))
PLOTS   ?= 1
PAIRS   ?= qk,vw,k,v,wv,bqk,bvw

model   := $(patsubst %/,%,$(call here,$(MODEL)))
texts   := $(foreach t,$(TEXTS),$(call here,$(t)))
out     := $(call here,$(OUT))
bin     := $(call here,$(BIN))
results := $(out)/$(NAME)
# Prefix of a recipe line: prints how long the command took and which file it made.
step     = @sh $(ROOT)/experiments/step.sh $@
model_files := $(or $(wildcard $(model)/*),$(model))

label_of  = $(basename $(notdir $(1)))
labels   := $(foreach t,$(texts),$(call label_of,$(t)))
text_of   = $(firstword $(foreach t,$(texts),$(if $(filter $(1),$(call label_of,$(t))),$(t))))
field_of  = $(if $(FIELD_$(1)),--field $(FIELD_$(1)))

ifneq ($(words $(labels)),$(words $(sort $(labels))))
$(error two texts have the same label: $(labels))
endif
ifeq ($(filter random,$(labels)),random)
$(error a text must not be called random, which names random token ids)
endif

tag       = $(1)-t$(2)-s$(SEQ_LEN)
moments   = $(out)/moments/$(call tag,$(1),$(2)).h5
spectrum  = $(out)/spectra/$(call tag,$(1),$(2)).h5

ifeq ($(wildcard $(bin)/kvdim-collect),)
$(error no programs in $(bin): run make in $(ROOT) first, or give BIN=)
endif

.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := report
.PHONY: report clean

# $(call calibrate,label,tokens): rules for moments and spectrum of a text, or of random token ids; once each.
define calibrate
ifeq ($$(filter $(call tag,$(1),$(2)),$$(calibrated)),)
calibrated += $(call tag,$(1),$(2))
$(call moments,$(1),$(2)): $(if $(filter random,$(1)),,$(call text_of,$(1))) $(model_files)
	@mkdir -p $$(@D)
	$$(step) $(bin)/kvdim-collect $(model) $(if $(filter random,$(1)),--random $(2) --seed $(SEED),--text $(call text_of,$(1)) $(call field_of,$(1)) --tokens $(2)) --seq-len $(SEQ_LEN) --label $(1) --moments -q -o $$@
$(call spectrum,$(1),$(2)): $(call moments,$(1),$(2))
	@mkdir -p $$(@D)
	$$(step) $(bin)/kvdim-spectrum $$< --pair $(PAIRS) --label $(1) -q -o $$@
endif
endef

# $(call study_tokens,label): attention statistics of REQUESTS sequences of a text, all kept token by token, and their study. Once each.
REQUESTS ?= 16
tokens    = $(out)/tokens/$(1)-r$(REQUESTS)-s$(SEQ_LEN).h5
define study_tokens
$(call tokens,$(1)): $(call text_of,$(1)) $(model_files)
	@mkdir -p $$(@D)
	$$(step) $(bin)/kvdim-collect $(model) --text $(call text_of,$(1)) $(call field_of,$(1)) --tokens $(shell expr $(REQUESTS) \* $(SEQ_LEN)) --seq-len $(SEQ_LEN) --label $(1) --attention --attention-requests $(REQUESTS) -q -o $$(@:.h5=.attention)
	$$(step) $(bin)/kvdim-tokens $$(@:.h5=.attention) -q -o $$@
endef

# The report of an experiment reads exactly the files in $(inputs), which the experiment sets, as it may set $(report_options).
report: $(results)/report/index.html

ifneq ($(NAME),experiments)
.SECONDEXPANSION:
$(results)/report/index.html: $$(inputs) $(wildcard $(ROOT)/plots/*.gp) $(wildcard $(ROOT)/data/paper/*.csv)
	@mkdir -p $(@D)
	$(step) $(bin)/kvdim-report $(inputs) $(report_options) $(if $(filter 0,$(PLOTS)),--no-plots) -q -o $(@D)

endif

clean:
	rm -rf $(results)
