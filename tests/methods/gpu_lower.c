/* Compares kernels of the method pair lower+hetero, which gives some tokens fewer bits than others,
 * with the CPU. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "gpu_case.h"
#include "methods/bits/bits.h"
#include "methods/tokens/cuda/lower.h"
#include "worst.h"

enum { MOST = 4, MAX_PAGES = 6, PAGES = MOST * MAX_PAGES, TOKENS = MAX_PAGES * 64, STEPS = 3 };

static kvd_rng rng;

typedef struct {
    const char *name;
    int d, kv, group, n;
    double bits[5]; /* values of hetero's parameters k, v, lk, lv, balance */
    int32_t heavy, recent, prompt[MOST];
} lower_case;

static const lower_case cases[] = {
    {"one token", 16, 1, 1, 1, {8, 4, 4, 2, 0}, 0, 1, {1}},
    {"mikv", 64, 2, 2, 3, {8, 8, 2, 2, 1}, 10, 12, {40, 64, 7}},
    {"wide", 128, 4, 4, 4, {8, 4, 3, 1, 0}, 40, 0, {300, 65, 128, 3}},
    {"floats", 80, 3, 2, 2, {16, 6, 16, 5, 1}, 5, 30, {100, 33}},
    {"widest", 256, 1, 3, 2, {5, 16, 4, 16, 1}, 20, 5, {90, 17}}};

static const int32_t slot[MOST] = {2, 0, 3, 1};

/* CPU copy of one KV head of a request: K and V, and each token's precision level and score */
typedef struct {
    float x[2][TOKENS][KVD_WIDTH_MAX];
    uint8_t level[TOKENS];
    double score[TOKENS];
    float factor[KVD_WIDTH_MAX];
} head;

typedef struct {
    const lower_case *c;
    kvd_lower_args args;
    kvd_parameter_values values;
    int32_t table[PAGES];
    head *head; /* [n][kv] */
    int len[MOST];
    uint16_t *rows; /* host copy of args.rows */
    int32_t *kv_len;
} problem;

static size_t at_of(const problem *p, int b, int g, int side, int t, int i)
{
    return (size_t)(p->table[b * MAX_PAGES + t / 64] * p->args.map.page_elements +
                    p->args.map.kv_offset[g] + side * 64 * p->c->d) +
           kvd_blocked_index((size_t)(t % 64), (size_t)i, (size_t)p->c->d);
}

static void copy_rows(problem *p, bool to_host)
{
    const size_t bytes = (size_t)(PAGES * p->args.map.page_elements) * sizeof *p->rows;
    check(cudaDeviceSynchronize(), "the kernels");
    check(cudaMemcpy(to_host ? p->rows : p->args.rows, to_host ? p->args.rows : p->rows, bytes,
                     cudaMemcpyDefault),
          "copy");
}

static void send_lengths(problem *p)
{
    int32_t n[MOST] = {0};
    for (int b = 0; b < p->c->n; b++)
        n[b] = p->len[b];
    check(cudaMemcpy(p->kv_len, n, sizeof n, cudaMemcpyHostToDevice), "copy");
}

static void make(problem *p, const lower_case *c)
{
    kvd_attn_heads heads = {c->kv * c->group, c->kv, c->d, {0}, {0}, 0};
    kvd_lower_budget budget[MOST];
    *p = (problem){.c = c, .head = need((size_t)(c->n * c->kv) * sizeof *p->head)};
    for (int g = 0; g < c->kv; g++)
        heads.d_qk[g] = heads.d_v[g] = c->d;
    if (kvd_attn_map_make(&heads, &p->args.map)) {
        printf("not ok lower, %s: no such heads\n", c->name);
        exit(1);
    }
    memcpy(p->values.value, c->bits, sizeof c->bits);
    for (int i = 0; i < PAGES; i++)
        p->table[i] = (i * 7 + 5) % PAGES;
    for (int i = 0; i < MOST; i++)
        budget[i] = (kvd_lower_budget){c->heavy, c->recent};
    kvd_lower_args *const a = &p->args;
    size_t words = 0;
    for (int side = 0; side < 2; side++) {
        a->bits[side][KVD_LOWER_HIGH] = (int32_t)c->bits[side];
        a->bits[side][KVD_LOWER_LOW] = (int32_t)c->bits[2 + side];
        words += (size_t)kvd_lower_words(a->bits[side], c->d);
    }
    const size_t places = (size_t)(PAGES * c->kv * 64),
                 pages = (size_t)(PAGES * a->map.page_elements);
    p->rows = need(pages * sizeof *p->rows);
    p->kv_len = on_device(NULL, MOST * sizeof *p->kv_len);
    a->d_head = c->d;
    a->n = c->n;
    a->max_pages = MAX_PAGES;
    a->n_sms = 5;
    a->kv_len = p->kv_len;
    a->slot = on_device(slot, sizeof slot);
    a->page_table = on_device(p->table, sizeof p->table);
    a->rows = on_device(NULL, pages * sizeof *a->rows);
    a->codes = on_device(NULL, places * words * sizeof *a->codes);
    a->level = on_device(NULL, places);
    a->score = on_device(NULL, places * sizeof *a->score);
    if (c->bits[4] > 0)
        a->factor = on_device(NULL, (size_t)(MOST * c->kv * c->d) * sizeof *a->factor);
    a->budget = on_device(budget, sizeof budget);
}

