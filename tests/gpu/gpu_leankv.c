/* Compares kernels of the method LeanKV with a reference in double precision and with the CPU. */
#include <math.h>

#include "leankv_case.h"
#include "methods/bits/bits.h"
#include "methods/tokens/tokens.h"
#include "worst.h"

static void check_masses(fixture *f)
{
    const size_t tokens = all_tokens(f), n_heads = (size_t)(f->s->kv * f->s->group);
    double worst = 0;
    check(kvd_leankv_masses(&f->p, 0), "masses");
    float *const got = from_device(f->p.mass, n_heads * (size_t)f->n_q8 * sizeof(float));
    for (size_t h = 0; h < n_heads; h++)
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < f->s->n[r]; i++) {
                const double want = f->mass[h * tokens + first_token(f, r) + (size_t)i];
                const double e =
                    fabs((double)got[h * (size_t)f->n_q8 + (size_t)(f->q_start[r] + i)] - want) /
                    fmax(want, 1e-30);
                worst = worse(worst, e);
            }
    test_result(worst < 2e-5, f->s->name, "masses of %zu tokens in %zu heads off by %.2g", tokens,
                n_heads, worst);
    free(got);
}

typedef struct {
    /* codes: number of tokens with wrong quantised K or V. levels: number of tokens at a wrong
     * precision. counts: number of wrong thresholds and token counts. */
    int codes, levels, counts;
    double score;
    int64_t n[KVD_LEANKV_LEVELS];
    int dropped;
} prompt_result;

static void check_prompt_head(fixture *f, int row, int g, char *page, prompt_result *out)
{
    const setting *const s = f->s;
    const size_t tokens = all_tokens(f), n = (size_t)s->n[row], d = (size_t)s->d;
    const size_t first = ((size_t)g * tokens + first_token(f, row)) * d;
    double *const mass = need(n * sizeof *mass), *const own = need(n * sizeof *own);
    uint8_t *const level = need(n);
    const kvd_parameter_values values = {.value = {s->th, s->tl, (double)s->window}};
    const kvd_tokens_self self = {.v = &values};
    void *const state = need(kvd_tokens_leankv.state_bytes(&self, n));
    kvd_err err;
    for (int j = 0; j < s->group; j++)
        for (size_t t = 0; t < n; t++)
            mass[t] += f->mass[(size_t)(g * s->group + j) * tokens + first_token(f, row) + t];
    memset(level, KVD_LEVEL_HIGH, n);
    const kvd_prompt_attention a = {
        .group = s->group, .n = n, .n_expected = n, .mass = mass, .own = own};
    (void)kvd_tokens_leankv.prompt(&self, state, &a, level, &err);
    const section x = read_head(f, row, g, page);
    double total = 0, cut[KVD_LEANKV_LEVELS] = {0, 0};
    const size_t body = n > (size_t)s->window ? n - (size_t)s->window : 0;
    for (size_t t = 0; t < body; t++)
        total += mass[t] / s->group / (double)(n - t - 1);
    for (size_t t = 0; t < n; t++) {
        const item *const e = at_position(&x, (int)t);
        const int is = !e                            ? KVD_LEVEL_DROPPED
                       : e->level == KVD_LEANKV_HIGH ? KVD_LEVEL_HIGH
                                                     : KVD_LEVEL_LOW;
        const double relative =
            mass[t] / s->group / fmax((double)(n - t - 1), 1) * (double)body / total;
        out->levels += is != level[t];
        out->dropped += is == KVD_LEVEL_DROPPED;
        if (is != KVD_LEVEL_HIGH && relative > cut[KVD_LEANKV_HIGH])
            cut[KVD_LEANKV_HIGH] = relative;
        if (is == KVD_LEVEL_DROPPED && relative > cut[KVD_LEANKV_LOW])
            cut[KVD_LEANKV_LOW] = relative;
        if (!e)
            continue;
        out->codes += other_codes(f, e, f->k + first + t * d, f->v + first + t * d);
        out->score = worse(out->score, fabs((double)e->score - mass[t] / s->group) /
                                           fmax(mass[t] / s->group, 1e-30));
    }
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++) {
        out->counts += !(fabs((double)x.head.cut[l] - cut[l]) <= 1e-4 * cut[l]);
        out->n[l] += x.head.n[l];
    }
    out->counts += x.n != x.head.n[0] + x.head.n[1];
    host_free(x.item, mass, own, level, state);
}

