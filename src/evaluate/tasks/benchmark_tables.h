/*
 * Prompts, answer lengths and metrics of published tasks, as the benchmarks' own code has them.
 *
 * Sources: LongBench/config/dataset2prompt.json, dataset2maxlen.json and eval.py of
 * github.com/THUDM/LongBench (Bai et al. 2023, arXiv 2308.14508); prompts/0shot.txt there for v2
 * (arXiv 2412.15204); scripts/data/synthetic/constants.py of github.com/NVIDIA/RULER (Hsieh et al.
 * 2024, arXiv 2404.06654); the templates for base models of src/prompt.py of
 * github.com/OpenBMB/InfiniteBench (Zhang et al. 2024, arXiv 2402.13718); the templates of
 * scbench/eval_utils.py of github.com/microsoft/MInference (Li et al. 2024, arXiv 2412.10319).
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_TABLES_H
#define KVD_EVALUATE_TASKS_BENCHMARK_TABLES_H

#include <stddef.h>

#include "evaluate/tasks/metrics.h"

typedef struct {
    const char *task;
    /*
     * Prompt template with the placeholders {context}, {input} and, for multiple choice, {A} ..
     * {D}. The question is the text after {context}.
     */
    const char *prompt;
    size_t max_new_tokens;
    kvd_metric metric;
    const char *stop; /* text that ends an answer; NULL if there is none */
} kvd_benchmark_row;

/* Return the settings of a task of the benchmark, or NULL if it has no such task. */
const kvd_benchmark_row *kvd_longbench_row(const char *task);
const kvd_benchmark_row *kvd_infinitebench_row(const char *task);
/*
 * kvd_scbench_row returns the settings of an SCBench task, with the prompt of the first question.
 * For an unknown task it returns NULL. kvd_scbench_next returns the prompt of later questions,
 * which follow the previous answer on the same cache.
 */
const kvd_benchmark_row *kvd_scbench_row(const char *task);
const char *kvd_scbench_next(const char *task);
/*
 * Returns the settings of a RULER task. For an unknown name it returns the settings that all needle
 * tasks (niah_...) have; it never returns NULL. The prompt is in the benchmark file.
 */
const kvd_benchmark_row *kvd_ruler_row(const char *task);

extern const kvd_benchmark_row kvd_longbench_v2_row, kvd_gsm8k_row, kvd_gsm8k_cot_row;

#endif
