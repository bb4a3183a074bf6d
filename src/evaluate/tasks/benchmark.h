/*
 * Items of published benchmarks. Prompt: context + question + answer prefix. The cache is
 * compressed after the prompt, or the context, which later questions share.
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_H
#define KVD_EVALUATE_TASKS_BENCHMARK_H

#include <stdbool.h>
#include <stddef.h>

#include "evaluate/tasks/metrics.h"

typedef struct {
    char *question;      /* "" if the context contains it */
    char *answer_prefix; /* last part of the prompt; "" for none */
    char **reference;    /* [n_references], at least one */
    size_t n_references;
} kvd_benchmark_turn;

typedef struct {
    char *id;   /* from the file, or the item's number in it */
    char *task; /* scores are averaged per task */
    char *context;
    kvd_benchmark_turn *turn;
    /* Questions asked in turn on one cache; at least 1. */
    size_t n_turns;
    char **choice; /* [n_choices] class names */
    size_t n_choices;
    kvd_metric metric;
    size_t max_new_tokens; /* per answer, at least 1 */
    /* Ends an answer; "": only the end-of-text token. A line feed drops leading line feeds. */
    char *stop;
} kvd_benchmark_item;

/* Owns all strings and arrays. A zeroed list is empty. */
typedef struct {
    kvd_benchmark_item *item;
    size_t n, capacity;
} kvd_benchmark;

/* Append a zeroed item, or a zeroed question of the last item. NULL on failure. */
kvd_benchmark_item *kvd_benchmark_add(kvd_benchmark *b, kvd_err *err);
kvd_benchmark_turn *kvd_benchmark_add_turn(kvd_benchmark *b, kvd_err *err);
/* Appends a copy of `text` to *list of *n strings. */
int kvd_benchmark_push(char ***list, size_t *n, const char *text, kvd_err *err);
void kvd_benchmark_release(kvd_benchmark *b);

typedef enum {
    /* Recognised by the fields of the objects. */
    KVD_FORM_AUTO,
    KVD_FORM_RULER,
    KVD_FORM_LONGBENCH,
    KVD_FORM_LONGBENCH_V2,
    KVD_FORM_INFINITEBENCH,
    KVD_FORM_GSM8K,
    KVD_FORM_SCBENCH,
    /* RULER in kvpress's columns. */
    KVD_FORM_KVPRESS,
    KVD_FORM_GENERAL,
    KVD_N_FORMS
} kvd_benchmark_form;
extern const char *const kvd_benchmark_form_words[KVD_N_FORMS + 1];

/* Limits of max_new_tokens and of a task name's bytes. */
enum { KVD_BENCHMARK_MAX_NEW_TOKENS = 1 << 20, KVD_BENCHMARK_TASK_BYTES = 100 };

typedef struct {
    kvd_benchmark_form form;
    /* kvd_metric of all items; -1: the benchmark's own. */
    int metric;
    /* Most answer tokens; 0: the benchmark's. */
    size_t max_new_tokens;
    /* Ends an answer; NULL: the benchmark's own text. */
    const char *stop;
    size_t most; /* items to read per file; 0: all */
    /* Solved examples before a GSM8K question, 0 .. KVD_GSM8K_SHOTS. */
    size_t shots;
} kvd_benchmark_settings;

/*
 * Appends items: JSON objects, one per line, or a list (.json). Errors name file, line and unknown
 * fields.
 */
int kvd_benchmark_read(kvd_benchmark *b, const char *path, const kvd_benchmark_settings *s,
                       kvd_err *err);

/*
 * Replaces metric, answer tokens and stop text. Fails for an empty prompt or unsuitable references.
 */
int kvd_benchmark_change(kvd_benchmark_item *x, const kvd_benchmark_settings *s, kvd_err *err);

#endif
