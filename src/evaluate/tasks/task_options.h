#ifndef KVD_EVALUATE_TASKS_TASK_OPTIONS_H
#define KVD_EVALUATE_TASKS_TASK_OPTIONS_H

#include "evaluate/inputs.h"
#include "evaluate/tasks/benchmark_run.h"
#include "evaluate/tasks/ruler.h"
#include "evaluate/tasks/task_run.h"

enum { KVD_TASKS_FILES = 256 };

/*
 * Names of the scores for --target-metric: "score" (of benchmark items), then the measures of
 * kvd_task_measures; NULL-terminated.
 */
extern const char *const kvd_target_metric_words[];

typedef struct {
    kvd_inputs_options in;
    /*
     * Values of the options of kvdim-tasks. From here on, a field is 0 or NULL if its option was
     * not given.
     */
    size_t generate, needle, items;
    const char *reference, *classify, *classes, *ask;
    const char *benchmark[KVD_TASKS_FILES];
    size_t n_benchmark;
    kvd_benchmark_form form;
    kvd_metric metric;
    bool metric_given, resume;
    /* --target: share of the uncompressed model's score to keep; NaN means no search. */
    double target;
    const char *target_key; /* NULL: the usual parameter of each method */
    /* Index in kvd_target_metric_words. */
    int target_metric;
    size_t max_new_tokens, shots;
    kvd_ruler_settings ruler;
    bool ruler_given;
    const char *write_items;
    char *stop; /* allocated; NULL if not given */
    kvd_compress_at compress_at;
    kvd_benchmark_turns turns;
    /* Index in kvd_chat_words. */
    int chat;
    int gpus; /* 0 if not given */
    /* Number of this part, from 1, and number of parts; `parts` is 0 if --part is not given. */
    size_t part, parts;
    kvd_dtype compute;
    bool cache_given; /* false if --cache was not given, so that the program chooses in.cache */
} kvd_tasks_options;

/*
 * Parses the command line into *cfg, which must be zeroed. Wrong usage ends the program with status
 * 2.
 */
void kvd_tasks_parse(int argc, char **argv, kvd_tasks_options *cfg);
/* Returns true if --benchmark or --ruler was given. */
bool kvd_tasks_has_benchmark(const kvd_tasks_options *cfg);
void kvd_tasks_options_release(kvd_tasks_options *cfg);

/*
 * Records the options in `in`->run, as parameters of the result. `chat` is the chat template of the
 * prompts, or NULL. `engine` is the name of the engine that generates.
 */
int kvd_tasks_record(const kvd_tasks_options *cfg, kvd_inputs *in, const kvd_chat *chat,
                     const char *engine, kvd_err *err);

/*
 * Makes the items of all tasks and stores them in *f, which must be zeroed. If `tok` is NULL, which
 * only --generate allows, generated texts are not compared.
 */
int kvd_tasks_items(const kvd_tasks_options *cfg, kvd_corpus *corpus, const kvd_tokenizer *tok,
                    uint64_t seed, kvd_task_run *f, kvd_err *err);

#endif
