/* Runs the items of every task, first without compression and then with compressed caches. */
#ifndef KVD_EVALUATE_TASKS_TASK_RUN_H
#define KVD_EVALUATE_TASKS_TASK_RUN_H

#include <stdbool.h>

#include "common/progress.h"
#include "common/stats.h"
#include "evaluate/tasks/journal.h"
#include "evaluate/tasks/task_items.h"

/* Measures of tasks, in the order of kvd_task_measures. */
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
     * True if a measure compares with the uncompressed model's output, false if with right answers.
     */
    bool own;
} kvd_task_measure_info;
extern const kvd_task_measure_info kvd_task_measures[KVD_N_FREE_MEASURES];

typedef struct {
    /*
     * [n_items] Value of each measure for each item. NULL if the task was not run. NaN if there is
     * no reference text or tokenizer.
     */
    double *value[KVD_N_FREE_MEASURES];
    uint32_t *token; /* [n_items][n_new] tokens of task "generate" */
    double seconds;
    /* Size of the cache divided by that of a 16-bit cache, mean over decode steps. */
    double cache_share;
    /* Bytes that a decode step reads, divided by the size of a 16-bit cache. */
    double read_share;
    kvd_stepwise_account account;
} kvd_task_result;

typedef struct {
    /* Items of each task. If a task is not wanted, its n_items is 0. */
    kvd_task_items items[KVD_N_FREE_TASKS];
    kvd_task_result reference; /* uncompressed model */
    /*
     * Journal that saves generated sequences, borrowed and set by the caller; NULL to save nothing.
     */
    kvd_journal *journal;
    /* Private fields follow. */
    const kvd_config *config;
    /* Tokenizer, borrowed; NULL if generated texts are not compared. */
    const kvd_tokenizer *tokenizer;
    kvd_generator *generator;
    /* Tokens that the uncompressed model generated in each task. */
    uint32_t *token[KVD_N_FREE_TASKS];
    /* Class that the uncompressed model chose for each document. */
    size_t *choice;
    /* True if --part limits this process to a share of the items, which it only generates. */
    bool part;
} kvd_task_run;

/*
 * Runs the uncompressed model and sets spec->max_len. The tokenizer must outlive *f, which can be
 * released after a failure.
 */
int kvd_task_run_init(kvd_task_run *f, const kvd_checkpoint *c, const kvd_tokenizer *tokenizer,
                      const kvd_generator_spec *spec, kvd_progress *progress, kvd_err *err);
void kvd_task_run_release(kvd_task_run *f);

/* Returns the number of sequences that are generated for each method. */
size_t kvd_task_run_sequences(const kvd_task_run *f);

/*
 * Generates and scores all items with the cache compressed by the methods of `plan`. `name` is its
 * name in the journal. Fails if the counted bytes show no compression. *r is zeroed or of an
 * earlier call, and released with kvd_task_result_release.
 */
int kvd_task_run_plan(kvd_task_run *f, const char *name, const kvd_plan *plan, kvd_task_result *r,
                      kvd_progress *progress, kvd_err *err);
void kvd_task_result_release(kvd_task_result *r);

/*
 * Computes means per item over n results of different seeds, and sums of seconds. spread[m] is the
 * standard deviation over seeds. The caller releases zeroed *mean, also after a failure.
 */
int kvd_task_results_mean(const kvd_task_run *f, const kvd_task_result *r, size_t n,
                          kvd_task_result *mean, double spread[KVD_N_FREE_MEASURES], kvd_err *err);

/*
 * Computes the mean of measure m in *r, minus that of *less unless NULL, with an interval by a
 * bootstrap over texts. NaN if an item has no value.
 */
int kvd_task_interval(const kvd_task_run *f, kvd_task_measure m, const kvd_task_result *r,
                      const kvd_task_result *less, uint64_t seed, kvd_interval *out, kvd_err *err);

/*
 * Computes the mean of measure m divided by that of the uncompressed model, with a bootstrap
 * interval that resamples the same texts for both. Fails if the uncompressed model's mean is 0.
 */
int kvd_task_share(const kvd_task_run *f, kvd_task_measure m, const kvd_task_result *r,
                   uint64_t seed, kvd_interval *out, kvd_err *err);

#endif
