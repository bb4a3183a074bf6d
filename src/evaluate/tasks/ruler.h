/*
 * Items of RULER's synthetic tasks, after scripts/data/synthetic of github.com/NVIDIA/RULER (Hsieh
 * et al. 2024, arXiv 2404.06654), but with other random numbers. docs/tasks.md lists all
 * differences.
 */
#ifndef KVD_EVALUATE_TASKS_RULER_H
#define KVD_EVALUATE_TASKS_RULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evaluate/tasks/benchmark.h"
#include "model/text/tokenizer.h"

/* Number of tasks in synthetic.yaml without qa_1 and qa_2, and default number of items per task. */
enum { KVD_N_RULER_TASKS = 11, KVD_RULER_ITEMS = 500 };
/* Names of RULER's tasks as in synthetic.yaml, ended by NULL. */
extern const char *const kvd_ruler_words[KVD_N_RULER_TASKS + 1];

typedef struct {
    bool task[KVD_N_RULER_TASKS]; /* selected tasks, in the order of kvd_ruler_words */
    size_t length;                /* limit of a prompt's tokens with its answer */
    size_t items;                 /* items per task, or 0 for KVD_RULER_ITEMS */
    uint64_t seed;
    const char *essay; /* UTF-8 text in which needles are hidden, or NULL */
    bool special;      /* true if special tokens count towards the length */
    /* True if context and question are tokenized separately. */
    bool context_apart;
} kvd_ruler_settings;

bool kvd_ruler_needs_essay(size_t k);

/*
 * Appends items of the selected tasks. Prompt and answer fit into s->length tokens. Each item has
 * one question; `id` counts from 0. Item i depends on the settings and i alone. *changes receives
 * the metric, the length of answers and the stop text. Fails for an item that is too long, and
 * without the essay text.
 */
int kvd_ruler_make(kvd_benchmark *b, const kvd_ruler_settings *s,
                   const kvd_benchmark_settings *changes, const kvd_tokenizer *tokenizer,
                   kvd_err *err);

/* Writes JSON lines with RULER's fields, whole or not at all. `special` counts special tokens. */
int kvd_ruler_write(const kvd_benchmark *b, const char *path, const kvd_tokenizer *tokenizer,
                    bool special, kvd_err *err);

#endif
