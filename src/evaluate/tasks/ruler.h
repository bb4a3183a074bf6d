/*
 * Makes the items of RULER's synthetic tasks for any tokenizer, length and seed, after
 * scripts/data/synthetic of github.com/NVIDIA/RULER (Hsieh et al. 2024, arXiv 2404.06654).
 * Random numbers are this project's own, so items equal RULER's in form and distribution, not in
 * their words. docs/tasks.md lists the departures.
 */
#ifndef KVD_EVALUATE_TASKS_RULER_H
#define KVD_EVALUATE_TASKS_RULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evaluate/tasks/benchmark.h"
#include "model/text/tokenizer.h"

/*
 * Number of tasks of synthetic.yaml without qa_1 and qa_2, and default number of items of a task.
 */
enum { KVD_N_RULER_TASKS = 11, KVD_RULER_ITEMS = 500 };
/* Names of the tasks as in synthetic.yaml; NULL-terminated. */
extern const char *const kvd_ruler_words[KVD_N_RULER_TASKS + 1];

typedef struct {
    bool task[KVD_N_RULER_TASKS]; /* in the order of kvd_ruler_words */
    size_t length;                /* largest number of tokens of a prompt with its answer */
    size_t items;                 /* per task; 0 means KVD_RULER_ITEMS */
    uint64_t seed;
    /* Path of a UTF-8 text in which needles are hidden; may be NULL if no task needs it. */
    const char *essay;
    /* True if special tokens such as BOS count towards the length of a prompt. */
    bool special;
    /* True if context and question are tokenized separately (--compress-at context). */
    bool context_apart;
} kvd_ruler_settings;

bool kvd_ruler_needs_essay(size_t k);

/*
 * Appends the items of every chosen task. A prompt and its answer have at most s->length tokens. An
 * item has one question; its `id` is its number within the task, from 0. Equal settings and
 * tokenizers give equal items. With a larger number s->items of items, the first items stay the
 * same. *changes may replace the metric, the number of answer tokens and the stop text of the
 * tasks. Fails, naming the task, if its shortest item is too long, or if the essay is missing or
 * has no words.
 */
int kvd_ruler_make(kvd_benchmark *b, const kvd_ruler_settings *s,
                   const kvd_benchmark_settings *changes, const kvd_tokenizer *tokenizer,
                   kvd_err *err);

/*
 * Writes the items as a file, whole or not at all: one JSON object per line, with RULER's fields
 * and the field task. kvd_benchmark_read reads equal items from the file. If `special` is true,
 * token counts include special tokens.
 */
int kvd_ruler_write(const kvd_benchmark *b, const char *path, const kvd_tokenizer *tokenizer,
                    bool special, kvd_err *err);

#endif