static void release(problem *p)
{
    const kvd_lower_args *const a = &p->args;
    device_free(p->kv_len, a->slot, a->page_table, a->rows, a->codes, a->level, a->score, a->budget,
                a->factor);
    free(p->head);
    free(p->rows);
}

static head *head_of(const problem *p, int b, int g)
{
    return &p->head[b * p->c->kv + g];
}

/* Sets K and V of token t to random numbers, on the device and on the CPU. */
static void draw_token(problem *p, int b, int t)
{
    for (int h = 0; h < 2 * p->c->kv; h++)
        for (int i = 0; i < p->c->d; i++) {
            const uint16_t x = bf16_of((1 + i % 3) * kvd_rng_normal(&rng));
            p->rows[at_of(p, b, h / 2, h % 2, t, i)] = x;
            head_of(p, b, h / 2)->x[h % 2][t][i] = bf16_wide(x);
        }
}

/* Quantises and restores K and V of token t on the CPU by the method hetero, with the number of
 * bits that `level` gives. */
static void code_token(const problem *p, head *h, int t, uint8_t level)
{
    kvd_err err = {""};
    h->level[t] = level;
    for (int side = 0; side < 2; side++) {
        kvd_bits_count count;
        const uint8_t of_token = level == KVD_LOWER_LOW ? KVD_LEVEL_LOW : KVD_LEVEL_HIGH;
        const kvd_bits_block block = {.side = (kvd_side)side,
                                      .n = 1,
                                      .d = (size_t)p->c->d,
                                      .x = h->x[side][t],
                                      .level = &of_token,
                                      .balance =
                                          side == KVD_KEYS && p->args.factor ? h->factor : NULL};
        float decoded[KVD_WIDTH_MAX];
        or_end(kvd_bits_hetero.code(&p->values, &block, decoded, &count, &err), "lower", err.msg);
        for (int i = 0; i < p->c->d; i++)
            h->x[side][t][i] = bf16_rounded((double)decoded[i]);
    }
}

/* Gives low precision to all n tokens except the `recent` newest ones and the `heavy` older ones
 * with the highest scores. */
static void choose(const problem *p, head *h, int n)
{
    for (int t = 0; t < n; t++) {
        int larger = 0;
        for (int s = 0; s < n - p->c->recent; s++)
            larger += h->score[s] > h->score[t];
        h->level[t] =
            t < n - p->c->recent && larger >= p->c->heavy ? KVD_LOWER_LOW : KVD_LOWER_HIGH;
    }
}

static double largest(const float *x, int stride, int n)
{
    double most = 0;
    for (int t = 0; t < n; t++)
        most = fmax(most, fabs((double)x[t * stride]));
    return most;
}

