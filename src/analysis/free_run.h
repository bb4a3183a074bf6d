/*
 * Free-running evaluation: the items of every task (free_items.h) through the uncompressed model once and through the cache of every plan, with
 * K and V of past tokens as the plan stored them, and what comes of it, item by item.
 */
#ifndef KVD_ANALYSIS_FREE_RUN_H
#define KVD_ANALYSIS_FREE_RUN_H

#include <stdbool.h>

#include "analysis/free_items.h"
#include "common/progress.h"
#include "common/stats.h"

/* Numbers per item, in the order of kvd_free_measures. */
typedef enum {
    KVD_FREE_ROUGE1,
    KVD_FREE_ROUGE1_PRECISION,
    KVD_FREE_ROUGE1_RECALL,
    KVD_FREE_EDIT_SIMILARITY,
    KVD_FREE_EXACT,
    KVD_FREE_AGREE_PREFIX,
    KVD_FREE_REFERENCE_ROUGE1,
    KVD_FREE_REFERENCE_EDIT_SIMILARITY,
    KVD_FREE_NEEDLE_EXACT,
    KVD_FREE_NEEDLE_PREFIX,
    KVD_FREE_NEEDLE_NLL,
    KVD_FREE_NEEDLE_RANK,
    KVD_FREE_NEEDLE_AGREE,
    KVD_FREE_CLASS_CORRECT,
    KVD_FREE_CLASS_AGREE,
    KVD_N_FREE_MEASURES
} kvd_free_measure;

typedef struct {
    kvd_free_task task;
    const char *name, *units, *long_name;
    bool
        own; /* against the uncompressed model's output; else against the data, so that the change from that model is measured too */
} kvd_free_measure_info;
extern const kvd_free_measure_info kvd_free_measures[KVD_N_FREE_MEASURES];

/* What came of one plan. */
typedef struct {
    double *value
        [KVD_N_FREE_MEASURES]; /* [n_items of the task]; NULL: the task was not run, NaN: there is no text */
    uint32_t *token; /* of generate: [n_items][n_new]                                              */
    double seconds;
    double
        cache_share; /* what the cache held over an uncompressed 16-bit one, mean over all steps; NaN without steps */
    kvd_stepwise_account account;
} kvd_free_result;

typedef struct {
    kvd_free_items items[KVD_N_FREE_TASKS]; /* n_items 0: the task is not wanted */
    kvd_free_result reference;              /* of the uncompressed model         */
    /* private */
    const kvd_config *config;
    const kvd_tokenizer *tokenizer; /* NULL: texts are not compared */
    kvd_generator *generator;
    uint32_t *token[KVD_N_FREE_TASKS]; /* of the uncompressed model */
    size_t *choice;                    /* [n_items] of classify: its class */
} kvd_free_run;

/*
 * items have been filled; the rest is made, and the uncompressed model is run. max_tokens as kvd_generator_new. The tokenizer
 * is borrowed. Safe to release afterwards, whatever it returned.
 */
int kvd_free_run_init(kvd_free_run *f, const kvd_checkpoint *c, const kvd_tokenizer *tokenizer,
                      size_t max_tokens, kvd_progress *progress, kvd_err *err);
void kvd_free_run_release(kvd_free_run *f);

/* Sequences that one plan runs through, for progress. */
size_t kvd_free_run_sequences(const kvd_free_run *f);

/*
 * Everything through the cache of a plan, which is open. Fails when the account does not show that the plan did something
 * (kvd_cache_check_steps). *r is zeroed or of the same tasks; kvd_free_result_release.
 */
int kvd_free_run_plan(kvd_free_run *f, const kvd_plan *plan, kvd_free_result *r, kvd_progress *progress,
                      kvd_err *err);
void kvd_free_result_release(kvd_free_result *r);

/*
 * The mean over items of a measure, or, less not NULL, of its differences from another result's, with its interval by bootstrap over
 * clusters. NaN where an item has none.
 */
int kvd_free_interval(const kvd_free_run *f, kvd_free_measure m, const kvd_free_result *r,
                      const kvd_free_result *less, uint64_t seed, kvd_interval *out, kvd_err *err);

#endif
