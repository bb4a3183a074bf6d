/*
 * Attention of one task (kernels/attention_cpu_task.h), included once per instruction set by attention_cpu_*.c, which
 * define VL (floats in a vector), NV (vectors of rows in a panel), MR (keys or columns in a register tile), PANELS,
 * KERNEL, the type vf and v_load v_store v_set1 v_fma, and
 *
 *   v_max(a, b)             a > b ? a : b, so b where either is NaN
 *   v_exp2(x)               2^x for x <= 0 within 1 ulp, 0 below -126 or so, NaN stays
 *   v_keep(x, key, limit)   key <= limit ? x : -inf
 *
 * The lanes of a vector are query rows. Q is transposed once per task into panels [d_qk][rows]; then both products are
 * outer products of a vector of rows with one element of K or V, which lie in memory as they are wanted: K and V are
 * not packed, any width fills the vectors, and maximum, exponential and sum need no step across lanes.
 *
 *   S [key][row] = K Q^T     P = 2^(S - max)     O [column][row] = 2^(old max - max) O + V^T P
 *
 * over blocks of KEYS keys, S and O of a block in registers a tile of MR x NV vectors at a time. The block's share of
 * O is summed from zero, so that rounding grows with the square root of KEYS and of the number of blocks, not of the keys.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/attention_cpu_task.h"

enum { PANEL = VL * NV, MAX_ROWS = PANEL * PANELS, KEYS = 96 };

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

/* What is kept between blocks of keys for one panel: nv vectors of rows. */
typedef struct {
    size_t nv;
    float *q;                 /* [d_qk][nv * VL], times scale            */
    float *o;                 /* [d_v, rounded up to MR][nv * VL]        */
    float *max, *sum, *alpha; /* [PANEL]                                 */
    float *limit;             /* [PANEL] last key seen, counted from the last key of the task's first row */
} panel;

/* S of MR keys. When masked, those above the row's limit become -inf. */
INLINE void scores_tile(const size_t nv, const float *q, const float *const k[MR], size_t d, int masked,
                        const float keys[MR], const float *limit, float *s, float *max)
{
    vf acc[MR][NV];
    UNROLL
    for (size_t m = 0; m < MR; m++) {
        UNROLL
        for (size_t n = 0; n < nv; n++)
            acc[m][n] = v_set1(0);
    }
    for (size_t i = 0; i < d; i++) {
        vf x[NV];
        UNROLL
        for (size_t n = 0; n < nv; n++)
            x[n] = v_load(q + (i * nv + n) * VL);
        UNROLL
        for (size_t m = 0; m < MR; m++) {
            const vf y = v_set1(k[m][i]);
            UNROLL
            for (size_t n = 0; n < nv; n++)
                acc[m][n] = v_fma(y, x[n], acc[m][n]);
        }
    }
    if (masked) {
        UNROLL
        for (size_t m = 0; m < MR; m++) {
            UNROLL
            for (size_t n = 0; n < nv; n++)
                acc[m][n] = v_keep(acc[m][n], v_set1(keys[m]), v_load(limit + n * VL));
        }
    }
    UNROLL
    for (size_t n = 0; n < nv; n++) {
        vf x = v_load(max + n * VL);
        UNROLL
        for (size_t m = 0; m < MR; m++) {
            x = v_max(acc[m][n], x);
            v_store(s + (m * nv + n) * VL, acc[m][n]);
        }
        v_store(max + n * VL, x);
    }
}

/* S of n_keys keys, and max [nv * VL]: the larger of what it was and the scores. Not every row sees the last `beyond`
 * keys; key 0 is `first` in the count of limit. A short last tile repeats its last key: the maximum does not change,
 * and S has room for it. */
INLINE void scores(const size_t nv, const float *q, const float *k, size_t d, size_t n_keys, size_t beyond,
                   float first, const float *limit, float *s, float *max)
{
    for (size_t j = 0; j < n_keys; j += MR) {
        const float *row[MR];
        float key[MR];
        const int masked = beyond && j + MR > n_keys - beyond;
        UNROLL
        for (size_t m = 0; m < MR; m++) {
            const size_t at = j + m < n_keys ? j + m : n_keys - 1;
            row[m] = k + at * d;
            key[m] = first + (float)at;
        }
        scores_tile(nv, q, row, d, masked, key, limit, s + j * nv * VL, max);
    }
}

/* P in place of S; max becomes the new maximum, alpha what older sums must be multiplied by. A row that has seen
 * nothing above -inf takes a finite zero point, so that a later score finds sums of 0 and not NaN. */
