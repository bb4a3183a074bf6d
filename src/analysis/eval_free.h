/* What the command line of kvdim-eval says about free-running, as items. */
#ifndef KVD_ANALYSIS_EVAL_FREE_H
#define KVD_ANALYSIS_EVAL_FREE_H

#include "analysis/eval_options.h"
#include "analysis/free_run.h"

/* Fills the items of f, which is zeroed. tok may be NULL for --generate alone: then tokens are compared, and no texts. */
int kvd_eval_free_items(const kvd_eval_options *cfg, kvd_corpus *corpus, const kvd_tokenizer *tok,
                        uint64_t seed, kvd_free_run *f, kvd_err *err);

#endif
