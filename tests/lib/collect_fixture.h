/* A small model with made-up weights, and a run of kvdim-collect over it. */
#ifndef KVD_TESTS_COLLECT_FIXTURE_H
#define KVD_TESTS_COLLECT_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "formats/model_info.h"
#include "model/checkpoint/config.h"
#include "temp_folder.h"
#include "unit.h"

static const kvd_config fixture_config = {.family = "llama",
                                          .n_layers = 3,
                                          .n_heads = 4,
                                          .n_kv_heads = 2,
                                          .d_head = 8,
                                          .d_model = 20,
                                          .d_ffn = 24,
                                          .vocab_size = 100,
                                          .max_positions = 64,
                                          .norm_eps = 1e-5,
                                          .rope_theta = 10000,
                                          .bos_id = -1,
                                          .eos_id = -1};

/* Returns n normally distributed numbers, of which about one in 40 is multiplied by 50. They are
 * freed after the test. */
static inline float *fixture_values(size_t n, uint64_t seed)
{
    float *const x = unit_alloc(n * sizeof *x);
    kvd_rng rng;
    kvd_rng_seed(&rng, seed, 0);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)kvd_rng_normal(&rng) * (kvd_rng_below(&rng, 40) ? 1.0f : 50.0f);
    return x;
}

#endif
