/*
 * Runs benchmark items (benchmark.h) with a compressed cache. The results are the answers of the
 * model, their scores, and the bytes and seconds of the cache.
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_RUN_H
#define KVD_EVALUATE_TASKS_BENCHMARK_RUN_H

#include "common/progress.h"
#include "evaluate/tasks/benchmark.h"
#include "evaluate/tasks/journal.h"
#include "model/text/chat.h"
#include "model/text/tokenizer.h"

/*
 * Point in the prompt up to which a method compresses the cache at once. Tokens after this point
 * enter the cache one by one.
 */
typedef enum {
    /*
     * Compress the whole prompt, including the first question and the words with which its answer
     * begins. The method then sees the question when it chooses what to keep.
     */
    KVD_COMPRESS_PROMPT,
    /* Compress after the context, before the question. */
    KVD_COMPRESS_CONTEXT
} kvd_compress_at;
extern const char *const kvd_compress_at_words[3];

/* How several questions on one context are asked. */
typedef enum {
    /*
     * Ask the questions one after another on one cache, with the model's own answers between them.
     */
    KVD_TURNS_FOLLOW,
    /* Ask each question on a cache of its own of the context. */
    KVD_TURNS_APART
} kvd_benchmark_turns;
extern const char *const kvd_benchmark_turns_words[3];

typedef struct {
    kvd_compress_at compress_at;
    kvd_benchmark_turns turns;
    /* Largest number of tokens of a prompt and its answers. A longer prompt loses its middle. */
    size_t max_len;
    /* Description of the generator; max_len is set from the items. */
    kvd_generator_spec generator;
    bool no_special; /* the prompt gets no begin-of-text token (BOS) */
    /*
     * Chat template put around the context and question of every item; the answer prefix follows
     * the header of the assistant's turn. The template writes BOS itself. NULL means no template.
     */
    const kvd_chat *chat;
} kvd_benchmark_run_settings;

/* Position of one answer in the generated sequences. */
typedef struct {
    size_t item, turn, sequence;
    /* Indices of the answer's tokens in the arrays of kvd_continuations: at .. end - 1. */
    size_t at, end;
    bool last; /* true for the last answer of its sequence */
} kvd_benchmark_answer;

typedef struct {
    const kvd_benchmark *items; /* benchmark items to run, borrowed */
    const kvd_config *config;
    const kvd_tokenizer *tokenizer;
    kvd_benchmark_run_settings settings;
    kvd_generator *generator;
    /* Journal that saves finished sequences, borrowed; NULL if nothing is saved. */
    kvd_journal *journal;
    kvd_continuations run;
    kvd_benchmark_answer *answer; /* all answers in the order of the sequences: [n_answers] */
    size_t n_answers;
    /* True for each item whose prompt lost its middle: [items->n]. */
    bool *cut;
    /* Token that ends an answer in the chat template; unused without a template. */
    uint32_t chat_stop;
} kvd_benchmark_run;

/* Results of running benchmark items with one compression setting. */
typedef struct {
    /* Each answer up to the text that ends it, as it was scored: [n_answers]. */
    char **text;
    double *score; /* score of each answer, 0 to 1: [n_answers] */
    /* Number of tokens generated for each answer: [n_answers]. */
    size_t *n_tokens;
    /* Cache size and time of each sequence: [n_sequences]. */
    kvd_continued_cost *cost;
    kvd_stepwise_account account;
} kvd_benchmark_result;

/*
 * Builds the token sequences of all items. A prompt that leaves no room for its answers within
 * max_len keeps only the first and the last half of the tokens that fit, as in LongBench.
 *
 * Fails, naming the item, if a question does not fit into max_len. Fails too if compress_at is
 * KVD_COMPRESS_CONTEXT and an item has no question apart from its context, or if the tokenizer
 * lacks the tokens of the chat template. *r can be released after a failure too.
 */
int kvd_benchmark_run_init(kvd_benchmark_run *r, const kvd_benchmark *items,
                           const kvd_checkpoint *c, const kvd_tokenizer *tokenizer,
                           const kvd_benchmark_run_settings *settings, kvd_err *err);
void kvd_benchmark_run_release(kvd_benchmark_run *r);

/*
 * Runs all items with a cache that compresses as the open plan *plan says, and scores the answers.
 * `name` identifies the compression setting in the journal (file of finished sequences).
 *
 * With --part, several processes share the items: this one then only generates its own items and
 * saves them in its journal, without scores. Fails if the counted cache sizes do not show that the
 * plan compressed something. The caller releases *out, which must be zeroed, also after a failure.
 */
int kvd_benchmark_run_plan(kvd_benchmark_run *r, const char *name, const kvd_plan *plan,
                           kvd_benchmark_result *out, kvd_progress *progress, kvd_err *err);
void kvd_benchmark_result_release(const kvd_benchmark_run *r, kvd_benchmark_result *out);

#endif
