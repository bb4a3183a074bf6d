/* Makes items of RULER's synthetic tasks (github.com/NVIDIA/RULER, arXiv 2404.06654). Random
 * numbers differ from those of RULER's code; docs/tasks.md lists all differences. */
#ifndef KVD_EVALUATE_TASKS_RULER_H
#define KVD_EVALUATE_TASKS_RULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evaluate/tasks/benchmark.h"
#include "model/text/tokenizer.h"

/* number of RULER's tasks (all but qa_1 and qa_2), and default number of items per task */
enum { KVD_N_RULER_TASKS = 11, KVD_RULER_ITEMS = 500 };
/* Names of the tasks, as in RULER's synthetic.yaml; NULL ends the list. */
extern const char *const kvd_ruler_words[KVD_N_RULER_TASKS + 1];

typedef struct {
    bool task[KVD_N_RULER_TASKS]; /* selected tasks, in the order of kvd_ruler_words */
    size_t length;                /* limit of a prompt's tokens with its answer */
    size_t items;                 /* items per task, or 0 for KVD_RULER_ITEMS */
    uint64_t seed;
    const char *essay; /* UTF-8 text in which needles are hidden, or NULL */
    bool special;      /* true if special tokens count towards the length */
    /* true if context and question are tokenized separately, because the cache is compressed
     * between them */
    bool context_apart;
} kvd_ruler_settings;

bool kvd_ruler_needs_essay(size_t k);

/* Appends RULER test prompts to *b. Each prompt and its answer take at most s->length tokens
 * together. Prompt i depends only on *s and i. *changes may replace metric, answer length and stop
 * text. Fails if even the shortest prompt is too long, or if an essay is needed and missing. */
int kvd_ruler_make(kvd_benchmark *b, const kvd_ruler_settings *s,
                   const kvd_benchmark_settings *changes, const kvd_tokenizer *tokenizer,
                   kvd_err *err);

/* Writes the items as JSON lines; on failure writes nothing. With `special`, the lengths in the
 * file count special tokens too. */
int kvd_ruler_write(const kvd_benchmark *b, const char *path, const kvd_tokenizer *tokenizer,
                    bool special, kvd_err *err);

#endif