static void run_prompts(problem *p)
{
    const lower_case *const c = p->c;
    const kvd_attn_map *const map = &p->args.map;
    int32_t q_start[MOST] = {0}, rows = 0;
    for (int b = 0; b < c->n; b++) {
        q_start[b] = rows;
        rows += (c->prompt[b] + 7) / 8 * 8;
        p->len[b] = c->prompt[b];
        for (int t = 0; t < c->prompt[b]; t++)
            draw_token(p, b, t);
    }
    const size_t n = (size_t)(map->n_heads * rows);
    float *const mass = need(n * sizeof *mass), *const q = bf16_numbers(&rng, n * (size_t)c->d, 1);
    for (size_t i = 0; i < n; i++)
        mass[i] = (float)kvd_rng_uniform(&rng);
    for (int b = 0; b < c->n; b++)
        for (int g = 0; g < c->kv; g++) {
            head *const h = head_of(p, b, g);
            for (int i = 0; i < c->d; i++) {
                double of_q = 0;
                for (int j = 0; j < c->group; j++)
                    for (int t = 0; t < c->prompt[b]; t++)
                        of_q = fmax(
                            of_q, fabs((double)q[(size_t)(map->q_offset[g * c->group + j] * rows) +
                                                 kvd_blocked_index((size_t)(q_start[b] + t),
                                                                   (size_t)i, (size_t)c->d)]));
                const double of_k = largest(&h->x[0][0][i], KVD_WIDTH_MAX, c->prompt[b]);
                const float f = sqrtf((float)of_q / (float)of_k);
                uint16_t half;
                kvd_from_f32(KVD_F16, &f, &half, 1);
                kvd_to_f32(KVD_F16, &half, &h->factor[i], 1);
            }
            for (int t = 0; t < c->prompt[b]; t++) {
                h->score[t] = 0;
                for (int j = 0; j < c->group; j++)
                    h->score[t] += (double)mass[(g * c->group + j) * rows + q_start[b] + t];
            }
            choose(p, h, c->prompt[b]);
            for (int t = 0; t < c->prompt[b]; t++)
                code_token(p, h, t, h->level[t]);
        }
    send_lengths(p);
    copy_rows(p, false);
    int32_t *const device_start = on_device(q_start, sizeof q_start);
    float *const device_mass = on_device(mass, n * sizeof *mass);
    void *const device_q = on_device_bf16(q, n * (size_t)c->d);
    const kvd_lower_prompts_args a = {rows, device_start, device_mass, device_q};
    check(kvd_lower_prompts(&p->args, &a, NULL), "prompts");
    check(cudaDeviceSynchronize(), "prompts");
    device_free(device_start, device_mass, device_q);
    free(mass);
    free(q);
}

/* Compares K and V that the GPU dequantised from its cache with K and V that the CPU dequantised.
 * The newest token is not quantised and must be equal bit for bit. */
static void compare(problem *p, int step)
{
    double off = 0, rest = 0;
    for (int b = 0; b < p->c->n; b++)
        for (int h = 0; h < 2 * p->c->kv; h++)
            for (int t = 0; t < (p->len[b] + 7) / 8 * 8; t++) {
                const float *const want = head_of(p, b, h / 2)->x[h % 2][t];
                const double size = 1e-3 + largest(want, 1, p->c->d);
                for (int i = 0; i < p->c->d; i++) {
                    const double is = (double)bf16_wide(p->rows[at_of(p, b, h / 2, h % 2, t, i)]);
                    if (t < p->len[b] - 1)
                        off = worse(off, fabs(is - (double)want[i]) / size);
                    else
                        rest = worse(rest, fabs(is - (t < p->len[b] ? (double)want[i] : 0)));
                }
            }
    test_result(off < 0x1p-7 && rest <= 0, p->c->name,
                "step %d, rows off by %.3g of %.3g, other rows by %.3g", step, off, 0x1p-7, rest);
}

/* Computes attention of a decode step on the CPU, with queries q [n][q_pitch]. Writes log-sum-exps
 * to lse [n][n_heads]. */
static void step_on_cpu(problem *p, const float *q, float *lse)
{
    const lower_case *const c = p->c;
    for (int b = 0; b < c->n; b++)
        for (int g = 0; g < c->kv; g++) {
            head *const h = head_of(p, b, g);
            const int n = p->len[b];
            h->score[n - 1] = 0;
            for (int j = g * c->group; j < (g + 1) * c->group; j++) {
                double sum = 1e-300, z[TOKENS];
                for (int t = 0; t < n; t++) {
                    z[t] = 0;
                    for (int i = 0; i < c->d; i++)
                        z[t] += (double)h->x[0][t][i] *
                                (double)q[b * p->args.map.q_pitch + p->args.map.q_offset[j] + i];
                    z[t] = exp(z[t] * (double)p->args.map.scale);
                    sum += z[t];
                }
                for (int t = 0; t < n; t++)
                    h->score[t] += z[t] / sum;
                lse[b * p->args.map.n_heads + j] = (float)log(sum);
            }
            int high = 0, least = -1;
            h->level[n - 1] = KVD_LOWER_HIGH;
            for (int t = 0; t < n - c->recent; t++)
                if (h->level[t] == KVD_LOWER_HIGH) {
                    high++;
                    least = least < 0 || h->score[t] < h->score[least] ? t : least;
                }
            if (high <= c->heavy || least < n - 1)
                code_token(p, h, n - 1, KVD_LOWER_HIGH);
            if (high > c->heavy)
                code_token(p, h, least, KVD_LOWER_LOW);
        }
}