static void check_prompts(fixture *f, char *page)
{
    prompt_result r = {0};
    kvd_leankv_state state;
    check(kvd_leankv_compress(&f->p, 0), "compress");
    check(cudaDeviceSynchronize(), "compress");
    for (int row = 0; row < ROWS; row++)
        for (int g = 0; g < f->s->kv; g++)
            check_prompt_head(f, row, g, page, &r);
    to_host(&state, f->pool.state, sizeof state);
    /* Rounding may move up to two tokens to another precision level (high, low or dropped). */
    test_result(
        !r.codes && r.levels <= 2 && !r.counts && r.score < 1e-4 && state.entries[0] == r.n[0] &&
            state.entries[1] == r.n[1] && !state.wanted,
        f->s->name,
        "prompts: %lld high, %lld low, %d dropped; %d codes, %d levels, %d counts other, scores off by %.2g",
        (long long)r.n[0], (long long)r.n[1], r.dropped, r.codes, r.levels, r.counts, r.score);
}

typedef struct {
    double out, lse, score;
    /* wrong: number of tokens at a wrong precision. codes: number of tokens with wrong quantised K
     * or V. lost: number of heads with a wrong number of tokens. */
    int wrong, codes, lost;
    int kept, lowered, dropped, replaced, close;
} step_result;

typedef struct {
    section x;
    const float *q, *k, *v; /* queries [group][d], key and value of the new token [d] */
    double *received;
} head_step;

static void attend_in_double(const fixture *f, head_step *h, int g, int j, double *out, double *lse)
{
    const int d = f->s->d, n = h->x.n;
    double *const p = need((size_t)(n + 1) * sizeof *p), most = -INFINITY, sum = 0;
    for (int i = 0; i <= n; i++) {
        const float *const k = i < n ? h->x.item[i].k : h->k;
        double x = 0;
        for (int e = 0; e < d; e++)
            x += (double)h->q[j * d + e] * (double)k[e];
        p[i] = x * (double)f->map.scale;
        most = fmax(most, p[i]);
    }
    for (int i = 0; i <= n; i++)
        sum += p[i] = exp(p[i] - most);
    if (f->t.sinks)
        sum += exp((double)f->sinks[g * f->s->group + j] - most);
    for (int e = 0; e < d; e++)
        out[e] = 0;
    for (int i = 0; i <= n; i++) {
        const float *const v = i < n ? h->x.item[i].v : h->v;
        for (int e = 0; e < d; e++)
            out[e] += p[i] / sum * (double)v[e];
        h->received[i] += p[i] / sum / f->s->group;
    }
    *lse = most + log(sum);
    free(p);
}

/* Computes the precision level of each token of one KV head after a decode step of LeanKV's
 * Algorithm 1. Writes the n + 1 levels to `to`. Returns 0 if rounding errors could change a
 * level. */
