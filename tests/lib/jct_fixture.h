/* Writes a result file in the format of kvdim-jct, with times that the test chooses. */
#ifndef KVD_TESTS_JCT_FIXTURE_H
#define KVD_TESTS_JCT_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serving/jct/jct_rows.h"

typedef struct {
    kvd_rows *rows;
    kvd_engine_facts facts;
    kvd_jct_setting setting;
} jct_fixture;

static inline int jct_fixture_begin(jct_fixture *x, kvd_err *err)
{
    memset(x, 0, sizeof *x);
    x->facts = (kvd_engine_facts){.cache_bytes = 64e6,
                                  .bytes_per_token = 1000,
                                  .weight_bytes = 16e9,
                                  .peak_bytes = 17e9,
                                  .pages = 1000,
                                  .what = "a test"};
    x->setting = (kvd_jct_setting){.method = "none",
                                   .name = "none",
                                   .facts = &x->facts,
                                   .dense_bytes_per_token = 1000,
                                   .type = KVD_BF16,
                                   .gpus = 1,
                                   .graphs = true};
    x->rows = kvd_jct_rows(1, err);
    return x->rows ? 0 : -1;
}

static inline int jct_fixture_piece(jct_fixture *x, size_t piece, size_t before, double seconds,
                                    kvd_err *err)
{
    return kvd_jct_add_iteration(x->rows, &x->setting, piece, before, 1, 0, &seconds, 1, err);
}

/* Adds the measured time of an iteration that processes n prompts of `piece` tokens each. */
static inline int jct_fixture_prompts(jct_fixture *x, size_t n, size_t piece, double seconds,
                                      kvd_err *err)
{
    return kvd_jct_add_iteration(x->rows, &x->setting, piece, 0, n, 0, &seconds, 1, err);
}

static inline int jct_fixture_step(jct_fixture *x, size_t batch, double context, double seconds,
                                   kvd_err *err)
{
    return kvd_jct_add_iteration(x->rows, &x->setting, 0, 0, batch, context, &seconds, 1, err);
}

static inline int jct_fixture_end(jct_fixture *x, const char *path, const kvd_run *run,
                                  kvd_err *err)
{
    const kvd_model_info model = {.name = "tiny",
                                  .hash = "xxh3:00000000000000000000000000000000",
                                  .family = "llama",
                                  .n_layers = 2,
                                  .n_heads = 2,
                                  .n_kv_heads = 1,
                                  .d_head = 16,
                                  .d_model = 32,
                                  .vocab_size = 40,
                                  .max_positions = 4096,
                                  .rope_theta = 10000,
                                  .rope_layout = "half",
                                  .dtype = "bf16"};
    const kvd_jct_facts facts = {.model = &model, .sweep = "test", .skipped = ""};
    kvd_h5 f = {.id = H5I_INVALID_HID};
    const int status = kvd_h5_create(&f, path, &kvd_schema_jct, run, err) ||
                               kvd_jct_finish(x->rows, &f, &facts, err)
                           ? -1
                           : 0;
    kvd_h5_close(&f, false);
    kvd_rows_free(x->rows);
    return status;
}

#endif
