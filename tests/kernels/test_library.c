#include "kvdim/attention.h"
#include <stdio.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "common/threads.h"
#include "library_case.h"
#include "unit.h"

static void *take(size_t bytes)
{
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static void copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static const case_memory cpu = {KVDIM_CPU, take, free, copy, copy};

TEST(matches_references)
{
    for (size_t i = 0; i < sizeof library_cases / sizeof *library_cases; i++) {
        double lse;
        const double worst = library_case_run(&library_cases[i], &cpu, &lse);
        /* Outputs have 16 bits, so rounding alone causes errors of this size. */
        assert_true(worst >= 0 && worst < (library_cases[i].dtype == KVDIM_BF16 ? 4e-3 : 5e-4));
        assert_true(lse < 1e-5);
    }
}

static const int32_t w32[] = {32, 32}, w48[] = {32, 48}, w0[] = {32, 0};

static void refused(kvdim_heads heads, const char *text)
{
    kvdim_layer *layer = (kvdim_layer *)&heads;
    assert_int_equal(kvdim_layer_create(&heads, &layer), KVDIM_ERROR_ARGUMENT);
    assert_null(layer);
    assert_non_null(strstr(kvdim_last_error(), text));
}

TEST(refuses_shapes)
{
    const kvdim_heads good = {sizeof good, KVDIM_CPU, KVDIM_BF16, 4, 2, 32, w32, w32};
    kvdim_heads h = good;
    h.struct_size--;
    refused(h, "kvdim_heads.struct_size");
    h = good;
    h.device = 2;
    refused(h, "device is 2");
    h = good;
    h.dtype = -1;
    refused(h, "dtype is -1");
    h = good;
    h.n_heads = 5;
    refused(h, "n_heads is 5");
    h = good;
    h.d_head = 40;
    refused(h, "d_head is 40");
    h = good;
    h.d_v = NULL;
    refused(h, "d_v is NULL");
    h = good;
    h.d_qk = w48;
    refused(h, "d_qk[1] is 48");
    h = good;
    h.d_v = w0;
    refused(h, "d_v[1] is 0");
    kvdim_layer *layer;
    h = good;
    h.device = KVDIM_CUDA;
    const kvdim_status status = kvdim_layer_create(&h, &layer);
    assert_true(status == KVDIM_ERROR_DEVICE || status == KVDIM_OK);
    kvdim_layer_destroy(layer);
}

TEST(refuses_batches)
{
    const kvdim_heads heads = {sizeof heads, KVDIM_CPU, KVDIM_F16, 2, 2, 32, w32, w32};
    kvdim_layer *layer;
    kvdim_plan *plan;
    assert_int_equal(kvdim_layer_create(&heads, &layer), KVDIM_OK);
    int32_t q_len[] = {3}, kv_len[] = {65}, table[] = {0, 5};
    const kvdim_batch good = {sizeof good, 1, 2, 3, q_len, kv_len, table};
    kvdim_batch b = good;
    b.n_requests = 0;
    assert_int_equal(kvdim_plan_create(layer, &b, NULL, 0, NULL, &plan), KVDIM_ERROR_ARGUMENT);
    assert_null(plan);
    kv_len[0] = 129;
    assert_int_equal(kvdim_plan_create(layer, &good, NULL, 0, NULL, &plan), KVDIM_ERROR_ARGUMENT);
    assert_non_null(strstr(kvdim_last_error(), "request 0 has 3 new of 129 tokens"));
    kv_len[0] = 2;
    assert_int_equal(kvdim_plan_create(layer, &good, NULL, 0, NULL, &plan), KVDIM_ERROR_ARGUMENT);
    kv_len[0] = 65;
    assert_int_equal(kvdim_plan_create(layer, &good, NULL, 0, NULL, &plan), KVDIM_OK);
    assert_int_equal(kvdim_plan_advance(plan, NULL), KVDIM_ERROR_ARGUMENT);
    assert_int_equal(kvdim_plan_rows(plan), 8);
    const size_t pool_elements = 3 * 64 * 2 * 64;
    uint16_t x[3 * 6 * 32] = {0}, q[8 * 64] = {0}, o[8 * 64];
    uint16_t *const pool = unit_alloc(pool_elements * sizeof *pool);
    for (size_t i = 0; i < pool_elements; i++)
        pool[i] = 7;
    const kvdim_append_args append = {.struct_size = sizeof append, .x = x, .q = q, .pool = pool};
    assert_int_equal(kvdim_append(plan, &append, NULL), KVDIM_ERROR_ARGUMENT);
    assert_non_null(strstr(kvdim_last_error(), "page_table[0][1] is 5, but the pool has 3 pages"));
    /* The failed append must not have changed the pool. */
    for (size_t i = 0; i < pool_elements; i++)
        assert_int_equal(pool[i], 7);
    table[1] = 2;
    assert_int_equal(kvdim_append(plan, &append, NULL), KVDIM_OK);
    kvdim_attend_args attend = {sizeof attend, q, pool, o, 56, NULL};
    assert_int_equal(kvdim_attend(plan, &attend, NULL), KVDIM_ERROR_ARGUMENT);
    assert_non_null(strstr(kvdim_last_error(), "o_stride is 56"));
    attend.o_stride = INT64_MAX - 7;
    assert_int_equal(kvdim_attend(plan, &attend, NULL), KVDIM_ERROR_ARGUMENT);
    assert_non_null(strstr(kvdim_last_error(), "a multiple of 8 of 64 to 2147483647, or 0"));
    attend.o_stride = 0;
    attend.pool = (unsigned char *)pool + 1;
    assert_int_equal(kvdim_attend(plan, &attend, NULL), KVDIM_ERROR_ARGUMENT);
    assert_non_null(strstr(kvdim_last_error(), "pool is at address "));
    attend.pool = pool;
    assert_int_equal(kvdim_attend(plan, &attend, NULL), KVDIM_OK);
    kvdim_append_args wrong = append;
    wrong.x = (const unsigned char *)x + 1;
    assert_int_equal(kvdim_append(plan, &wrong, NULL), KVDIM_ERROR_ARGUMENT);
    assert_non_null(strstr(kvdim_last_error(), "is not aligned to 2 bytes"));
    wrong.x = x;
    wrong.r_qk = (const unsigned char *)x + 1;
    assert_int_equal(kvdim_append(plan, &wrong, NULL), KVDIM_ERROR_ARGUMENT);
    assert_non_null(strstr(kvdim_last_error(), "r_qk is at address "));
    wrong.r_qk = NULL;
    float angles[65 * 16 + 1] = {0};
    wrong.rope_cos = angles;
    assert_int_equal(kvdim_append(plan, &wrong, NULL), KVDIM_ERROR_ARGUMENT);
    wrong.rope_dim = 32;
    wrong.rope_sin = (const float *)(const void *)((const unsigned char *)angles + 2);
    assert_int_equal(kvdim_append(plan, &wrong, NULL), KVDIM_ERROR_ARGUMENT);
    assert_non_null(strstr(kvdim_last_error(), "rope_sin is at address "));
    wrong.rope_sin = angles;
    wrong.rope_interleaved = 2;
    assert_int_equal(kvdim_append(plan, &wrong, NULL), KVDIM_ERROR_ARGUMENT);
    assert_string_equal(kvdim_last_error(), "rope_interleaved is 2, expected 0 or 1");
    attend.lse = (float *)(void *)((unsigned char *)angles + 1);
    assert_int_equal(kvdim_attend(plan, &attend, NULL), KVDIM_ERROR_ARGUMENT);
    assert_non_null(strstr(kvdim_last_error(), "lse is at address "));
    b.kv_len = (const int32_t *)(const void *)((const unsigned char *)angles + 1);
    b.n_requests = 1;
    kvdim_plan *none;
    assert_int_equal(kvdim_plan_create(layer, &b, NULL, 0, NULL, &none), KVDIM_ERROR_ARGUMENT);
    assert_non_null(strstr(kvdim_last_error(), "kv_len is at address "));
    kvdim_plan_destroy(plan);
    kv_len[0] = 128;
    b = good;
    b.q_len = NULL;
    assert_int_equal(kvdim_plan_create(layer, &b, NULL, 0, NULL, &plan), KVDIM_OK);
    assert_int_equal(kvdim_plan_advance(plan, NULL), KVDIM_ERROR_ARGUMENT);
    assert_non_null(strstr(kvdim_last_error(), "no room for a token"));
    kvdim_plan_destroy(plan);
    kvdim_layer_destroy(layer);
}

#ifdef _OPENMP
TEST(runs_in_nested_parallel_regions)
{
    const int levels = omp_get_max_active_levels(), threads = omp_get_max_threads();
    double lse[2], worst[2];
    omp_set_max_active_levels(2);
    omp_set_num_threads(4);
#pragma omp parallel num_threads(2)
    {
        const int i = omp_get_thread_num();
        worst[i] = library_case_run(&library_cases[0], &cpu, &lse[i]);
        if (kvd_thread_count() != 4)
            worst[i] = -1;
    }
    omp_set_max_active_levels(levels);
    omp_set_num_threads(threads);
    for (int i = 0; i < 2; i++)
        assert_true(worst[i] >= 0 && worst[i] < 4e-3 && lse[i] < 1e-5);
}
#endif

TEST(says_its_version)
{
    assert_int_equal(kvdim_attention_abi(), KVDIM_ATTENTION_ABI);
    assert_true(strchr(kvdim_attention_version(), '.') != NULL);
}

TEST_MAIN(NULL, NULL)