static int expected_levels(const fixture *f, const head_step *h, int now, uint8_t *to)
{
    const int n = h->x.n, window = f->s->window;
    int leaving = -1, least[KVD_LEANKV_LEVELS] = {-1, -1};
    double mean = 0, *const sig = need((size_t)(n + 1) * sizeof *sig);
    for (int i = 0; i < n; i++) {
        const item *const e = &h->x.item[i];
        to[i] = e->level == KVD_LEANKV_HIGH ? KVD_LEVEL_HIGH : KVD_LEVEL_LOW;
        sig[i] = ((double)e->score + h->received[i]) / (double)(now - e->position);
        if (e->position + window > now)
            continue;
        mean += sig[i] / (double)(n + 1 - window);
        leaving = e->position + window == now ? i : leaving;
        if (least[e->level] < 0 || sig[i] < sig[least[e->level]])
            least[e->level] = i;
    }
    to[n] = KVD_LEVEL_HIGH;
    int sure = 1;
    if (leaving >= 0) {
        const double low = (double)h->x.head.cut[KVD_LEANKV_LOW],
                     high = (double)h->x.head.cut[KVD_LEANKV_HIGH];
        const double its = sig[leaving] / mean;
        sure = fabs(its - low) > 1e-4 * low && fabs(its - high) > 1e-4 * high;
        to[leaving] = its < low ? KVD_LEVEL_DROPPED : its < high ? KVD_LEVEL_LOW : KVD_LEVEL_HIGH;
        int victim = to[leaving] == KVD_LEVEL_DROPPED
                         ? -1
                         : least[to[leaving] == KVD_LEVEL_LOW ? KVD_LEANKV_LOW : KVD_LEANKV_HIGH];
        if (to[leaving] == KVD_LEVEL_LOW && (victim < 0 || sig[leaving] < sig[victim]))
            victim = leaving;
        const double of_victim = victim < 0 ? INFINITY : sig[victim] / mean;
        if (victim >= 0) {
            sure =
                sure && fabs(of_victim - low) > 1e-4 * low && fabs(of_victim - high) > 1e-4 * high;
            if (of_victim < low)
                to[victim] = KVD_LEVEL_DROPPED;
            else if (to[leaving] == KVD_LEVEL_HIGH && of_victim < high)
                to[victim] = KVD_LEVEL_LOW;
        }
    }
    free(sig);
    return sure;
}

static void check_update(const fixture *f, const head_step *h, int now, const section *after,
                         step_result *r)
{
    const int n = h->x.n, d = f->s->d;
    uint8_t *const to = need((size_t)(n + 1));
    if (!expected_levels(f, h, now, to)) {
        r->close++;
        free(to);
        return;
    }
    int left = 0;
    for (int i = 0; i <= n; i++) {
        const int position = i < n ? h->x.item[i].position : now;
        const item *const e = at_position(after, position);
        const int is = !e                            ? KVD_LEVEL_DROPPED
                       : e->level == KVD_LEANKV_HIGH ? KVD_LEVEL_HIGH
                                                     : KVD_LEVEL_LOW;
        r->wrong += is != to[i];
        left += is != KVD_LEVEL_DROPPED;
        if (!e || is != to[i]) {
            r->dropped += !e;
            continue;
        }
        const double want = i < n ? (double)h->x.item[i].score + h->received[i] : 0;
        r->score = worse(r->score, fabs((double)e->score - want) / fmax(want, 1e-30));
        if (i == n) {
            r->codes += other_codes(f, e, h->k, h->v);
        } else if (h->x.item[i].level == e->level) {
            r->codes += memcmp(h->x.item[i].k, e->k, (size_t)d * sizeof(float)) != 0 ||
                        memcmp(h->x.item[i].v, e->v, (size_t)d * sizeof(float)) != 0;
        } else {
            float k[D_MAX], v[D_MAX];
            for (int j = 0; j < d; j++) {
                k[j] = bf16_rounded((double)h->x.item[i].k[j]);
                v[j] = bf16_rounded((double)h->x.item[i].v[j]);
            }
            r->codes += other_codes(f, e, k, v);
            r->lowered++;
        }
    }
    r->lost += left != after->n;
    free(to);
}

static void make_steps(fixture *f)
{
    const setting *const s = f->s;
    const size_t rows = ROWS + 1, kv = (size_t)s->kv, columns = (size_t)(s->group + 1) / 2 * 2;
    int32_t table[ROWS + 1], longest = 0;
    for (int i = 0; i <= ROWS; i++)
        table[i] = ROWS - i;
    for (int i = 0; i < ROWS; i++)
        longest = s->n[i] > longest ? s->n[i] : longest;
    f->t = (kvd_leankv_steps){
        .pool = f->pool,
        .layer = LAYER,
        .n = ROWS + 1,
        .group = s->group,
        .room = longest + s->steps,
        .scale = f->map.scale,
        .slot = on_device(f->slot, sizeof f->slot),
        .at = on_device(NULL, rows * sizeof(uint32_t)),
        .page_table = on_device(table, sizeof table),
        .max_pages = 1,
        .fresh = on_device(NULL, rows * (size_t)f->map.page_elements * 2),
        .q = on_device(NULL, rows * (size_t)f->map.q_pitch * 2),
        .o = on_device(NULL, rows * (size_t)f->map.o_pitch * 2),
        .score = on_device(NULL, rows * kv * (size_t)(longest + s->steps) * columns * 4),
        .lse2 = on_device(NULL, rows * kv * 8 * 4),
        .partial = on_device(NULL, rows * kv * 32 * 8 * (size_t)(s->d + 2) * 4),
        .arrived = on_device(NULL, rows * kv * 4),
        .window = s->window};
    for (int h = 0; h < s->kv * s->group; h++)
        f->sinks[h] = (float)(3 * kvd_rng_normal(&f->rng));
    if (s->group > 2)
        f->t.sinks = on_device(f->sinks, sizeof f->sinks);
    fill_bytes(f->t.arrived, 0, rows * kv * 4);
}

