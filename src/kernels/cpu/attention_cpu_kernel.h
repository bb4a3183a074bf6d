/* CPU attention of some query rows of one KV head. The file is included once per instruction set.
 * Each lane of a vector has one query row. A panel is a group of such vectors.
 *
 * The including file must define:
 * - VL: number of floats in a vector.
 * - NV: largest number of vectors in a panel.
 * - MR: number of keys (or columns of V) that are processed together, with sums in registers.
 * - MR_ONE: replaces MR in panels of a single vector.
 * - PANELS: largest number of panels in a task.
 * - KERNEL: name of the kvd_cpu_kernel.
 * - vf: the vector type, with v_load, v_store, v_set1 and v_fma.
 * - v_max(a, b): a > b ? a : b, hence b if either is NaN.
 * - v_keep(x, key, limit): key <= limit ? x : -inf.
 * - vi: a vector of int, to compute 2^x. Not needed if V_EXP2 and v_exp2(x) = 2^x are defined. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/attention_cpu_task.h"

#ifndef V_EXP2
/* Returns 2^x by a minimax polynomial of degree 6, relative error 2e-9. x < -127 gives 0. */
static inline vf v_exp2(vf x)
{
    const vf magic = v_set1(0x1.8p23f + 127);
    x = v_max(v_set1(-127), x);
    const vf shifted = x + magic, f = x - (shifted - magic);
    const vf two_n = (vf)((vi)shifted << 23);
    vf p = v_set1(0.0001534581242594868f);
    p = v_fma(p, f, v_set1(0.0013399930903688073f));
    p = v_fma(p, f, v_set1(0.009618489071726799f));
    p = v_fma(p, f, v_set1(0.05550328642129898f));
    p = v_fma(p, f, v_set1(0.24022646248340607f));
    p = v_fma(p, f, v_set1(0.6931471824645996f));
    p = v_fma(p, f, v_set1(1));
    return p * two_n;
}
#endif

enum { PANEL = VL * NV, MAX_ROWS = PANEL * PANELS, KEYS = 96, MR_MOST = MR > MR_ONE ? MR : MR_ONE };
enum { AHEAD = 4096, LINE = 64 };

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE   static inline __attribute__((always_inline))
#define TILE(nv) ((nv) == 1 ? (size_t)MR_ONE : (size_t)MR)

typedef struct {
    size_t nv, from, rows; /* number of vectors, first row within the task, number of rows */
    /* common: number of keys to which all query rows attend. end: number of keys to which at least
     * one query row attends. */
    size_t common, end;
    int empty; /* 1 if `o` is not initialised */
    float *q;  /* [d_qk][nv * VL] Queries multiplied by the scale of the scores. */
    /* [d_v][query rows] Attention outputs, not yet divided by the softmax sums, followed by
     * padding. */
    float *o;
    float *max, *sum, *alpha; /* [PANEL]; `alpha` is the factor that rescales older sums */
    /* [PANEL] Number of keys to which each query row attends, minus the smallest of these
     * numbers. */
    float *limit;
} panel;

INLINE void ask_for(uintptr_t *line, uintptr_t to)
{
    for (; *line < to; *line += LINE)
        __builtin_prefetch((const void *)*line);
}

/* Computes attention scores of a few keys, and updates the maximum score of each query. If
 * `masked`, keys after a query's position get score -infinity. */
