/*
 * Items of RULER's synthetic tasks for any tokenizer, length and seed, after scripts/data/synthetic
 * of github.com/NVIDIA/RULER (Hsieh et al. 2024, arXiv 2404.06654), with own random numbers.
 * Departures: docs/tasks.md.
 */
#ifndef KVD_EVALUATE_TASKS_RULER_H
#define KVD_EVALUATE_TASKS_RULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evaluate/tasks/benchmark.h"
#include "model/text/tokenizer.h"

/* Tasks of synthetic.yaml without qa_1 and qa_2; default items per task. */
enum { KVD_N_RULER_TASKS = 11, KVD_RULER_ITEMS = 500 };
/* Names of the tasks as in synthetic.yaml; NULL-terminated. */
extern const char *const kvd_ruler_words[KVD_N_RULER_TASKS + 1];

typedef struct {
    bool task[KVD_N_RULER_TASKS]; /* by kvd_ruler_words */
    size_t length;                /* most tokens of a prompt with its answer */
    size_t items;                 /* per task; 0: KVD_RULER_ITEMS */
    uint64_t seed;
    /* UTF-8 text that hides needles, or NULL. */
    const char *essay;
    /* True if special tokens count. */
    bool special;
    /* True if context and question are tokenized separately. */
    bool context_apart;
} kvd_ruler_settings;

bool kvd_ruler_needs_essay(size_t k);

/*
 * Appends items of chosen tasks: prompt and answer within s->length tokens, one question, `id` from
 * 0. Equal settings give equal items; more keep the first. *changes: metric, answer tokens, stop
 * text. Fails, naming the task, for a too long item or missing essay.
 */
int kvd_ruler_make(kvd_benchmark *b, const kvd_ruler_settings *s,
                   const kvd_benchmark_settings *changes, const kvd_tokenizer *tokenizer,
                   kvd_err *err);

/*
 * Writes JSON lines with RULER's fields and task, whole or not at all. special: counts special
 * tokens.
 */
int kvd_ruler_write(const kvd_benchmark *b, const char *path, const kvd_tokenizer *tokenizer,
                    bool special, kvd_err *err);

#endif
