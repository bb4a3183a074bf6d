/* Creates a file with Q, K and V of two layers, on which tests calibrate methods. */
#ifndef KVD_TESTS_CALIBRATION_DUMP_H
#define KVD_TESTS_CALIBRATION_DUMP_H

#include "make_dump.h"
#include "model/checkpoint/config.h"
#include "temp_folder.h"
#include "unit.h"

/* number of layers, of KV heads, and of dimensions of a head */
enum { LAYERS = 2, HEADS = 2, D = 8 };

static const kvd_config config = {.n_layers = LAYERS,
                                  .n_heads = 4,
                                  .n_kv_heads = HEADS,
                                  .d_head = D,
                                  .d_model = 32,
                                  .max_positions = 512,
                                  .rope_theta = 1e4};
static kvd_activations dump;

static int open_dump(size_t n_tokens)
{
    kvd_err err = {""};
    char path[64];
    dump_plan p;
    (void)snprintf(path, sizeof path, "%s/a.h5", temp_folder());
    dump_plan_init(&p, n_tokens, 1);
    p.a.has_pre = true;
    return write_dump(&p, path, test_run(), &err) || kvd_activations_open(&dump, path, &err) ? -1
                                                                                             : 0;
}

/* Reads the vectors of the first n tokens of one head into rows [n][D]. x says which of Q, K and
 * V. */
static inline void head_rows(kvd_x x, int layer, int head, size_t n, float *rows)
{
    kvd_err err;
    OK(kvd_activations_rows(&dump, x, layer, head, 0, n, rows, NULL, &err));
}

/* Reads the vectors of the first n tokens of all heads into rows [n][HEADS * D]. x says which of Q,
 * K and V. */
static inline void rows_side_by_side(kvd_x x, int layer, size_t n, float *rows)
{
    float *const one = malloc(n * D * sizeof *one);
    assert_non_null(one);
    for (int h = 0; h < HEADS; h++) {
        head_rows(x, layer, h, n, one);
        for (size_t t = 0; t < n; t++)
            memcpy(rows + (t * HEADS + (size_t)h) * D, one + t * D, D * sizeof(float));
    }
    free(one);
}

static int close_dump(void **state)
{
    (void)state;
    kvd_activations_close(&dump);
    return 0;
}

/* Runs all tests with an open file of Q, K and V of n tokens (`dump`). */
#define TEST_MAIN_WITH_DUMP(n)                                                                     \
    static int open_dump_of_tests(void **state)                                                    \
    {                                                                                              \
        (void)state;                                                                               \
        return open_dump(n);                                                                       \
    }                                                                                              \
    TEST_MAIN(open_dump_of_tests, close_dump)

#endif
