/*
 * Test items of published benchmarks. The prompt is context + question + answer prefix, joined
 * without anything between them. The cache is compressed when the model has read the prompt or, if
 * so chosen, the context. Therefore the context must hold everything that later questions share.
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_H
#define KVD_EVALUATE_TASKS_BENCHMARK_H

#include <stdbool.h>
#include <stddef.h>

#include "evaluate/tasks/metrics.h"

typedef struct {
    char *question;      /* "" if the context contains it */
    char *answer_prefix; /* beginning of the answer, part of the prompt; "" for none */
    char **reference;    /* at least one: [n_references] */
    size_t n_references;
} kvd_benchmark_turn;

typedef struct {
    char *id;      /* identifier from the file, or number of the item in the file */
    char *task;    /* scores are averaged per task */
    char *context; /* not empty */
    kvd_benchmark_turn *turn;
    /* Questions that are asked one after another on one cache; at least 1. */
    size_t n_turns;
    char **choice; /* class names of a classification: [n_choices] */
    size_t n_choices;
    kvd_metric metric;
    size_t max_new_tokens; /* per answer, at least 1 */
    /*
     * Text that ends an answer and is not part of it; "" if only the end-of-text token does. If
     * `stop` is a line feed, line feeds at the beginning of an answer are dropped.
     */
    char *stop;
} kvd_benchmark_item;

/* List of items, which owns all its strings and arrays. A zeroed list is empty. */
typedef struct {
    kvd_benchmark_item *item;
    size_t n, capacity;
} kvd_benchmark;

/*
 * kvd_benchmark_add appends a zeroed item to the list. kvd_benchmark_add_turn appends a zeroed
 * question to the last item. Both return what they appended. On failure they return NULL and fill
 * *err.
 */
kvd_benchmark_item *kvd_benchmark_add(kvd_benchmark *b, kvd_err *err);
/* Appends an empty turn (a question) to the item that was added last. */
kvd_benchmark_turn *kvd_benchmark_add_turn(kvd_benchmark *b, kvd_err *err);
/* Appends a copy of `text` to a list of *n strings, which is reallocated. */
int kvd_benchmark_push(char ***list, size_t *n, const char *text, kvd_err *err);
void kvd_benchmark_release(kvd_benchmark *b);

typedef enum {
    /* The benchmark to which a file belongs is recognised by the fields of its objects. */
    KVD_FORM_AUTO,
    KVD_FORM_RULER,
    KVD_FORM_LONGBENCH,
    KVD_FORM_LONGBENCH_V2,
    KVD_FORM_INFINITEBENCH,
    KVD_FORM_GSM8K,
    KVD_FORM_SCBENCH,
    /*
     * RULER's items in the columns of kvpress, whose answer prefix begins on a new line if there is
     * no chat template.
     */
    KVD_FORM_KVPRESS,
    KVD_FORM_GENERAL,
    KVD_N_FORMS
} kvd_benchmark_form;
extern const char *const kvd_benchmark_form_words[KVD_N_FORMS + 1];

/* Upper limits of max_new_tokens and of the length of a task's name. */
enum { KVD_BENCHMARK_MAX_NEW_TOKENS = 1 << 20, KVD_BENCHMARK_TASK_BYTES = 100 };

typedef struct {
    kvd_benchmark_form form;
    /* kvd_metric of all items; -1: the benchmark's own metric. */
    int metric;
    /* Largest number of tokens of an answer; 0: the benchmark's own number. */
    size_t max_new_tokens;
    /* Text that ends an answer; NULL: the benchmark's own text. */
    const char *stop;
    size_t most; /* number of items to read from one file; 0: all items */
    /* Number of solved examples before a question of GSM8K, 0 .. KVD_GSM8K_SHOTS. */
    size_t shots;
} kvd_benchmark_settings;

/*
 * Appends the items of a file: one JSON object per line, or a list if the name ends in .json. The
 * error names file and line. If the fields of an object fit none of the forms (kvd_benchmark_form),
 * it also names these fields.
 */
int kvd_benchmark_read(kvd_benchmark *b, const char *path, const kvd_benchmark_settings *s,
                       kvd_err *err);

/*
 * Replaces the metric, number of answer tokens and stop text of an item by those of the settings.
 * Fails if the prompt is empty or the reference answers do not suit the metric.
 */
int kvd_benchmark_change(kvd_benchmark_item *x, const kvd_benchmark_settings *s, kvd_err *err);

#endif
