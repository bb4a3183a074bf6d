/*
 * Evaluates a model that generates text: runs the test items of every task (task_items.h) with the
 * uncompressed cache once and with every compressed cache, from which K and V of past tokens are
 * read as they were stored. Computes the measures of every item.
 */
#ifndef KVD_EVALUATE_TASKS_TASK_RUN_H
#define KVD_EVALUATE_TASKS_TASK_RUN_H

#include <stdbool.h>

#include "common/progress.h"
#include "common/stats.h"
#include "evaluate/tasks/journal.h"
#include "evaluate/tasks/task_items.h"

/* Measures that the tasks give for every item, in the order of kvd_task_measures. */
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
     * True if the measure compares the output with that of the uncompressed model. False if it
     * compares the output with the right answer in the data; the change of the measure from the
     * uncompressed model is then reported too.
     */
    bool own;
} kvd_task_measure_info;
extern const kvd_task_measure_info kvd_task_measures[KVD_N_FREE_MEASURES];

/* Results of all tasks with one compression setting. */
typedef struct {
    /*
     * Values of each measure, one per item of the measure's task. NULL if that task was not run.
     * NaN if the measure compares texts and the item has no reference text, or the run has no
     * tokenizer.
     */
    double *value[KVD_N_FREE_MEASURES];
    /* Generated tokens of task generate: [n_items][n_new]. */
    uint32_t *token;
    double seconds;
    /*
     * Bytes in the cache / bytes of an uncompressed 16-bit cache, mean over all decode steps. NaN
     * if there are no steps.
     */
    double cache_share;
    /*
     * Bytes that a decode step reads / bytes of an uncompressed 16-bit cache, mean over all steps.
     */
    double read_share;
    kvd_stepwise_account account;
} kvd_task_result;

typedef struct {
    /* Items of each task; n_items is 0 if the task is not wanted. */
    kvd_task_items items[KVD_N_FREE_TASKS];
    kvd_task_result reference; /* results of the uncompressed model */
    /*
     * Journal that saves finished sequences, borrowed, set by the caller; NULL if nothing is saved.
     */
    kvd_journal *journal;
    /* Private fields follow. */
    const kvd_config *config;
    /* Tokenizer, borrowed; NULL if generated texts are not compared. */
    const kvd_tokenizer *tokenizer;
    kvd_generator *generator;
    /* Tokens that the uncompressed model generated, for each task. */
    uint32_t *token[KVD_N_FREE_TASKS];
    /* Class that the uncompressed model chose for each item of task classify. */
    size_t *choice;
    /*
     * True if several processes share the items (--part). This process then only generates its own
     * items and saves them in its journal; it scores nothing.
     */
    bool part;
} kvd_task_run;

/*
 * Prepares *f, whose items the caller has filled, and runs the uncompressed model. `spec` describes
 * the generator; its max_len is set from the items. The tokenizer must outlive *f. *f can be
 * released after a failure too.
 */
int kvd_task_run_init(kvd_task_run *f, const kvd_checkpoint *c, const kvd_tokenizer *tokenizer,
                      const kvd_generator_spec *spec, kvd_progress *progress, kvd_err *err);
void kvd_task_run_release(kvd_task_run *f);

/* Returns the number of sequences that one compression setting runs, for progress reports. */
size_t kvd_task_run_sequences(const kvd_task_run *f);

/*
 * Runs all items with a cache that compresses as the open plan *plan says. `name` identifies the
 * compression setting in the journal (file of finished sequences). With --part, several processes
 * share the items: this one then only generates its own and saves them in its journal.
 *
 * Fails if the counted cache sizes do not show that the plan compressed something
 * (kvd_cache_check_steps). *r must be zeroed or of the same tasks. The caller releases *r with
 * kvd_task_result_release.
 */
int kvd_task_run_plan(kvd_task_run *f, const char *name, const kvd_plan *plan, kvd_task_result *r,
                      kvd_progress *progress, kvd_err *err);
void kvd_task_result_release(kvd_task_result *r);

/*
 * Averages the results of n random seeds: every item of *mean has the mean of its n values, so that
 * confidence intervals describe the average over seeds. *mean must be zeroed. Seconds are added up.
 * For spread[m], measure m is averaged over the items for each seed; spread[m] is the standard
 * deviation of these n averages. The caller releases *mean, also after a failure.
 */
int kvd_task_results_mean(const kvd_task_run *f, const kvd_task_result *r, size_t n,
                          kvd_task_result *mean, double spread[KVD_N_FREE_MEASURES], kvd_err *err);

/*
 * Computes the mean over items of a measure or, if `less` is not NULL, of its differences from
 * another result, with a bootstrap interval over clusters of items. The result is NaN if an item
 * has no value.
 */
int kvd_task_interval(const kvd_task_run *f, kvd_task_measure m, const kvd_task_result *r,
                      const kvd_task_result *less, uint64_t seed, kvd_interval *out, kvd_err *err);

#endif