INLINE void softmax(const size_t nv, size_t n_keys, const float *block_max, float *s, panel *p)
{
    vf zero[NV], sum[NV];
    UNROLL
    for (size_t n = 0; n < nv; n++) {
        const vf max = v_load(block_max + n * VL);
        zero[n] = v_max(max, v_set1(-FLT_MAX));
        v_store(p->alpha + n * VL, v_exp2(v_load(p->max + n * VL) - zero[n]));
        v_store(p->max + n * VL, max);
        sum[n] = v_set1(0);
    }
    for (size_t j = 0; j < n_keys; j++) {
        UNROLL
        for (size_t n = 0; n < nv; n++) {
            float *at = s + (j * nv + n) * VL;
            const vf x = v_exp2(v_load(at) - zero[n]);
            v_store(at, x);
            sum[n] = sum[n] + x;
        }
    }
    UNROLL
    for (size_t n = 0; n < nv; n++)
        v_store(p->sum + n * VL, v_fma(v_load(p->sum + n * VL), v_load(p->alpha + n * VL), sum[n]));
}

/* O [MR columns]; a short last tile repeats its last column into the room behind O. */
INLINE void output_tile(const size_t nv, const float *s, const float *v, size_t d, size_t n_keys,
                        const size_t column[MR], int first, const float *alpha, float *o)
{
    vf acc[MR][NV];
    UNROLL
    for (size_t m = 0; m < MR; m++) {
        UNROLL
        for (size_t n = 0; n < nv; n++)
            acc[m][n] = v_set1(0);
    }
    for (size_t j = 0; j < n_keys; j++) {
        vf x[NV];
        UNROLL
        for (size_t n = 0; n < nv; n++)
            x[n] = v_load(s + (j * nv + n) * VL);
        UNROLL
        for (size_t m = 0; m < MR; m++) {
            const vf y = v_set1(v[j * d + column[m]]);
            UNROLL
            for (size_t n = 0; n < nv; n++)
                acc[m][n] = v_fma(y, x[n], acc[m][n]);
        }
    }
    UNROLL
    for (size_t n = 0; n < nv; n++) {
        const vf a = v_load(alpha + n * VL);
        UNROLL
        for (size_t m = 0; m < MR; m++) {
            float *at = o + (m * nv + n) * VL;
            v_store(at, first ? acc[m][n] : v_fma(v_load(at), a, acc[m][n]));
        }
    }
}

INLINE void output(const size_t nv, const float *s, const float *v, size_t d, size_t n_keys, int first,
                   panel *p)
{
    size_t c = 0, column[MR];
    UNROLL
    for (size_t m = 0; m < MR; m++)
        column[m] = m;
    for (; c + MR <= d; c += MR)
        output_tile(nv, s, v + c, d, n_keys, column, first, p->alpha, p->o + c * nv * VL);
    if (c == d)
        return;
    UNROLL
    for (size_t m = 0; m < MR; m++)
        column[m] = c + m < d ? m : d - 1 - c;
    output_tile(nv, s, v + c, d, n_keys, column, first, p->alpha, p->o + c * nv * VL);
}

static int all_finite(const float *x, size_t n)
{
    float lanes[VL], rest = 0;
    vf sum = v_set1(0);
    size_t i = 0;
    for (; i + VL <= n; i += VL)
        sum = v_fma(v_load(x + i), v_set1(0), sum);
    for (; i < n; i++)
        rest += x[i] * 0;
    v_store(lanes, sum);
    for (i = 0; i < VL; i++)
        rest += lanes[i];
    return rest == 0;
}

/* Adds the last `beyond` keys of a block to the rows that see them and to no other: 0 times NaN would be NaN. */
static void output_seen(const float *s, const float *v, size_t d, size_t n_keys, size_t beyond, float first,
                        panel *p)
{
    const size_t pitch = p->nv * VL;
    for (size_t j = n_keys - beyond; j < n_keys; j++)
        for (size_t c = 0; c < d; c++)
            for (size_t r = 0; r < pitch; r++)
                if (first + (float)j <= p->limit[r])
                    p->o[c * pitch + r] += s[j * pitch + r] * v[j * d + c];
}

/* Keys key .. key + n_keys - 1 into the sums of one panel; all rows see keys below `common`. */
INLINE void block(const size_t nv, const kvd_cpu_task *task, size_t key, size_t n_keys, size_t common,
                  float *s, panel *p)
{
    float max[PANEL] __attribute__((aligned(64)));
    const int first = key == task->key;
    const float *v = task->v + key * task->d_v;
    const size_t all = key >= common ? 0 : common - key < n_keys ? common - key : n_keys;
    const size_t beyond = n_keys - all;
    const float offset = beyond ? (float)((ptrdiff_t)key - (ptrdiff_t)common + 1) : 0;
    memcpy(max, p->max, sizeof max);
    scores(nv, p->q, task->k + key * task->d_qk, task->d_qk, n_keys, beyond, offset, p->limit, s, max);
    softmax(nv, n_keys, max, s, p);
    if (!beyond || all_finite(v + all * task->d_v, beyond * task->d_v)) {
        output(nv, s, v, task->d_v, n_keys, first, p);
    } else {
        output(nv, s, v, task->d_v, all, first, p);
        output_seen(s, v, task->d_v, n_keys, beyond, offset, p);
    }
}

