#ifndef KVD_EVALUATE_TASKS_TASK_OPTIONS_H
#define KVD_EVALUATE_TASKS_TASK_OPTIONS_H

#include "evaluate/inputs.h"
#include "evaluate/tasks/benchmark_run.h"
#include "evaluate/tasks/ruler.h"
#include "evaluate/tasks/task_run.h"

enum { KVD_TASKS_FILES = 256 };

/* Words for --target-metric: "score", then the names in kvd_task_measures; NULL ends the list. */
extern const char *const kvd_target_metric_words[];

typedef struct {
    kvd_inputs_options in;
    /* values of options; here and in all later fields, 0 or NULL means that the option was not
     * given */
    size_t generate, needle, items;
    const char *reference, *classify, *classes, *ask;
    const char *benchmark[KVD_TASKS_FILES];
    size_t n_benchmark;
    kvd_benchmark_form form;
    kvd_metric metric;
    bool metric_given;
    int target_metric;
    size_t max_new_tokens, shots;
    kvd_ruler_settings ruler;
    bool ruler_given;
    const char *write_items;
    char *stop; /* allocated, or NULL if not given */
    kvd_compress_at compress_at;
    kvd_benchmark_turns turns;
    int chat;
    int gpus; /* 0 if not given */
    /* with --part I/N: I, the part of the items that this process runs, from 1 on, and N, the
     * number of parts; both 0 without --part */
    size_t part, parts;
} kvd_tasks_options;

/* Parses the command line into *cfg, which must be zeroed. On wrong usage exits with status 2. */
void kvd_tasks_parse(int argc, char **argv, kvd_tasks_options *cfg);
/* Returns true if --benchmark or --ruler was given. */
bool kvd_tasks_has_benchmark(const kvd_tasks_options *cfg);
void kvd_tasks_options_release(kvd_tasks_options *cfg);

/* Records options and inputs of the run in *in. `chat`: chat template, or NULL. `engine`: name of
 * the implementation that generates text. */
int kvd_tasks_record(const kvd_tasks_options *cfg, kvd_inputs *in, const kvd_chat *chat,
                     const char *engine, kvd_err *err);

/* Makes the test questions of all tasks that *cfg selects, in zeroed *f. `tok`: tokenizer, or NULL
 * if the tasks use only token ids. */
int kvd_tasks_items(const kvd_tasks_options *cfg, kvd_corpus *corpus, const kvd_tokenizer *tok,
                    uint64_t seed, kvd_task_run *f, kvd_err *err);

#endif
