/* Prompts, limits of answer tokens and metrics of published tasks, copied from the benchmarks'
 * code.
 *
 * Sources: github.com/THUDM/LongBench (arXiv 2308.14508, v2 2412.15204), github.com/NVIDIA/RULER
 * (arXiv 2404.06654), github.com/OpenBMB/InfiniteBench (arXiv 2402.13718), scbench of
 * github.com/microsoft/MInference (arXiv 2412.10319). */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_TABLES_H
#define KVD_EVALUATE_TASKS_BENCHMARK_TABLES_H

#include <stddef.h>

#include "evaluate/tasks/metrics.h"

typedef struct {
    const char *task;
    /* prompt template, in which {context}, {input} and {A} to {D} are replaced; text after
     * {context} is the question */
    const char *prompt;
    size_t max_new_tokens;
    kvd_metric metric;
    const char *stop; /* text that ends an answer, or NULL */
} kvd_benchmark_row;

/* Return the prompt template, answer length and metric of a task, or NULL if the task is
 * unknown. */
const kvd_benchmark_row *kvd_longbench_row(const char *task);
const kvd_benchmark_row *kvd_infinitebench_row(const char *task);
/* Returns the prompt template, answer length and metric for the first question of an SCBench task,
 * or NULL if the task is unknown. */
const kvd_benchmark_row *kvd_scbench_row(const char *task);
/* Returns the prompt template for the second and later questions of an SCBench task. */
const char *kvd_scbench_next(const char *task);
/* Returns the answer length and metric of a RULER task. For an unknown task, returns the values of
 * the needle tasks. */
const kvd_benchmark_row *kvd_ruler_row(const char *task);

extern const kvd_benchmark_row kvd_longbench_v2_row, kvd_gsm8k_row, kvd_gsm8k_cot_row;

#endif
