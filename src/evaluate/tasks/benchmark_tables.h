/*
 * Prompts, answer lengths and metrics of published tasks, from the benchmarks' code.
 *
 * Sources: LongBench/config/dataset2prompt.json, dataset2maxlen.json and eval.py of
 * github.com/THUDM/LongBench (Bai et al. 2023, arXiv 2308.14508); prompts/0shot.txt there for v2
 * (arXiv 2412.15204); scripts/data/synthetic/constants.py of github.com/NVIDIA/RULER (Hsieh et al.
 * 2024, arXiv 2404.06654); base-model templates of src/prompt.py of
 * github.com/OpenBMB/InfiniteBench (Zhang et al. 2024, arXiv 2402.13718); scbench/eval_utils.py of
 * github.com/microsoft/MInference (Li et al. 2024, arXiv 2412.10319).
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_TABLES_H
#define KVD_EVALUATE_TASKS_BENCHMARK_TABLES_H

#include <stddef.h>

#include "evaluate/tasks/metrics.h"

typedef struct {
    const char *task;
    /*
     * Prompt template with the fields {context}, {input} and {A} to {D}. The text after {context}
     * is the question.
     */
    const char *prompt;
    size_t max_new_tokens;
    kvd_metric metric;
    const char *stop; /* text that ends an answer, or NULL */
} kvd_benchmark_row;

/*
 * Return prompt template, answer length and metric of a task of LongBench or InfiniteBench, or NULL
 * for an unknown task.
 */
const kvd_benchmark_row *kvd_longbench_row(const char *task);
const kvd_benchmark_row *kvd_infinitebench_row(const char *task);
/*
 * Returns prompt template (of the first question), answer length and metric of a SCBench task, or
 * NULL for an unknown task.
 */
const kvd_benchmark_row *kvd_scbench_row(const char *task);
/* Returns the prompt template of a SCBench task for all questions after the first. */
const char *kvd_scbench_next(const char *task);
/*
 * Returns prompt template, answer length and metric of a RULER task, or those of the needle tasks
 * (niah_...) if it is unknown.
 */
const kvd_benchmark_row *kvd_ruler_row(const char *task);

extern const kvd_benchmark_row kvd_longbench_v2_row, kvd_gsm8k_row, kvd_gsm8k_cot_row;

#endif
