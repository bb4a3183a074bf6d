#ifndef KVD_EVALUATE_TASKS_BENCHMARK_RUN_H
#define KVD_EVALUATE_TASKS_BENCHMARK_RUN_H

#include "common/progress.h"
#include "evaluate/tasks/benchmark.h"
#include "evaluate/tasks/journal.h"
#include "model/text/chat.h"
#include "model/text/tokenizer.h"

/*
 * Point in the prompt up to which a method compresses the cache at once. Later tokens enter the
 * cache one by one.
 */
typedef enum {
    /* The cache is compressed after the first question, so that the method sees the question. */
    KVD_COMPRESS_PROMPT,
    /* The cache is compressed after the context, before the question. */
    KVD_COMPRESS_CONTEXT
} kvd_compress_at;
extern const char *const kvd_compress_at_words[3];

typedef enum {
    /*
     * The questions of an item follow one another on one cache, with the model's own answers
     * between them.
     */
    KVD_TURNS_FOLLOW,
    /* Each question of an item is asked on a cache of its own, which holds only the context. */
    KVD_TURNS_APART
} kvd_benchmark_turns;
extern const char *const kvd_benchmark_turns_words[3];

typedef struct {
    kvd_compress_at compress_at;
    kvd_benchmark_turns turns;
    /* Largest number of tokens of a prompt and its answers. A longer prompt loses its middle. */
    size_t max_len;
    /* Settings of the generator. Its max_len is computed from the items. */
    kvd_generator_spec generator;
    bool no_special; /* leave out the begin-of-text token (BOS) */
    /*
     * Chat template that is put around context and question, or NULL. The answer prefix follows the
     * template's header of the assistant's turn. The template itself contains the begin-of-text
     * token.
     */
    const kvd_chat *chat;
} kvd_benchmark_run_settings;

typedef struct {
    size_t item, turn, sequence;
    /* The answer's tokens have the indices at .. end - 1 in the arrays of kvd_continuations. */
    size_t at, end;
    bool last; /* true for the last answer of its sequence */
} kvd_benchmark_answer;

typedef struct {
    const kvd_benchmark *items; /* borrowed */
    const kvd_config *config;
    const kvd_tokenizer *tokenizer;
    kvd_benchmark_run_settings settings;
    kvd_generator *generator;
    /* File of finished sequences, borrowed; NULL if nothing is saved. */
    kvd_journal *journal;
    kvd_continuations run;
    kvd_benchmark_answer *answer; /* [n_answers], in the order of the sequences */
    size_t n_answers;
    /* True for each item whose prompt lost its middle: [items->n]. */
    bool *cut;
    /* Token that ends an answer in the chat template. */
    uint32_t chat_stop;
} kvd_benchmark_run;

typedef struct {
    /* Answers up to the text that ends them: [n_answers]. */
    char **text;
    double *score; /* 0 to 1: [n_answers] */
    /* [n_answers] */
    size_t *n_tokens;
    /* [n_sequences] */
    kvd_continued_cost *cost;
    kvd_stepwise_account account;
} kvd_benchmark_result;

/*
 * Builds the token sequences of all items. A prompt that is too long loses its middle, as in
 * LongBench. Fails, naming the item, if a question does not fit into max_len. Fails also if
 * compress_at is KVD_COMPRESS_CONTEXT and a question has no text of its own, apart from the
 * context. Fails if the tokenizer lacks tokens of the chat template. *r can be released after a
 * failure too.
 */
int kvd_benchmark_run_init(kvd_benchmark_run *r, const kvd_benchmark *items,
                           const kvd_checkpoint *c, const kvd_tokenizer *tokenizer,
                           const kvd_benchmark_run_settings *settings, kvd_err *err);
void kvd_benchmark_run_release(kvd_benchmark_run *r);

/*
 * Runs and scores all items with the open plan. `name` identifies the setting in the journal. With
 * --part, only this process's items are generated and saved in the journal, and nothing is scored.
 * Fails if the plan should compress the cache, but the counted bytes show that it did not. The
 * caller releases *out, which must be zeroed, also after a failure.
 */
int kvd_benchmark_run_plan(kvd_benchmark_run *r, const char *name, const kvd_plan *plan,
                           kvd_benchmark_result *out, kvd_progress *progress, kvd_err *err);
void kvd_benchmark_result_release(const kvd_benchmark_run *r, kvd_benchmark_result *out);

#endif
