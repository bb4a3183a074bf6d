/* Tests that random data for benchmarks are equal on GPU and host, bit for bit. */

#include "gpu_case.h"
#include "kernels/cuda/fill.h"
#include "kernels/rivals/palu_layout.h"
#include "kernels/timing/impl.h"
#include "kernels/timing/problem.h"

static void compare(const char *name, const kvd_problem *p, const void *device,
                    const uint16_t *want, size_t n)
{
    uint16_t *const got = from_device(device, n * 2);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++)
        wrong += got[i] != want[i];
    test_result(!wrong, name, "%s, %s%s: %zu of %zu elements differ", kvd_attn_phase_name[p->phase],
                kvd_dtype_name(p->dtype), p->sharp ? ", sharp" : "", wrong, n);
    free(got);
}

static void run(kvd_attn_phase phase, kvd_dtype dtype, bool sharp)
{
    kvd_err err = {""};
    kvd_problem p = {.phase = phase,
                     .dtype = dtype,
                     .seed = 11,
                     .sharp = sharp,
                     .heads = {12, 3, 128, {16, 128, 48}, {64, 16, 112}}};
    kvd_attn_map map;
    int max_pages;
    size_t n_pages;
    or_end(kvd_problem_lengths(&p, KVD_LENGTHS_LOGNORMAL, 5, 150, NULL, &err) ||
               kvd_attn_map_make(&p.heads, &map),
           "case", err.msg);
    const kvd_attn_batch batch = kvd_problem_batch(&p);
    int32_t q_start[5], *const table = kvd_scattered_pages(&p, &max_pages, &n_pages, &err);
    const size_t n_q8 = kvd_blocked_rows(&batch, q_start), rows = phase == KVD_DECODE ? 5 : n_q8;
    float *const q = kvd_problem_plain(&p, KVD_OPERAND_Q, &err),
                 *const k = kvd_problem_plain(&p, KVD_OPERAND_K, &err),
                 *const v = kvd_problem_plain(&p, KVD_OPERAND_V, &err);
    const size_t n_q = rows * (size_t)map.q_pitch, n_pool = n_pages * (size_t)map.page_elements;
    uint16_t *const q_want = need(n_q * 2), *const pool_want = need(n_pool * 2);
    or_end(!table || !q || !k || !v, "case", err.msg);
    memset(q_want, 0xff, n_q * 2);
    memset(pool_want, 0xff, n_pool * 2);
    (phase == KVD_DECODE ? kvd_pack_q_decode : kvd_pack_q)(&map, &batch, (int)dtype, q, q_want);
    kvd_pack_kv(&map, &batch, (int)dtype, k, v, table, max_pages, pool_want);
    kvd_fill_args f = {.dtype = (int)dtype,
                       .sharp = sharp,
                       .seed = p.seed,
                       .map = map,
                       .batch = 5,
                       .n_q8 = (int32_t)n_q8,
                       .max_pages = max_pages,
                       .q_start = on_device(q_start, sizeof q_start),
                       .q_len = on_device(p.q_len, 20),
                       .kv_len = on_device(p.kv_len, 20),
                       .page_table = on_device(table, 20 * (size_t)max_pages)};
    void *const dq = on_device(NULL, n_q * 2), *const pool = on_device(NULL, n_pool * 2);
    f.longest = kvd_problem_longest(&p, true);
    check((phase == KVD_DECODE ? kvd_fill_q_rows : kvd_fill_q)(&f, dq, NULL), "fill Q");
    f.longest = kvd_problem_longest(&p, false);
    check(kvd_fill_kv(&f, pool, NULL), "fill K and V");
    compare("Q", &p, dq, q_want, n_q);
    compare("K and V", &p, pool, pool_want, n_pool);
    host_free(table, q, k, v, q_want, pool_want);
    device_free(f.q_start, f.q_len, f.kv_len, f.page_table, dq, pool);
    kvd_problem_release(&p);
}

int main(void)
{
    if (!gpu_devices("fill", 1))
        return 0;
    for (int phase = 0; phase < KVD_N_ATTN_PHASES; phase++)
        for (int sharp = 0; sharp < 2; sharp++) {
            run((kvd_attn_phase)phase, KVD_F16, sharp);
            run((kvd_attn_phase)phase, KVD_BF16, sharp);
        }
    return failures != 0;
}