INLINE void scores_tile(const size_t nv, const float *q, const float *const *k, size_t d,
                        int masked, const float *keys, const float *limit, float *s, float *max,
                        const float *v, size_t v_step)
{
    const size_t mr = TILE(nv);
    vf acc[MR_MOST][NV];
    uintptr_t line = (uintptr_t)v;
    UNROLL
    for (size_t m = 0; m < mr; m++) {
        UNROLL
        for (size_t n = 0; n < nv; n++)
            acc[m][n] = v_set1(0);
    }
    for (size_t i = 0; i < d; i++) {
        vf x[NV];
        if (nv == 1 && i % 16 == 0) {
            UNROLL
            for (size_t m = 0; m < mr; m++)
                __builtin_prefetch((const void *)((uintptr_t)(k[m] + i) + AHEAD));
            ask_for(&line, (uintptr_t)v + (i / 16 + 1) * v_step);
        }
        UNROLL
        for (size_t n = 0; n < nv; n++)
            x[n] = v_load(q + (i * nv + n) * VL);
        UNROLL
        for (size_t m = 0; m < mr; m++) {
            const vf y = v_set1(k[m][i]);
            UNROLL
            for (size_t n = 0; n < nv; n++)
                acc[m][n] = v_fma(y, x[n], acc[m][n]);
        }
    }
    if (masked) {
        UNROLL
        for (size_t m = 0; m < mr; m++) {
            UNROLL
            for (size_t n = 0; n < nv; n++)
                acc[m][n] = v_keep(acc[m][n], v_set1(keys[m]), v_load(limit + n * VL));
        }
    }
    UNROLL
    for (size_t n = 0; n < nv; n++) {
        vf x = v_load(max + n * VL);
        UNROLL
        for (size_t m = 0; m < mr; m++) {
            x = v_max(acc[m][n], x);
            v_store(s + (m * nv + n) * VL, acc[m][n]);
        }
        v_store(max + n * VL, x);
    }
}

/* Computes the scores of n_keys keys from index `key` on. Only the last `beyond` of these keys need
 * the causal mask. */
INLINE void scores(const size_t nv, const kvd_cpu_task *task, size_t key, size_t n_keys,
                   size_t beyond, const panel *p, float *s, float *max)
{
    const size_t mr = TILE(nv), d = task->d_qk, d_v = task->d_v;
    const float *k = task->k + key * d, *v = task->v + key * d_v;
    const size_t v_step = nv == 1 ? (mr * d_v * sizeof *v * 16 + d - 1) / d : 0;
    for (size_t j = 0; j < n_keys; j += mr) {
        const float *row[MR_MOST];
        float keys[MR_MOST];
        const int masked = beyond && j + mr > n_keys - beyond;
        UNROLL
        for (size_t m = 0; m < mr; m++) {
            const size_t at = j + m < n_keys ? j + m : n_keys - 1;
            row[m] = k + at * d;
            keys[m] = masked ? (float)(ptrdiff_t)(key + at + 1 - p->common) : 0;
        }
        scores_tile(nv, p->q, row, d, masked, keys, p->limit, s + j * nv * VL, max, v + j * d_v,
                    v_step);
    }
}

/* Replaces scores by weights 2^(score - maximum), and updates each query row's maximum and sum. */
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

