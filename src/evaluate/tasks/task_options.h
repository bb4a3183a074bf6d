/* Command-line options of kvdim-tasks. */
#ifndef KVD_EVALUATE_TASKS_TASK_OPTIONS_H
#define KVD_EVALUATE_TASKS_TASK_OPTIONS_H

#include "evaluate/inputs.h"
#include "evaluate/tasks/benchmark_run.h"
#include "evaluate/tasks/ruler.h"
#include "evaluate/tasks/task_run.h"

enum { KVD_TASKS_FILES = 256 };

typedef struct {
    kvd_inputs_options in;
    /* Options below are 0 or NULL if they are not given. */
    size_t generate, needle, items;
    const char *reference, *classify, *classes, *ask;
    const char *benchmark[KVD_TASKS_FILES];
    size_t n_benchmark;
    kvd_benchmark_form form;
    kvd_metric metric;
    bool metric_given, resume;
    size_t max_new_tokens, shots;
    kvd_ruler_settings ruler; /* options of the RULER benchmark: tasks and essay file */
    bool ruler_given;
    const char *write_items;
    char *stop; /* text that ends an answer, allocated; NULL if not given */
    kvd_compress_at compress_at;
    kvd_benchmark_turns turns;
    /* Selected chat template, as an index in kvd_chat_words. */
    int chat;
    int gpus; /* number of GPUs; 0 if not given */
    /* --part: number of this part, from 1, and of all parts; `parts` is 0 if not given. */
    size_t part, parts;
    kvd_dtype compute;
    bool cache_given; /* false if the program chooses in.cache itself */
} kvd_tasks_options;

/*
 * Parses the command line into *cfg, which must be zeroed. Wrong usage ends the program with status
 * 2.
 */
void kvd_tasks_parse(int argc, char **argv, kvd_tasks_options *cfg);
/*
 * Returns true if the test items are those of published benchmarks, read from files or generated.
 */
bool kvd_tasks_has_benchmark(const kvd_tasks_options *cfg);
void kvd_tasks_options_release(kvd_tasks_options *cfg);

/*
 * Builds the test items of *f, which must be zeroed. If `tok` is NULL, which only --generate
 * allows, generated tokens are compared and generated texts are not.
 */
int kvd_tasks_items(const kvd_tasks_options *cfg, kvd_corpus *corpus, const kvd_tokenizer *tok,
                    uint64_t seed, kvd_task_run *f, kvd_err *err);

#endif