static void free_steps(const kvd_leankv_steps *t)
{
    device_free(t->slot, t->at, t->page_table, t->fresh, t->q, t->o, t->score, t->lse2, t->partial,
                t->arrived, t->sinks);
}

static void compare_out(const fixture *f, head_step *h, int g, const float *got, const float *lse2,
                        step_result *r)
{
    double out[D_MAX], lse;
    for (int j = 0; j < f->s->group; j++) {
        double worst = 0, largest = 0;
        attend_in_double(f, h, g, j, out, &lse);
        for (int e = 0; e < f->s->d; e++) {
            const double x = fabs((double)got[j * f->s->d + e] - out[e]);
            worst = worse(worst, x);
            largest = fmax(largest, fabs(out[e]));
        }
        r->out = worse(r->out, worst / largest);
        r->lse = worse(r->lse, fabs((double)lse2[j] * log(2) - lse));
    }
}

static void one_step(fixture *f, int step, char *page, step_result *r)
{
    const setting *const s = f->s;
    const size_t rows = ROWS + 1, d = (size_t)s->d, kv = (size_t)s->kv, group = (size_t)s->group;
    int32_t one[ROWS + 1], table[ROWS + 1];
    uint32_t at[ROWS + 1] = {0};
    for (int i = 0; i <= ROWS; i++) {
        one[i] = 1;
        table[i] = ROWS - i;
        at[i] = i < ROWS ? (uint32_t)(s->n[i] + step) : 0;
    }
    const kvd_attn_batch batch = {ROWS + 1, one, one};
    float *const q = numbers(f, kv * group * rows * d, 1.5),
                 *const k = numbers(f, kv * rows * d, 1), *const v = numbers(f, kv * rows * d, 1),
                 *const o = need(rows * kv * group * d * sizeof *o);
    uint16_t *const narrow = need(rows * (size_t)f->map.page_elements * 2);
    float *const lse2 = need(rows * kv * 8 * sizeof *lse2);
    head_step *const h = need(ROWS * kv * sizeof *h);
    kvd_pack_q_decode(&f->map, &batch, KVD_BF16, q, narrow);
    to_device((void *)f->t.q, narrow, rows * (size_t)f->map.q_pitch * 2);
    memset(narrow, 0xff, rows * (size_t)f->map.page_elements * 2);
    kvd_pack_kv(&f->map, &batch, KVD_BF16, k, v, table, 1, narrow);
    to_device((void *)f->t.fresh, narrow, rows * (size_t)f->map.page_elements * 2);
    to_device((void *)f->t.at, at, sizeof at);
    f->t.splits = step % 3 == 0 ? 1 : step % 3 == 1 ? kvd_leankv_splits((int)rows, s->kv, 132) : 3;
    check(kvd_leankv_grow(&f->pool, f->t.slot, (int)rows, 0, LAYERS, 1, 0), "grow");
    for (int row = 0; row < ROWS; row++)
        for (size_t g = 0; g < kv; g++) {
            head_step *const x = &h[(size_t)row * kv + g];
            float *const mine = need(group * d * sizeof *mine);
            for (size_t j = 0; j < group; j++)
                memcpy(mine + j * d, q + ((g * group + j) * rows + (size_t)row) * d,
                       d * sizeof *mine);
            *x = (head_step){.x = read_head(f, row, (int)g, page),
                             .q = mine,
                             .k = k + (g * rows + (size_t)row) * d,
                             .v = v + (g * rows + (size_t)row) * d};
            x->received = need((size_t)(x->x.n + 1) * sizeof *x->received);
        }
    check(kvd_leankv_attend(&f->t, 0), "attend");
    check(kvd_leankv_update(&f->t, 0), "update");
    to_host(narrow, f->t.o, rows * (size_t)f->map.o_pitch * 2);
    to_host(lse2, f->t.lse2, rows * kv * 8 * sizeof *lse2);
    kvd_to_f32(KVD_BF16, narrow, o, rows * kv * group * d);
    for (int row = 0; row < ROWS; row++)
        for (size_t g = 0; g < kv; g++) {
            head_step *const x = &h[(size_t)row * kv + g];
            const size_t i = (size_t)row * kv + g;
            compare_out(f, x, (int)g, o + i * group * d, lse2 + i * 8, r);
            const section after = read_head(f, row, (int)g, page);
            check_update(f, x, (int)at[row], &after, r);
            host_free(after.item, x->x.item, x->received, (void *)x->q);
        }
    host_free(q, k, v, o, narrow, lse2, h);
}