static void test(const lower_case *c)
{
    static problem p;
    make(&p, c);
    run_prompts(&p);
    const size_t n_q = (size_t)(c->n * p.args.map.q_pitch),
                 n_lse = (size_t)(c->n * p.args.map.n_heads);
    float *const lse = need(n_lse * sizeof *lse);
    for (int step = 0; step < STEPS; step++) {
        float *const q = bf16_numbers(&rng, n_q, 1);
        memset(p.rows, 0xff, (size_t)(PAGES * p.args.map.page_elements) * sizeof *p.rows);
        for (int b = 0; b < c->n; b++)
            draw_token(&p, b, p.len[b]++);
        send_lengths(&p);
        copy_rows(&p, false);
        check(kvd_lower_restore(&p.args, NULL), "restore");
        copy_rows(&p, true);
        compare(&p, step);
        step_on_cpu(&p, q, lse);
        void *const device_q = on_device_bf16(q, n_q);
        float *const device_lse = on_device(lse, n_lse * sizeof *lse);
        check(kvd_lower_steps(&p.args, device_q, device_lse, NULL), "steps");
        check(cudaDeviceSynchronize(), "steps");
        device_free(device_q, device_lse);
        free(q);
    }
    free(lse);
    release(&p);
}

/* Tests a kernel that quantises the newest 30 tokens and restores them in place. Other tokens must
 * not change. */
static void test_round(const lower_case *c)
{
    enum { NEWEST = 30 };
    static problem p;
    double off = 0;
    size_t changed = 0;
    make(&p, c);
    for (int b = 0; b < c->n; b++) {
        p.len[b] = c->prompt[b];
        for (int t = 0; t < p.len[b]; t++)
            draw_token(&p, b, t);
    }
    send_lengths(&p);
    copy_rows(&p, false);
    const size_t bytes = (size_t)(PAGES * p.args.map.page_elements) * sizeof *p.rows;
    uint16_t *const before = need(bytes);
    memcpy(before, p.rows, bytes);
    check(kvd_lower_round(&p.args, p.kv_len, NEWEST, NULL), "rounding");
    copy_rows(&p, true);
    for (int b = 0; b < c->n; b++)
        for (int g = 0; g < c->kv; g++)
            for (int t = 0; t < p.len[b]; t++) {
                head *const h = head_of(&p, b, g);
                const bool newest = t + NEWEST >= p.len[b];
                if (newest)
                    code_token(&p, h, t, KVD_LOWER_HIGH);
                for (int i = 0; i < 2 * c->d; i++) {
                    const size_t at = at_of(&p, b, g, i / c->d, t, i % c->d);
                    const float *const want = h->x[i / c->d][t];
                    if (newest)
                        off = worse(off,
                                    fabs((double)bf16_wide(p.rows[at]) - (double)want[i % c->d]) /
                                        (1e-3 + largest(want, 1, c->d)));
                    else
                        changed += p.rows[at] != before[at];
                }
            }
    test_result(off < 0x1p-7 && !changed, c->name,
                "newest tokens rounded, off by %.3g of %.3g, %zu other numbers changed", off,
                0x1p-7, changed);
    free(before);
    release(&p);
}

/* usage: gpu_lower [quick]; quick: small cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
    if (!gpu_devices("lower", 1))
        return 0;
    kvd_rng_seed(&rng, 9, 0);
    for (size_t i = 0; i < (quick ? 2 : sizeof cases / sizeof *cases); i++) {
        test(&cases[i]);
        test_round(&cases[i]);
    }
    return failures ? 1 : 0;
}
