/* Solved examples for GSM8K (arXiv:2201.11903, table 20), as in lm_eval/tasks/gsm8k/gsm8k-cot.yaml
 * of github.com/EleutherAI/lm-evaluation-harness. */
#ifndef KVD_EVALUATE_TASKS_GSM8K_SHOTS_H
#define KVD_EVALUATE_TASKS_GSM8K_SHOTS_H

#include <stddef.h>

#include "common/err.h"

enum { KVD_GSM8K_SHOTS = 8 };

/* Returns the first n examples, each "Q: ...\nA: ...\n\n". The caller frees the text. */
char *kvd_gsm8k_shots(size_t n, kvd_err *err);

#endif