static void check_steps(fixture *f, char *page)
{
    step_result r = {0};
    make_steps(f);
    for (int i = 0; i < f->s->steps; i++)
        one_step(f, i, page, &r);
    kvd_leankv_state state;
    to_host(&state, f->pool.state, sizeof state);
    int64_t n[KVD_LEANKV_LEVELS] = {0, 0};
    for (int row = 0; row < ROWS; row++)
        for (int g = 0; g < f->s->kv; g++) {
            const section x = read_head(f, row, g, page);
            n[0] += x.head.n[0];
            n[1] += x.head.n[1];
            free(x.item);
        }
    /* The kernel adds 1024 to quantised keys in float16, which gives the log-sum-exp an error of
     * about 1e-4. */
    test_result(
        r.out < 1.5e-2 && r.lse < 5e-4 && r.score < 1e-4 && !r.wrong && !r.codes && !r.lost &&
            r.lowered + r.dropped > 0 && r.close <= f->s->steps && n[0] == state.entries[0] &&
            n[1] == state.entries[1] && !state.wanted,
        f->s->name,
        "%d steps: out off by %.2g, lse %.2g, scores %.2g; %d entries at another level, %d codes, "
        "%d counts other; "
        "%d lowered, %d dropped, %d on a border",
        f->s->steps, r.out, r.lse, r.score, r.wrong, r.codes, r.lost, r.lowered, r.dropped,
        r.close);
    free_steps(&f->t);
}

static void run(const setting *s, uint64_t seed)
{
    fixture *const f = need(sizeof *f);
    f->s = s;
    kvd_rng_seed(&f->rng, seed, 0);
    f->heads = (kvd_attn_heads){.n_heads = s->kv * s->group, .n_kv_heads = s->kv, .d_head = s->d};
    for (int g = 0; g < s->kv; g++)
        f->heads.d_qk[g] = f->heads.d_v[g] = s->d;
    if (kvd_attn_map_make(&f->heads, &f->map)) {
        test_result(0, s->name, "map");
        return;
    }
    for (int i = 0; i < ROWS; i++)
        f->slot[i] = (i + 2) % (ROWS + 1);
    f->slot[ROWS] = ROWS + 1; /* an idle row of the batch has an invalid slot */
    make_pool(f);
    make_prompts(f);
    char *const page = need((size_t)f->pool.layout.page_bytes);
    check_masses(f);
    check_prompts(f, page);
    check_steps(f, page);
    device_free(f->p.slot, f->p.q_start, f->p.q_len, f->p.page_table, f->p.fresh, f->p.q, f->p.lse,
                f->p.mass, f->p.source, f->pool.list, f->pool.table, f->pool.head, f->pool.state,
                f->pool.page);
    host_free(f->q, f->k, f->v, f->mass, page, f);
}

/* usage: gpu_leankv [quick]; tests LeanKV's kernels; quick: first case, for compute-sanitizer */
int main(int argc, char **argv)
{
    const int quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    if (!gpu_devices("leankv", 1))
        return 0;
    for (size_t i = 0; i < (quick ? 1 : sizeof settings / sizeof *settings); i++)
        run(&settings[i], 3 + i);
    return failures ? 1 : 0;
}
