/* Options of kvdim-tasks' command line. */
#ifndef KVD_EVALUATE_TASKS_TASK_OPTIONS_H
#define KVD_EVALUATE_TASKS_TASK_OPTIONS_H

#include "evaluate/inputs.h"
#include "evaluate/tasks/benchmark_run.h"
#include "evaluate/tasks/ruler.h"
#include "evaluate/tasks/task_run.h"

enum { KVD_TASKS_FILES = 256 };

typedef struct {
    kvd_inputs_options in; /* must be the first member */
    /* 0 and NULL: not given. */
    size_t generate, needle, items;
    const char *reference, *classify, *classes, *ask;
    const char *benchmark[KVD_TASKS_FILES];
    size_t n_benchmark;
    kvd_benchmark_form form;
    kvd_metric metric;
    bool metric_given, resume;
    size_t max_new_tokens, shots;
    kvd_ruler_settings ruler; /* options for the tasks of RULER: tasks and essay */
    bool ruler_given;
    const char *write_items;
    char *stop; /* text that ends an answer, allocated; NULL if not given */
    kvd_compress_at compress_at;
    kvd_benchmark_turns turns;
    int chat;           /* index in kvd_chat_words */
    int gpus;           /* number of GPUs; 0 if not given */
    size_t part, parts; /* --part: from 1; parts 0: not given */
    kvd_dtype compute;
    bool cache_given; /* false: in.cache is set by the program */
} kvd_tasks_options;

/* Reads argv into *cfg, which is zeroed; wrong usage ends the program with status 2. */
void kvd_tasks_parse(int argc, char **argv, kvd_tasks_options *cfg);
/* Returns true if the items are those of published benchmarks, read from files or made. */
bool kvd_tasks_has_benchmark(const kvd_tasks_options *cfg);
void kvd_tasks_options_release(kvd_tasks_options *cfg);

/*
 * Fills the items of *f, which is zeroed. If `tok` is NULL, which only --generate allows, generated
 * tokens are compared and generated texts are not.
 */
int kvd_tasks_items(const kvd_tasks_options *cfg, kvd_corpus *corpus, const kvd_tokenizer *tok,
                    uint64_t seed, kvd_task_run *f, kvd_err *err);

#endif