INLINE void output_tile(const size_t nv, const float *s, const float *v, size_t d, size_t n_keys,
                        const size_t *column, int first, const float *alpha, float *o)
{
    const size_t mr = TILE(nv);
    vf acc[MR_MOST][NV];
    UNROLL
    for (size_t m = 0; m < mr; m++) {
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
        for (size_t m = 0; m < mr; m++) {
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
        for (size_t m = 0; m < mr; m++) {
            float *at = o + (m * nv + n) * VL;
            v_store(at, first ? acc[m][n] : v_fma(v_load(at), a, acc[m][n]));
        }
    }
}

INLINE void output(const size_t nv, const float *s, const float *v, size_t d, size_t n_keys,
                   panel *p)
{
    const size_t mr = TILE(nv);
    size_t c = 0, column[MR_MOST];
    UNROLL
    for (size_t m = 0; m < mr; m++)
        column[m] = m;
    for (; c + mr <= d; c += mr)
        output_tile(nv, s, v + c, d, n_keys, column, p->empty, p->alpha, p->o + c * nv * VL);
    if (c < d) {
        UNROLL
        for (size_t m = 0; m < mr; m++)
            column[m] = c + m < d ? m : d - 1 - c;
        output_tile(nv, s, v + c, d, n_keys, column, p->empty, p->alpha, p->o + c * nv * VL);
    }
    p->empty = 0;
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

/* Adds weighted values V to the outputs of those query rows that attend to the key. Other rows are
 * skipped: their weight is 0, but 0 times NaN is NaN. */
static void output_seen(const float *s, const float *v, size_t d, size_t key, size_t from,
                        size_t n_keys, panel *p)
{
    const size_t pitch = p->nv * VL;
    for (size_t j = from; j < n_keys; j++)
        for (size_t c = 0; c < d; c++)
            for (size_t r = 0; r < pitch; r++)
                if ((float)(ptrdiff_t)(key + j + 1 - p->common) <= p->limit[r])
                    p->o[c * pitch + r] += s[j * pitch + r] * v[j * d + c];
}

INLINE void block(const size_t nv, const kvd_cpu_task *task, size_t key, size_t n_keys, float *s,
                  panel *p)
{
    float max[PANEL] __attribute__((aligned(64)));
    const float *v = task->v + key * task->d_v;
    const size_t seen = key >= p->common ? 0 : p->common - key < n_keys ? p->common - key : n_keys;
    memcpy(max, p->max, sizeof max);
    scores(nv, task, key, n_keys, n_keys - seen, p, s, max);
    softmax(nv, n_keys, max, s, p);
    if (seen == n_keys || all_finite(v + seen * task->d_v, (n_keys - seen) * task->d_v)) {
        output(nv, s, v, task->d_v, n_keys, p);
    } else {
        output(nv, s, v, task->d_v, seen, p);
        output_seen(s, v, task->d_v, key, seen, n_keys, p);
    }
}

/* Defines a variant of function `block` for a constant number of vectors nv, which runs faster. */
#define BLOCK(nv)                                                                                  \
    __attribute__((noinline)) static void block_##nv(const kvd_cpu_task *task, size_t key,         \
                                                     size_t n_keys, float *s, panel *p)            \
    {                                                                                              \
        block(nv, task, key, n_keys, s, p);                                                        \
    }
BLOCK(1)
BLOCK(2)
#if NV == 3
BLOCK(3)
#elif NV != 2
#error "panels are of 2 or 3 vectors"
#endif

typedef float four __attribute__((vector_size(16)));

INLINE void transpose(four x[4])
{
    const four a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
    const four b = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    const four c = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    const four d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    x[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    x[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    x[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

static void load_panel(const kvd_cpu_task *task, float scale, panel *p)
{
    const size_t d = task->d_qk, pitch = p->nv * VL, first = (task->row + p->from) / task->group;
    for (size_t r = 0; r < pitch; r += 4) {
        const float *q[4];
        for (size_t e = 0; e < 4; e++) {
            const size_t row = task->row + p->from + (r + e < p->rows ? r + e : p->rows - 1);
            q[e] = task->q + row % task->group * task->q_head + row / task->group * d;
            p->limit[r + e] = (float)(row / task->group - first);
            p->max[r + e] = -INFINITY;
            p->sum[r + e] = 0;
        }
        size_t i = 0;
        for (; i + 4 <= d; i += 4) {
            four x[4];
            UNROLL
            for (size_t e = 0; e < 4; e++)
                memcpy(&x[e], q[e] + i, sizeof x[e]);
            transpose(x);
            UNROLL
            for (size_t e = 0; e < 4; e++) {
                x[e] = x[e] * scale;
                memcpy(p->q + (i + e) * pitch + r, &x[e], sizeof x[e]);
            }
        }
        for (; i < d; i++)
            for (size_t e = 0; e < 4; e++)
                p->q[i * pitch + r + e] = q[e][i] * scale;
    }
}

/* Writes the attention outputs of a panel (group of query rows). Divides them by the softmax sums,
 * unless the task has only part of the keys. */
static void store_panel(const kvd_cpu_task *task, panel *p)
{
    const size_t d = task->d_v, pitch = p->nv * VL;
    if (p->empty)
        memset(p->o, 0, pitch * d * sizeof *p->o);
    for (size_t r = 0; r < p->rows; r += 4) {
        float *to[4], factor[4];
        const size_t n = p->rows - r < 4 ? p->rows - r : 4;
        for (size_t e = 0; e < n; e++) {
            const size_t at = p->from + r + e, row = task->row + at;
            factor[e] = 1 / p->sum[r + e];
            to[e] = task->out + row % task->group * task->out_head + row / task->group * d;
            if (task->partial) {
                task->partial[at] = p->max[r + e];
                task->partial[task->rows + at] = p->sum[r + e];
                to[e] = task->partial + 2 * task->rows + at * d;
                factor[e] = 1;
            }
        }
        size_t c = 0;
        for (; c + 4 <= d; c += 4) {
            four x[4];
            UNROLL
            for (size_t e = 0; e < 4; e++)
                memcpy(&x[e], p->o + (c + e) * pitch + r, sizeof x[e]);
            transpose(x);
            for (size_t e = 0; e < n; e++) {
                x[e] = x[e] * factor[e];
                memcpy(to[e] + c, &x[e], sizeof x[e]);
            }
        }
        for (; c < d; c++)
            for (size_t e = 0; e < n; e++)
                to[e][c] = p->o[c * pitch + r + e] * factor[e];
    }
}

static size_t aligned(size_t floats)
{
    return (floats + 15) / 16 * 16;
}

enum {
    S_FLOATS = ((KEYS + MR_MOST) * PANEL + 15) / 16 * 16,
    STATE_FLOATS = (4 * PANEL + 15) / 16 * 16
};

static size_t scratch_floats(size_t d_qk, size_t d_v)
{
    return S_FLOATS +
           PANELS * (STATE_FLOATS + aligned(d_qk * PANEL) + aligned((d_v + MR_MOST) * PANEL));
}

static void make_panel(const kvd_cpu_task *task, size_t from, float scale, float *scratch, panel *p)
{
    const size_t left = task->rows - from, first = task->row + from;
    p->from = from;
    p->rows = left < PANEL ? left : PANEL;
    p->nv = (p->rows + VL - 1) / VL;
    p->common = task->position + first / task->group + 1;
    p->end = task->position + (first + p->rows - 1) / task->group + 1;
    p->empty = 1;
    p->max = scratch;
    p->sum = p->max + PANEL;
    p->alpha = p->sum + PANEL;
    p->limit = p->alpha + PANEL;
    p->q = scratch + STATE_FLOATS;
    p->o = p->q + aligned(task->d_qk * PANEL);
    load_panel(task, scale, p);
}

static void run(const kvd_cpu_task *task, float scale, float *scratch)
{
    panel panels[PANELS];
    const size_t n_panels = (task->rows + PANEL - 1) / PANEL;
    const size_t per_panel = (scratch_floats(task->d_qk, task->d_v) - S_FLOATS) / PANELS;
    for (size_t i = 0; i < n_panels; i++)
        make_panel(task, i * PANEL, scale, scratch + S_FLOATS + i * per_panel, &panels[i]);
    /* In decode, smaller key blocks keep the values V in the L1 cache. */
    const size_t step = task->rows <= VL ? KEYS / 2 : KEYS;
    for (size_t key = task->key; key < task->key_end; key += step)
        for (size_t i = 0; i < n_panels; i++) {
            panel *p = &panels[i];
            const size_t end = task->key_end < p->end ? task->key_end : p->end;
            if (key >= end)
                continue;
            const size_t n_keys = end - key < step ? end - key : step;
            if (p->nv == 1)
                block_1(task, key, n_keys, scratch, p);
            else if (p->nv == 2)
                block_2(task, key, n_keys, scratch, p);
#if NV == 3
            else
                block_3(task, key, n_keys, scratch, p);
#endif
        }
    for (size_t i = 0; i < n_panels; i++)
        store_panel(task, &panels[i]);
}

const kvd_cpu_kernel KERNEL = {
    .max_rows = MAX_ROWS, .row_unit = VL, .key_block = KEYS, .scratch = scratch_floats, .run = run};
