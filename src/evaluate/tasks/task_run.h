/* Runs the items of every task of kvdim-tasks, first without compression, then with it. */
#ifndef KVD_EVALUATE_TASKS_TASK_RUN_H
#define KVD_EVALUATE_TASKS_TASK_RUN_H

#include <stdbool.h>

#include "common/progress.h"
#include "common/stats.h"
#include "evaluate/tasks/journal.h"
#include "evaluate/tasks/task_items.h"

/* scores of generated text, in the order of kvd_task_measures */
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
    /* true if the measure compares answers with the uncompressed model's answers, false if it
     * compares answers with right answers */
    bool own;
} kvd_task_measure_info;
extern const kvd_task_measure_info kvd_task_measures[KVD_N_FREE_MEASURES];

typedef struct {
    /* [n_items] each measure's value for each item; NULL if the measure's task was not run, NaN for
     * an item without reference */
    double *value[KVD_N_FREE_MEASURES];
    uint32_t *token; /* [n_items][n_new] tokens of task "generate" */
    double seconds;
    /* size of the cache relative to an uncompressed 16-bit cache, mean over decode steps */
    double cache_share;
    /* bytes read per decode step, relative to the size of an uncompressed 16-bit cache */
    double read_share;
    kvd_stepwise_account account;
    bool ran; /* true if all tasks ran, also if the methods changed no cached token */
} kvd_task_result;

typedef struct {
    /* items of each task; n_items is 0 for a task that the user did not ask for */
    kvd_task_items items[KVD_N_FREE_TASKS];
    kvd_task_result reference; /* uncompressed model */
    /* journal (file) that saves generated sequences; borrowed, NULL to save nothing */
    kvd_journal *journal;
    const kvd_config *config;
    /* tokenizer that decodes generated texts to compare them; borrowed, NULL if no texts are
     * compared */
    const kvd_tokenizer *tokenizer;
    kvd_generator *generator;
    /* tokens that the uncompressed model generated in each task */
    uint32_t *token[KVD_N_FREE_TASKS];
    /* class that the uncompressed model chose for each document */
    size_t *choice;
    /* true with --part: this process only generates its part of the items and scores nothing */
    bool part;
} kvd_task_run;

/* Opens the generator and runs the uncompressed model on all items, to compare methods with it.
 * Ignores spec->max_len. Borrows `tokenizer`. Release *f on failure too. */
int kvd_task_run_init(kvd_task_run *f, const kvd_checkpoint *c, const kvd_tokenizer *tokenizer,
                      const kvd_generator_spec *spec, kvd_progress *progress, kvd_err *err);
void kvd_task_run_release(kvd_task_run *f);

/* Returns the number of sequences to generate for each method. */
size_t kvd_task_run_sequences(const kvd_task_run *f);

/* Generates and scores all items with the compression methods of `plan`. `name`: name of this run
 * in f->journal, the file of saved sequences. Fails if a method changed no cached token. Release *r
 * with kvd_task_result_release. */
int kvd_task_run_plan(kvd_task_run *f, const char *name, const kvd_plan *plan, kvd_task_result *r,
                      kvd_progress *progress, kvd_err *err);
void kvd_task_result_release(kvd_task_result *r);

/* Averages n results that differ in the random seed, but adds up their run times. spread[m]:
 * standard deviation of measure m over seeds. *mean must be zeroed; release it with
 * kvd_task_result_release, also on failure. */
int kvd_task_results_mean(const kvd_task_run *f, const kvd_task_result *r, size_t n,
                          kvd_task_result *mean, double spread[KVD_N_FREE_MEASURES], kvd_err *err);

/* *out receives the mean of measure m in *r, with a bootstrap interval over texts. If `less` is not
 * NULL, the mean of m in *less is subtracted. *out is NaN if an item has no value. */
int kvd_task_interval(const kvd_task_run *f, kvd_task_measure m, const kvd_task_result *r,
                      const kvd_task_result *less, uint64_t seed, kvd_interval *out, kvd_err *err);

/* Divides the mean of measure m over all items by the uncompressed model's mean, which must not be
 * 0. *out receives the quotient with a bootstrap interval. */
int kvd_task_share(const kvd_task_run *f, kvd_task_measure m, const kvd_task_result *r,
                   uint64_t seed, kvd_interval *out, kvd_err *err);

#endif
