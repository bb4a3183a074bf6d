/*
 * Generates the items of RULER's synthetic tasks (long-context retrieval) for any tokenizer, prompt
 * length and seed. The prompts, answers and answer lengths, the random choices and the search for
 * the size of an item follow scripts/data/synthetic of github.com/NVIDIA/RULER (Hsieh et al. 2024,
 * arXiv 2404.06654). The random numbers are this project's own, so that items equal RULER's in form
 * and distribution, not in their words. docs/tasks.md lists the departures.
 */
#ifndef KVD_EVALUATE_TASKS_RULER_H
#define KVD_EVALUATE_TASKS_RULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evaluate/tasks/benchmark.h"
#include "model/text/tokenizer.h"

/*
 * Number of tasks in RULER's synthetic.yaml, without the two of questions about documents (qa_1,
 * qa_2), and default number of items per task.
 */
enum { KVD_N_RULER_TASKS = 11, KVD_RULER_ITEMS = 500 /* items of a task by default */ };
/* Names of RULER's tasks as in synthetic.yaml, "niah_single_1" .. "fwe"; NULL-terminated. */
extern const char *const kvd_ruler_words[KVD_N_RULER_TASKS + 1];

typedef struct {
    bool task[KVD_N_RULER_TASKS]; /* tasks to generate, in the order of kvd_ruler_words */
    size_t length;                /* largest number of tokens of a prompt with its answer */
    size_t items;                 /* items per task; 0 means KVD_RULER_ITEMS */
    uint64_t seed;
    /*
     * Path of a UTF-8 text in which the essay tasks hide needles; may be NULL without these tasks.
     */
    const char *essay;
    /*
     * True if the token limit of a prompt includes the special tokens that the tokenizer adds, such
     * as the token at the beginning of a text.
     */
    bool special;
    /* True if context and question are tokenized separately (--compress-at context). */
    bool context_apart;
} kvd_ruler_settings;

/* Returns true if RULER task number k hides its needles in the essay. */
bool kvd_ruler_needs_essay(size_t k);

/*
 * Appends the items of every chosen RULER task to *b. An item has one question; its `id` is its
 * number within the task, from 0. The tokens of a prompt plus its answer tokens are at most
 * s->length. Equal settings and tokenizers give equal items, and the first items do not depend on
 * s->items.
 *
 * *changes can set another metric, number of answer tokens or stop text than RULER's, as in
 * kvd_benchmark_read. Fails if the shortest item of a task is longer than s->length, or if the
 * essay is missing or has no words; the message names the task.
 */
int kvd_ruler_make(kvd_benchmark *b, const kvd_ruler_settings *s,
                   const kvd_benchmark_settings *changes, const kvd_tokenizer *tokenizer,
                   kvd_err *err);

/*
 * Writes items made by kvd_ruler_make to the file `path`, whole or not at all: one JSON object per
 * line. Its fields are those of RULER: index, input, outputs, length, length_w_model_temp,
 * answer_prefix and, for niah tasks, token_position_answer; and the field task. kvd_benchmark_read
 * reads equal items from the file. If `special` is true, token counts include the special tokens
 * that the tokenizer adds.
 */
int kvd_ruler_write(const kvd_benchmark *b, const char *path, const kvd_tokenizer *tokenizer,
                    bool special, kvd_err *err);

#endif
