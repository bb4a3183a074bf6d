/*
 * Runs the items of benchmarks (benchmark.h) through the cache of a plan. The results are the
 * tokens of the prompts, the answers of the model, their scores, and the bytes and seconds of the
 * cache.
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_RUN_H
#define KVD_EVALUATE_TASKS_BENCHMARK_RUN_H

#include "common/progress.h"
#include "evaluate/tasks/benchmark.h"
#include "evaluate/tasks/journal.h"
#include "model/text/chat.h"
#include "model/text/tokenizer.h"

/* End of the part that a method compresses at once; later tokens are stored row by row. */
typedef enum {
    /* after the first question and its answer prefix, so the method sees both */
    KVD_COMPRESS_PROMPT,
    KVD_COMPRESS_CONTEXT /* after the context, before the question */
} kvd_compress_at;
extern const char *const kvd_compress_at_words[3];

/* Order of several questions on one context. */
typedef enum {
    /* one after another on one cache, with the model's own answers between them */
    KVD_TURNS_FOLLOW,
    KVD_TURNS_APART /* each question on its own cache of the context */
} kvd_benchmark_turns;
extern const char *const kvd_benchmark_turns_words[3];

typedef struct {
    kvd_compress_at compress_at;
    kvd_benchmark_turns turns;
    /* largest number of tokens of a prompt and its answers; a longer prompt loses its middle */
    size_t max_len;
    /* specification of the generator, except max_len, which follows from the items */
    kvd_generator_spec generator;
    bool no_special; /* true if the prompt gets no BOS token */
    /*
     * Chat form put around the context and question of every turn; the answer prefix follows the
     * assistant's header. The form writes BOS itself. NULL: none.
     */
    const kvd_chat *chat;
} kvd_benchmark_run_settings;

/* Answer to one question of an item, in a sequence. */
typedef struct {
    size_t item, turn, sequence;
    size_t at, end; /* indices of its tokens in kvd_continuations: at .. end - 1 */
    bool last;      /* true for the last answer of its sequence */
} kvd_benchmark_answer;

typedef struct {
    const kvd_benchmark *items; /* items to run, borrowed */
    const kvd_config *config;
    const kvd_tokenizer *tokenizer;
    kvd_benchmark_run_settings settings;
    kvd_generator *generator;
    kvd_journal *journal; /* journal of finished sequences, borrowed; NULL if nothing is saved */
    kvd_continuations run;
    kvd_benchmark_answer *answer; /* [n_answers] in the order of the sequences */
    size_t n_answers;
    bool *cut;          /* [items->n] true if the middle of the item's prompt was removed */
    uint32_t chat_stop; /* token that ends an answer in the chat form; not used without one */
} kvd_benchmark_run;

/* Results of running a benchmark under one cache plan, per answer and per sequence. */
typedef struct {
    char **text;              /* [n_answers] answers as scored, up to the text that ends them */
    double *score;            /* [n_answers] score of each answer */
    size_t *n_tokens;         /* [n_answers] tokens generated */
    kvd_continued_cost *cost; /* [n_sequences] cache size and time of each sequence */
    kvd_stepwise_account account;
} kvd_benchmark_result;

/*
 * Makes the token sequences of all items. A prompt that leaves no room for its answers within
 * max_len keeps only the first and the last half of the tokens that fit, as in LongBench. Fails,
 * naming the item, if a question does not fit, or is missing where the settings need one. Fails if
 * the tokenizer lacks the tokens of the chat form. *r can be released after a failure too.
 */
int kvd_benchmark_run_init(kvd_benchmark_run *r, const kvd_benchmark *items,
                           const kvd_checkpoint *c, const kvd_tokenizer *tokenizer,
                           const kvd_benchmark_run_settings *settings, kvd_err *err);
void kvd_benchmark_run_release(kvd_benchmark_run *r);

/*
 * Runs all items with a plan, which must be open, and scores the answers. If the generator has one
 * part of several, only generates that part, for the journal. `name` is the name of the plan in the
 * journal. Fails if the account does not show that the plan did something. The caller releases
 * *out, which must be zeroed, also after a failure.
 */
int kvd_benchmark_run_plan(kvd_benchmark_run *r, const char *name, const kvd_plan *plan,
                           kvd_benchmark_result *out, kvd_progress *progress, kvd_err *err);
void kvd_benchmark_result_release(const kvd_benchmark_run *r, kvd_benchmark_result *out);

#endif
