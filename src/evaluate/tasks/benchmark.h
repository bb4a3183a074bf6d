/* Items of published benchmarks: a context, questions about it, and prefixes of the answers. The
 * cache is compressed after the context, or after the whole prompt. */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_H
#define KVD_EVALUATE_TASKS_BENCHMARK_H

#include <stddef.h>

#include "evaluate/tasks/metrics.h"

typedef struct {
    char *question;      /* "" if the context contains the question */
    char *answer_prefix; /* last part of the prompt, or "" */
    char **reference;    /* [n_references], at least one */
    size_t n_references;
} kvd_benchmark_turn;

typedef struct {
    char *id;   /* from the file, or the item's number in the file */
    char *task; /* scores are averaged for each task */
    char *context;
    kvd_benchmark_turn *turn;
    /* number of questions asked one after the other about the context, at least 1 */
    size_t n_turns;
    char **choice; /* [n_choices] names of classes */
    size_t n_choices;
    kvd_metric metric;
    size_t max_new_tokens; /* limit of each answer's tokens, at least 1 */
    /* text at which an answer ends; if "", only the end-of-text token ends it */
    char *stop;
} kvd_benchmark_item;

/* list of benchmark items (a context with questions); owns all strings; all zeros mean an empty
 * list */
typedef struct {
    kvd_benchmark_item *item;
    size_t n;
} kvd_benchmark;

/* Appends a zeroed item to *b. Returns NULL on failure. */
kvd_benchmark_item *kvd_benchmark_add(kvd_benchmark *b, kvd_err *err);
/* Appends a zeroed question to the last item of *b. Returns NULL on failure. */
kvd_benchmark_turn *kvd_benchmark_add_turn(kvd_benchmark *b, kvd_err *err);
int kvd_benchmark_push(char ***list, size_t *n, const char *text, kvd_err *err);
void kvd_benchmark_release(kvd_benchmark *b);

typedef enum {
    /* find out from the file's JSON fields which benchmark it is */
    KVD_FORM_AUTO,
    KVD_FORM_RULER,
    KVD_FORM_LONGBENCH,
    KVD_FORM_LONGBENCH_V2,
    KVD_FORM_INFINITEBENCH,
    KVD_FORM_GSM8K,
    KVD_FORM_SCBENCH,
    /* RULER items with the field names of the Python package kvpress */
    KVD_FORM_KVPRESS,
    KVD_FORM_GENERAL,
    KVD_N_FORMS
} kvd_benchmark_form;
extern const char *const kvd_benchmark_form_words[KVD_N_FORMS + 1];

/* largest value of max_new_tokens, and largest number of bytes in a task's name */
enum { KVD_BENCHMARK_MAX_NEW_TOKENS = 1 << 20, KVD_BENCHMARK_TASK_BYTES = 100 };

typedef struct {
    kvd_benchmark_form form;
    int metric; /* kvd_metric for all items, or -1 for the benchmark's own */
    /* largest number of answer tokens; 0 means the benchmark's own number */
    size_t max_new_tokens;
    /* text at which an answer ends; NULL means the benchmark's own text */
    const char *stop;
    size_t most; /* number of items to read per file, or 0 for all */
    /* number of solved examples in the prompt before each GSM8K question */
    size_t shots;
} kvd_benchmark_settings;

/* Appends the benchmark items in a file of JSON objects, one per line or all in one list. */
int kvd_benchmark_read(kvd_benchmark *b, const char *path, const kvd_benchmark_settings *s,
                       kvd_err *err);

/* Replaces an item's metric, limit of answer tokens and stop text by those that *s gives. Fails if
 * the metric cannot use the item's right answers. */
int kvd_benchmark_change(kvd_benchmark_item *x, const kvd_benchmark_settings *s, kvd_err *err);

enum { KVD_GSM8K_SHOTS = 8 };

/* Returns the first n of KVD_GSM8K_SHOTS solved examples of GSM8K (arXiv:2201.11903, table 20),
 * each "Q: ...\nA: ...\n\n". The caller frees the text. */
char *kvd_gsm8k_shots(size_t n, kvd_err *err);

#endif
