/*
 * Free-running evaluation: runs the items of every task (task_items.h) through the uncompressed
 * model once and through the cache of every plan, with K and V of past tokens as the plan stored
 * them, and computes the measures of every item.
 */
#ifndef KVD_EVALUATE_TASKS_TASK_RUN_H
#define KVD_EVALUATE_TASKS_TASK_RUN_H

#include <stdbool.h>

#include "common/progress.h"
#include "common/stats.h"
#include "evaluate/tasks/journal.h"
#include "evaluate/tasks/task_items.h"

/* Measures that every item of a task has, in the order of kvd_task_measures. */
typedef enum {
    KVD_TASK_ROUGE1,
    KVD_TASK_ROUGE1_PRECISION,
    KVD_TASK_ROUGE1_RECALL,
    KVD_TASK_EDIT_SIMILARITY,
    KVD_TASK_EXACT,
    KVD_TASK_AGREE_PREFIX,
    KVD_TASK_REFERENCE_ROUGE1,
    KVD_TASK_REFERENCE_EDIT_SIMILARITY,
    KVD_TASK_NEEDLE_EXACT,
    KVD_TASK_NEEDLE_PREFIX,
    KVD_TASK_NEEDLE_NLL,
    KVD_TASK_NEEDLE_RANK,
    KVD_TASK_NEEDLE_AGREE,
    KVD_TASK_CLASS_CORRECT,
    KVD_TASK_CLASS_AGREE,
    KVD_N_FREE_MEASURES
} kvd_task_measure;

typedef struct {
    kvd_task_task task;
    const char *name, *units, *long_name;
    /*
     * True if the measure compares with the output of the uncompressed model. False if it compares
     * with the data; its change from the uncompressed model is then measured too.
     */
    bool own;
} kvd_task_measure_info;
extern const kvd_task_measure_info kvd_task_measures[KVD_N_FREE_MEASURES];

/* Results of all tasks under one cache plan. */
typedef struct {
    /* [n_items of the task]; NULL if the task was not run; NaN if the item has no text */
    double *value[KVD_N_FREE_MEASURES];
    uint32_t *token; /* task generate: [n_items][n_new] generated tokens */
    double seconds;
    /*
     * Bytes that the cache held, relative to an uncompressed 16-bit cache: the mean over all steps;
     * NaN if there are no steps.
     */
    double cache_share;
    /*
     * bytes that decode steps read, as a share of those of an uncompressed 16-bit cache: mean over
     * steps
     */
    double read_share;
    kvd_stepwise_account account;
} kvd_task_result;

typedef struct {
    /* items of each task; n_items is 0 if the task is not wanted */
    kvd_task_items items[KVD_N_FREE_TASKS];
    kvd_task_result reference; /* results of the uncompressed model */
    /* journal of finished sequences, borrowed, set by the caller; NULL if nothing is saved */
    kvd_journal *journal;
    /* private */
    const kvd_config *config;
    const kvd_tokenizer *tokenizer; /* borrowed; NULL if texts are not compared */
    kvd_generator *generator;
    /* tokens that the uncompressed model generated, for each task */
    uint32_t *token[KVD_N_FREE_TASKS];
    /* task classify: [n_items] class that the uncompressed model chose */
    size_t *choice;
    /* true if only one part of the items is generated, for the journal, and nothing is scored */
    bool part;
} kvd_task_run;

/*
 * Prepares *f, whose items the caller has filled, and runs the uncompressed model. `spec` describes
 * the generator; its max_len follows from the items. The tokenizer is borrowed. *f can be released
 * after a failure too.
 */
int kvd_task_run_init(kvd_task_run *f, const kvd_checkpoint *c, const kvd_tokenizer *tokenizer,
                      const kvd_generator_spec *spec, kvd_progress *progress, kvd_err *err);
void kvd_task_run_release(kvd_task_run *f);

/* Returns the number of sequences that one plan runs, for progress. */
size_t kvd_task_run_sequences(const kvd_task_run *f);

/*
 * Runs all items with the cache of a plan, which must be open. `name` is the name of the plan in
 * the journal. If the generator has one part of several, only generates that part, for the journal.
 * Fails if the account does not show that the plan did something (kvd_cache_check_steps). *r must
 * be zeroed or of the same tasks; release it with kvd_task_result_release.
 */
int kvd_task_run_plan(kvd_task_run *f, const char *name, const kvd_plan *plan, kvd_task_result *r,
                      kvd_progress *progress, kvd_err *err);
void kvd_task_result_release(kvd_task_result *r);

/*
 * Fills *mean, which must be zeroed, with the means over the results of n seeds, item by item, so
 * that intervals describe the average over seeds. Seconds are added. `spread` receives the standard
 * deviations over seeds of the means over items. The caller releases *mean, also after a failure.
 */
int kvd_task_results_mean(const kvd_task_run *f, const kvd_task_result *r, size_t n,
                          kvd_task_result *mean, double spread[KVD_N_FREE_MEASURES], kvd_err *err);

/*
 * Computes the mean over items of a measure or, if `less` is not NULL, of its differences from
 * another result, with a bootstrap interval over clusters. The result is NaN if an item has no
 * value.
 */
int kvd_task_interval(const kvd_task_run *f, kvd_task_measure m, const kvd_task_result *r,
                      const kvd_task_result *less, uint64_t seed, kvd_interval *out, kvd_err *err);

#endif
