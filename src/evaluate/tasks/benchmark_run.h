#ifndef KVD_EVALUATE_TASKS_BENCHMARK_RUN_H
#define KVD_EVALUATE_TASKS_BENCHMARK_RUN_H

#include "common/progress.h"
#include "evaluate/tasks/benchmark.h"
#include "evaluate/tasks/journal.h"
#include "model/text/chat.h"
#include "model/text/tokenizer.h"

/* Place in the prompt where the cache is compressed. Tokens after this place enter the compressed
 * cache one by one. */
typedef enum {
    /* compress after the context and the first question */
    KVD_COMPRESS_PROMPT,
    /* compress after the context, before the question */
    KVD_COMPRESS_CONTEXT
} kvd_compress_at;
extern const char *const kvd_compress_at_words[3];

typedef enum {
    /* all questions about a context share one cache, which keeps earlier questions and answers */
    KVD_TURNS_FOLLOW,
    /* each question starts from a cache of the context alone */
    KVD_TURNS_APART
} kvd_benchmark_turns;
extern const char *const kvd_benchmark_turns_words[3];

typedef struct {
    kvd_compress_at compress_at;
    kvd_benchmark_turns turns;
    /* largest number of tokens of a prompt with its answers; longer prompts lose their middle */
    size_t max_len;
    /* model, devices and number types; generator.max_len is ignored */
    kvd_generator_spec generator;
    bool no_special; /* leaves out the begin-of-text token */
    /* chat template for the prompts, which includes the begin-of-text token; NULL if prompts are no
     * chat */
    const kvd_chat *chat;
} kvd_benchmark_run_settings;

typedef struct {
    size_t item, turn, sequence;
    /* output tokens of the answer: from index `at` to index `end` - 1 */
    size_t at, end;
    bool last; /* true for the last answer of its sequence */
} kvd_benchmark_answer;

typedef struct {
    const kvd_benchmark *items; /* borrowed */
    const kvd_config *config;
    const kvd_tokenizer *tokenizer;
    kvd_benchmark_run_settings settings;
    kvd_generator *generator;
    kvd_journal *journal; /* borrowed, or NULL to save nothing */
    kvd_continuations run;
    kvd_benchmark_answer *answer; /* [n_answers] in the order of sequences */
    size_t n_answers;
    bool *cut;          /* [items->n] true if the prompt lost its middle */
    uint32_t chat_stop; /* token that ends an answer in the chat template */
} kvd_benchmark_run;

typedef struct {
    char **text;              /* [n_answers] answers up to their stop text */
    double *score;            /* [n_answers] from 0 to 1 */
    size_t *n_tokens;         /* [n_answers] */
    kvd_continued_cost *cost; /* [n_sequences] */
    kvd_stepwise_account account;
    bool ran; /* true if all answers are there, also if the methods changed no cached token */
} kvd_benchmark_result;

/* Prepares the prompts of all items. Cuts the middle out of prompts that are too long, as LongBench
 * does. Fails if a question is too long or, with KVD_COMPRESS_CONTEXT, empty. *r may be released
 * after a failure. */
int kvd_benchmark_run_init(kvd_benchmark_run *r, const kvd_benchmark *items,
                           const kvd_checkpoint *c, const kvd_tokenizer *tokenizer,
                           const kvd_benchmark_run_settings *settings, kvd_err *err);
void kvd_benchmark_run_release(kvd_benchmark_run *r);

/* Generates and scores all answers. With --part, which computes a part of the items, only generates
 * and saves answers. `name`: name of this run in r->journal, the file of saved answers. Fails if a
 * method changed no cached token. *out must be zeroed; release it, also after a failure. */
int kvd_benchmark_run_plan(kvd_benchmark_run *r, const char *name, const kvd_plan *plan,
                           kvd_benchmark_result *out, kvd_progress *progress, kvd_err *err);
void kvd_benchmark_result_release(const kvd_benchmark_run *r, kvd_benchmark_result *out);

#endif
