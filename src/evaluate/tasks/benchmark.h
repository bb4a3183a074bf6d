/*
 * Items of published benchmarks: a prompt in pieces, references, and how the answer is scored. A
 * source of items fills a kvd_benchmark: benchmark_read.c reads files, ruler.c makes RULER's tasks.
 * benchmark_run.h runs it. Pieces are plain text: kvd_benchmark_run_init puts the text of a chat
 * template around them.
 *
 * The prompt is context + question + answer prefix, joined without anything between them. The cache
 * is compressed at the end of the whole prompt, or at the end of the context; so the context must
 * hold everything that a later question shares.
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_H
#define KVD_EVALUATE_TASKS_BENCHMARK_H

#include <stdbool.h>
#include <stddef.h>

#include "evaluate/tasks/metrics.h"

/* Question of a benchmark item, with its reference answer. */
typedef struct {
    char *question;      /* "" if the context contains the question */
    char *answer_prefix; /* beginning of the answer, which the model is given; "" for none */
    char **reference;    /* [n_references] reference answers, at least one */
    size_t n_references;
} kvd_benchmark_turn;

typedef struct {
    char *id;      /* identifier from the file, or the number of the item in the file */
    char *task;    /* name of the task; the items of one task have one mean score */
    char *context; /* text before the questions; not empty */
    kvd_benchmark_turn *turn;
    size_t n_turns; /* number of questions, at least 1; they follow each other on one cache */
    char **choice;  /* [n_choices] classes of KVD_METRIC_CLASSIFICATION */
    size_t n_choices;
    kvd_metric metric;
    size_t max_new_tokens; /* largest number of tokens of each answer, at least 1 */
    /*
     * Text that ends an answer and is not part of it. If it is "", only the end-of-text token ends
     * an answer. If it is a line feed, line feeds at the beginning of an answer are dropped.
     */
    char *stop;
} kvd_benchmark_item;

/* List of benchmark items. It owns all its strings and arrays. A zeroed list is empty. */
typedef struct {
    kvd_benchmark_item *item;
    size_t n, capacity;
} kvd_benchmark;

/* Appends a zeroed benchmark item and returns it. On failure returns NULL and fills *err. */
kvd_benchmark_item *kvd_benchmark_add(kvd_benchmark *b, kvd_err *err);
/*
 * Appends a zeroed turn (question) to the item last added and returns it. On failure returns NULL
 * and fills *err.
 */
kvd_benchmark_turn *kvd_benchmark_add_turn(kvd_benchmark *b, kvd_err *err);
/* Appends a copy of `text` to the list of `*n` strings, which grows. */
int kvd_benchmark_push(char ***list, size_t *n, const char *text, kvd_err *err);
void kvd_benchmark_release(kvd_benchmark *b);

/* ---- files ---- */

/* Formats of published benchmark files, which have one JSON object per item. */
typedef enum {
    KVD_FORM_AUTO, /* the format is recognised by the fields of each item */
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

/* Largest number of tokens of an answer that an item or --max-new-tokens may ask for. */
enum { KVD_BENCHMARK_MAX_NEW_TOKENS = 1 << 20 };

typedef struct {
    kvd_benchmark_form form;
    int metric;            /* kvd_metric for all items; -1 uses that of the benchmark */
    size_t max_new_tokens; /* largest number of tokens of an answer; 0 uses that of the benchmark */
    const char *stop;      /* text that ends an answer; NULL uses that of the benchmark */
    size_t most;           /* number of items read from one file; 0 reads all */
    size_t shots;          /* number of examples before a question of GSM8K, 0 .. KVD_GSM8K_SHOTS */
} kvd_benchmark_settings;

/*
 * Appends the items of a file: one JSON object per line, or a JSON list of objects if the name ends
 * in .json. Prompts have the words of the benchmark's own code (benchmark_tables.h). Fails with one
 * line that names file, line and, if no form fits, the fields found.
 */
int kvd_benchmark_read(kvd_benchmark *b, const char *path, const kvd_benchmark_settings *s,
                       kvd_err *err);

/*
 * Replaces the metric, answer tokens and stop text of an item by those of the settings. Fails if
 * the prompt is empty or the references do not suit the metric.
 */
int kvd_benchmark_change(kvd_benchmark_item *x, const kvd_benchmark_settings *s, kvd_err *err);

#endif