/* rows of the task from `from` on */
static void load_panel(const kvd_cpu_task *task, size_t from, float scale, panel *p)
{
    const size_t left = task->rows - from, rows = left < PANEL ? left : PANEL, pitch = p->nv * VL;
    for (size_t r = 0; r < PANEL; r++) {
        p->max[r] = -INFINITY;
        p->sum[r] = 0;
        p->limit[r] = INFINITY;
    }
    memset(p->q, 0, pitch * task->d_qk * sizeof *p->q);
    for (size_t r = 0; r < rows; r++) {
        const size_t row = task->row + from + r, t = row / task->group;
        const float *q = task->q + row % task->group * task->q_head + t * task->d_qk;
        p->limit[r] = (float)(t - task->row / task->group);
        for (size_t i = 0; i < task->d_qk; i++)
            p->q[i * pitch + r] = q[i] * scale;
    }
}

static void store_panel(const kvd_cpu_task *task, size_t from, const panel *p)
{
    const size_t left = task->rows - from, rows = left < PANEL ? left : PANEL, pitch = p->nv * VL;
    for (size_t r = 0; r < rows; r++) {
        const size_t row = task->row + from + r, t = row / task->group;
        float *to = task->out + row % task->group * task->out_head + t * task->d_v;
        float factor = 1 / p->sum[r];
        if (task->partial) {
            task->partial[from + r] = p->max[r];
            task->partial[task->rows + from + r] = p->sum[r];
            to = task->partial + 2 * task->rows + (from + r) * task->d_v;
            factor = 1;
        }
        for (size_t c = 0; c < task->d_v; c++)
            to[c] = p->o[c * pitch + r] * factor;
    }
}

static size_t q_floats(size_t d_qk)
{
    return (d_qk * PANEL + 15) / 16 * 16;
}

static size_t o_floats(size_t d_v)
{
    return ((d_v + MR) * PANEL + 15) / 16 * 16;
}

enum { S_FLOATS = ((KEYS + MR) * PANEL + 15) / 16 * 16, STATE_FLOATS = (4 * PANEL + 15) / 16 * 16 };

static size_t scratch_floats(size_t d_qk, size_t d_v)
{
    return S_FLOATS + PANELS * (STATE_FLOATS + q_floats(d_qk) + o_floats(d_v));
}

static void run(const kvd_cpu_task *task, float scale, float *scratch)
{
    panel panels[PANELS];
    const size_t n_panels = (task->rows + PANEL - 1) / PANEL;
    float *s = scratch;
    scratch += S_FLOATS;
    for (size_t i = 0; i < n_panels; i++) {
        panel *p = &panels[i];
        const size_t left = task->rows - i * PANEL;
        p->nv = ((left < PANEL ? left : PANEL) + VL - 1) / VL;
        p->max = scratch;
        p->sum = p->max + PANEL;
        p->alpha = p->sum + PANEL;
        p->limit = p->alpha + PANEL;
        p->q = scratch + STATE_FLOATS;
        p->o = p->q + q_floats(task->d_qk);
        scratch = p->o + o_floats(task->d_v);
        load_panel(task, i * PANEL, scale, p);
    }
    /* Keys that every row of the task sees end here. */
    const size_t common = task->position + task->row / task->group + 1;
    for (size_t key = task->key; key < task->key_end; key += KEYS) {
        const size_t n_keys = task->key_end - key < KEYS ? task->key_end - key : KEYS;
        for (size_t i = 0; i < n_panels; i++)
            switch (panels[i].nv) {
            case 1:
                block(1, task, key, n_keys, common, s, &panels[i]);
                break;
#if NV > 1
            case 2:
                block(2, task, key, n_keys, common, s, &panels[i]);
                break;
#endif
#if NV > 2
            case 3:
                block(3, task, key, n_keys, common, s, &panels[i]);
                break;
#endif
#if NV > 3
            case 4:
                block(4, task, key, n_keys, common, s, &panels[i]);
                break;
#endif
            }
    }
    for (size_t i = 0; i < n_panels; i++)
        store_panel(task, i * PANEL, &panels[i]);
}

const kvd_cpu_kernel KERNEL = {
    .max_rows = MAX_ROWS, .row_unit = VL, .key_block = KEYS, .scratch = scratch_floats, .run = run};
