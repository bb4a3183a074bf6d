/*
 * Test items of published benchmarks: a prompt in parts, reference answers, and how the answer is
 * scored. benchmark_read.c reads items from files, ruler.c generates those of RULER.
 * benchmark_run.h runs them. The parts are plain text; kvd_benchmark_run_init puts the text of a
 * chat template around them.
 *
 * The prompt is context + question + answer prefix, joined without anything between them. The cache
 * is compressed at the end of the whole prompt, or at the end of the context. The context must
 * therefore hold everything that later questions share.
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_H
#define KVD_EVALUATE_TASKS_BENCHMARK_H

#include <stdbool.h>
#include <stddef.h>

#include "evaluate/tasks/metrics.h"

/* Question of a benchmark item, with its reference answers. */
typedef struct {
    char *question;      /* text of the question; "" if the context contains it */
    char *answer_prefix; /* beginning of the answer, part of the prompt; "" for none */
    char **reference;    /* reference answers, at least one: [n_references] */
    size_t n_references;
} kvd_benchmark_turn;

typedef struct {
    char *id;      /* identifier from the file, or number of the item in the file */
    char *task;    /* name of the task; scores are averaged per task */
    char *context; /* text before the questions; not empty */
    kvd_benchmark_turn *turn;
    /* Number of questions, at least 1. They follow each other on one cache. */
    size_t n_turns;
    char **choice; /* class names of a classification: [n_choices] */
    size_t n_choices;
    kvd_metric metric;
    /* Largest number of tokens of each generated answer, at least 1. */
    size_t max_new_tokens;
    /*
     * Text that ends an answer and is not part of it. If it is "", only the end-of-text token ends
     * an answer. If it is a line feed, line feeds at the beginning of an answer are dropped.
     */
    char *stop;
} kvd_benchmark_item;

/* List of benchmark items, which owns all its strings and arrays. A zeroed list is empty. */
typedef struct {
    kvd_benchmark_item *item;
    size_t n, capacity;
} kvd_benchmark;

/* Appends a zeroed benchmark item and returns it. On failure returns NULL and fills *err. */
kvd_benchmark_item *kvd_benchmark_add(kvd_benchmark *b, kvd_err *err);
/*
 * Appends a zeroed question to the benchmark item added last and returns it. On failure returns
 * NULL and fills *err.
 */
kvd_benchmark_turn *kvd_benchmark_add_turn(kvd_benchmark *b, kvd_err *err);
/* Appends a copy of `text` to a list of *n strings, which is reallocated. */
int kvd_benchmark_push(char ***list, size_t *n, const char *text, kvd_err *err);
void kvd_benchmark_release(kvd_benchmark *b);

/* ---- reading of benchmark files ---- */

/* File formats of published benchmarks, with one JSON object per item. */
typedef enum {
    /* The format is recognised by the fields of each JSON object. */
    KVD_FORM_AUTO,
    KVD_FORM_RULER,
    KVD_FORM_LONGBENCH,
    KVD_FORM_LONGBENCH_V2,
    KVD_FORM_INFINITEBENCH,
    KVD_FORM_GSM8K,
    KVD_FORM_SCBENCH,
    KVD_FORM_GENERAL,
    KVD_N_FORMS
} kvd_benchmark_form;
extern const char *const kvd_benchmark_form_words[KVD_N_FORMS + 1];

/* Upper limit of the number of tokens of an answer that an item or --max-new-tokens may ask for. */
enum { KVD_BENCHMARK_MAX_NEW_TOKENS = 1 << 20 };

typedef struct {
    kvd_benchmark_form form;
    /*
     * Metric (kvd_metric) to use for all items instead of the one that the benchmark defines; -1
     * keeps the benchmark's.
     */
    int metric;
    /* Largest number of tokens of an answer; 0 means the limit that the benchmark defines. */
    size_t max_new_tokens;
    /* Text that ends an answer; NULL means the text that the benchmark defines. */
    const char *stop;
    size_t most; /* number of items read from one file; 0 reads all */
    /* Number of solved examples before a question of GSM8K, 0 .. KVD_GSM8K_SHOTS. */
    size_t shots;
} kvd_benchmark_settings;

/*
 * Appends the items of a benchmark file: one JSON object per line, or a JSON list of objects if the
 * name ends in .json. Prompts have the words of the benchmark's own code (benchmark_tables.h).
 * Fails with a message that names file, line and, if no format fits, the fields found.
 */
int kvd_benchmark_read(kvd_benchmark *b, const char *path, const kvd_benchmark_settings *s,
                       kvd_err *err);

/*
 * Replaces the metric, number of answer tokens and stop text of an item by those of the settings.
 * Fails if the prompt is empty or the reference answers do not suit the metric.
 */
int kvd_benchmark_change(kvd_benchmark_item *x, const kvd_benchmark_settings *s, kvd_err *err);

#endif
