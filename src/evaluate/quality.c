#include "evaluate/quality.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "model/pass/vector.h"

enum { RESAMPLES = 2000 };

/* Returns e^x for x <= 0, but 0 for x below -700. Splits x into n ln 2 + r and multiplies 2^n by a
 * polynomial in r. */
__attribute__((always_inline)) static inline double exp_of_negative(double x)
{
    /* Adding this number to a double rounds it to an integer, which is then in the low bits of the
     * sum. */
    const double round_to_int = 6755399441055744.0;
    /* all bits 1 if x > -700, else 0; gcc does not vectorise the operator ?: here */
    const uint64_t in_range = (uint64_t) - (int64_t)(x > -700);
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= in_range;
    memcpy(&x, &bits, sizeof x);
    const double t = x * 1.4426950408889634 + round_to_int, n = t - round_to_int;
    const double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    p *= power;
    memcpy(&bits, &p, sizeof bits);
    bits &= in_range;
    memcpy(&p, &bits, sizeof p);
    return p;
}

KVD_CLONES static double sum_exp(const float *x, size_t n, double top)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < n; j++)
        sum += exp_of_negative((double)x[j] - top);
    return sum;
}

/* Returns the sum over j of e^{a_j - top} (a_j - b_j). */
KVD_CLONES static double sum_exp_difference(const float *a, const float *b, size_t n, double top)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < n; j++)
        sum += exp_of_negative((double)a[j] - top) * ((double)a[j] - (double)b[j]);
    return sum;
}

/* statistics of one token's logits x; `bad`: index of the first logit that is not finite, or -1 */
typedef struct {
    /* top: largest logit; sum: sum of e^{x - top}; lse: logarithm of the sum of e^x */
    double top, sum, lse;
    size_t best;
    ptrdiff_t bad;
} row_sums;

static row_sums scan_row(const float *x, size_t vocab)
{
    row_sums s = {.bad = -1};
    float top = x[0];
    for (size_t j = 0; j < vocab; j++) {
        if (!isfinite(x[j])) {
            s.bad = (ptrdiff_t)j;
            return s;
        }
        if (x[j] > top) {
            top = x[j];
            s.best = j;
        }
    }
    s.top = (double)top;
    s.sum = sum_exp(x, vocab, s.top);
    s.lse = s.top + log(s.sum);
    return s;
}

/* Returns the KL divergence KL(softmax(a) || softmax(b)), which is exactly 0 for equal logits. */
static double kl_row(const float *a, const float *b, size_t vocab, const row_sums *sa,
                     const row_sums *sb)
{
    return sum_exp_difference(a, b, vocab, sa->top) / sa->sum - sa->lse + sb->lse;
}

int kvd_quality_add(kvd_quality *q, const float *logits, const float *reference,
                    const uint32_t *target, size_t n, size_t vocab, kvd_prediction_change *each,
                    kvd_err *err)
{
    if (vocab == 0)
        return kvd_fail(err, "logits have no columns");
    for (size_t i = 0; i < n; i++)
        if (target[i] >= vocab)
            return kvd_fail(err, "target %u of row %zu is beyond the vocabulary of %zu",
                            (unsigned)target[i], i, vocab);

    double nll = 0, top1 = 0, kl = 0, agree = 0;
    size_t bad_row = SIZE_MAX;
    bool bad_reference = false;
    ptrdiff_t bad_column = -1;
    /* scores of each prediction; they are added up in order of predictions, so that sums do not
     * depend on the number of threads */
    double(*row)[4] = malloc((n ? n : 1) * sizeof *row);
    if (!row)
        return kvd_no_memory(err, "row sums", (unsigned long long)n * sizeof *row);

#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        const float *x = logits + i * vocab;
        const row_sums s = scan_row(x, vocab);
        row_sums ref = s;
        if (s.bad < 0 && reference)
            ref = scan_row(reference + i * vocab, vocab);
        if (s.bad >= 0 || ref.bad >= 0) {
#pragma omp critical(kvd_quality_bad)
            if (i < bad_row) {
                bad_row = i;
                bad_reference = s.bad < 0;
                bad_column = s.bad >= 0 ? s.bad : ref.bad;
            }
            continue;
        }
        row[i][0] = s.lse - (double)x[target[i]];
        row[i][1] = s.best == target[i];
        row[i][2] = reference ? kl_row(reference + i * vocab, x, vocab, &ref, &s) : 0;
        row[i][3] = reference ? s.best == ref.best : 0;
        if (each && reference)
            each[i] = (kvd_prediction_change){
                .kl = (float)row[i][2],
                .p_change = (float)(exp((double)x[target[i]] - s.lse) -
                                    exp((double)reference[i * vocab + target[i]] - ref.lse))};
    }
    if (bad_row != SIZE_MAX) {
        free(row);
        return kvd_fail(err, "%s of row %zu, column %td is not finite",
                        bad_reference ? "reference logit" : "logit", bad_row, bad_column);
    }
    for (size_t i = 0; i < n; i++) {
        nll += row[i][0];
        top1 += row[i][1];
        kl += row[i][2];
        agree += row[i][3];
    }
    free(row);
    q->n += (double)n;
    q->nll += nll;
    q->top1 += top1;
    if (reference) {
        q->kl += kl;
        q->agree += agree;
    }
    return 0;
}

typedef enum { COL_N, COL_NLL, COL_TOP1, COL_KL, COL_AGREE, COL_REF_TOP1, N_COLS } column;

/* Returns true if the uncompressed model has no correct prediction on one of the texts. */
static bool no_share(const double *ref_top1, const size_t *first, size_t n_texts)
{
    for (size_t t = 0; t < n_texts; t++) {
        double right = 0;
        for (size_t i = first[t]; i < first[t + 1]; i++)
            right += ref_top1[i];
        if (!(right > 0))
            return true;
    }
    return false;
}

static int summarise(const kvd_quality *q, const kvd_quality *reference, const size_t *first,
                     size_t n_texts, uint64_t seed, kvd_quality_summary *out, kvd_err *err)
{
    const size_t n = first[n_texts];
    if (n == 0)
        return kvd_fail(err, "no sequences to summarise");
    double *x = calloc(n, N_COLS * sizeof *x);
    if (!x)
        return kvd_no_memory(err, "per-sequence sums", (unsigned long long)n * N_COLS * sizeof *x);
    double total = 0;
    for (size_t i = 0; i < n; i++) {
        x[COL_N * n + i] = q[i].n;
        x[COL_NLL * n + i] = q[i].nll;
        x[COL_TOP1 * n + i] = q[i].top1;
        x[COL_KL * n + i] = q[i].kl;
        x[COL_AGREE * n + i] = q[i].agree;
        x[COL_REF_TOP1 * n + i] = reference[i].top1;
        total += q[i].n;
    }
    /* value of a quality measure that cannot be computed */
    const kvd_interval none = {NAN, NAN, NAN};
    *out = (kvd_quality_summary){none, none, none, none, none, none};

    int status = -1;
    if (!(total > 0)) {
        kvd_fail(err, "no predictions in %zu sequences", n);
        goto done;
    }
    const struct {
        column num, den;
        kvd_interval *to;
    } want[] = {
        {COL_NLL, COL_N, &out->nll},
        {COL_TOP1, COL_N, &out->top1},
        {COL_KL, COL_N, &out->kl},
        {COL_AGREE, COL_N, &out->agree},
        {COL_TOP1, COL_REF_TOP1, &out->top1_share},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const bool share = want[i].den == COL_REF_TOP1;
        const double *const num = x + (size_t)want[i].num * n, *const den =
                                                                   x + (size_t)want[i].den * n;
        if (share && no_share(den, first, n_texts))
            continue;
        /* With equal seeds, all quality measures use the same bootstrap resamples of sequences. */
        if (kvd_bootstrap_strata(num, den, first, n_texts, RESAMPLES, seed, want[i].to, err))
            goto done;
    }
    out->perplexity = (kvd_interval){exp(out->nll.value), exp(out->nll.lo), exp(out->nll.hi)};
    status = 0;
done:
    free(x);
    return status;
}

int kvd_quality_compare_texts(const kvd_quality *per_sequence, const kvd_quality *reference,
                              const size_t *first, size_t n_texts, uint64_t seed,
                              kvd_quality_summary *out, kvd_err *err)
{
    assert(n_texts > 0);
    for (size_t i = 0; i < first[n_texts]; i++)
        if (per_sequence[i].n != reference[i].n)
            return kvd_fail(err, "sequence %zu has %.0f predictions, the reference %.0f", i,
                            per_sequence[i].n, reference[i].n);
    return summarise(per_sequence, reference, first, n_texts, seed, out, err);
}

int kvd_quality_compare(const kvd_quality *per_sequence, const kvd_quality *reference, size_t n,
                        uint64_t seed, kvd_quality_summary *out, kvd_err *err)
{
    const size_t all[2] = {0, n};
    return kvd_quality_compare_texts(per_sequence, reference, all, 1, seed, out, err);
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double quantile(const float *x, size_t n, double share)
{
    const double at = share * (double)(n - 1);
    const size_t i = (size_t)at;
    const double rest = at - (double)i;
    return (1 - rest) * (double)x[i] + rest * (double)x[i + 1 < n ? i + 1 : i];
}

int kvd_quality_changes(const kvd_prediction_change *each, size_t n, kvd_change_summary *out,
                        kvd_err *err)
{
    float *const kl = malloc((n + 1) * sizeof *kl);
    double sum = 0;
    if (!kl)
        return kvd_no_memory(err, "changes of predictions", (unsigned long long)n * sizeof *kl);
    for (size_t i = 0; i < n; i++) {
        kl[i] = each[i].kl;
        sum += (double)each[i].p_change;
    }
    qsort(kl, n, sizeof *kl, by_value);
    *out = (kvd_change_summary){.kl_median = quantile(kl, n, 0.5),
                                .kl_p90 = quantile(kl, n, 0.9),
                                .kl_p99 = quantile(kl, n, 0.99),
                                .kl_p999 = quantile(kl, n, 0.999),
                                .kl_max = (double)kl[n - 1],
                                .p_change = sum / (double)n};
    free(kl);
    return 0;
}

int kvd_kept_attention_init(kvd_kept_attention *k, const kvd_config *c, size_t max_tokens,
                            kvd_err *err)
{
    memset(k, 0, sizeof *k);
    k->n_layers = c->n_layers;
    k->max_tokens = max_tokens;
    k->width = (size_t)c->n_heads * (size_t)c->d_head;
    const size_t per_token = (size_t)k->n_layers * k->width * sizeof *k->out;
    if (max_tokens > SIZE_MAX / per_token)
        return kvd_fail(err, "attention outputs of %zu tokens overflow", max_tokens);
    k->out = malloc(max_tokens * per_token);
    if (!k->out)
        return kvd_no_memory(err, "attention outputs of a batch",
                             (unsigned long long)max_tokens * per_token);
    return 0;
}

void kvd_kept_attention_release(kvd_kept_attention *k)
{
    free(k->out);
    memset(k, 0, sizeof *k);
}

static float *kept_layer(const kvd_kept_attention *k, int layer)
{
    return k->out + ((size_t)layer * k->max_tokens + k->first) * k->width;
}

int kvd_kept_attention_save(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err)
{
    kvd_kept_attention *const k = ctx;
    if (in->n_tokens > k->max_tokens - k->first)
        return kvd_fail(err, "a batch of %zu tokens, attention outputs are kept for %zu",
                        in->n_tokens, k->max_tokens - k->first);
    memcpy(kept_layer(k, in->layer), out, in->n_tokens * k->width * sizeof *out);
    return 0;
}

int kvd_attention_error_init(kvd_attention_error *e, const kvd_kept_attention *kept,
                             const kvd_config *c, kvd_err *err)
{
    memset(e, 0, sizeof *e);
    const size_t n = (size_t)c->n_layers * (size_t)c->n_heads;
    e->kept = kept;
    e->n_layers = c->n_layers;
    e->n_heads = c->n_heads;
    e->d_head = c->d_head;
    e->diff2 = calloc(5 * n, sizeof *e->diff2);
    if (!e->diff2)
        return kvd_no_memory(err, "attention errors", (unsigned long long)n * 5 * sizeof *e->diff2);
    e->norm2 = e->diff2 + n;
    e->relative = e->norm2 + n;
    e->n = e->relative + n;
    e->n_zero = e->n + n;
    return 0;
}

void kvd_attention_error_release(kvd_attention_error *e)
{
    free(e->diff2);
    memset(e, 0, sizeof *e);
}

int kvd_attention_error_add(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err)
{
    kvd_attention_error *const e = ctx;
    (void)err;
    assert(in->n_tokens <= e->kept->max_tokens - e->kept->first);
    const float *const u_all = kept_layer(e->kept, in->layer);
    const size_t d = (size_t)e->d_head, ld = (size_t)e->n_heads * d;
#pragma omp parallel for schedule(static)
    for (int h = 0; h < e->n_heads; h++) {
        double diff2 = 0, norm2 = 0, relative = 0;
        size_t n_zero = 0;
        for (size_t t = 0; t < in->n_tokens; t++) {
            const float *const v = out + t * ld + (size_t)h * d, *const u =
                                                                     u_all + t * ld + (size_t)h * d;
            for (size_t i = 0; i < d; i++) {
                const double diff = (double)v[i] - (double)u[i];
                diff2 += diff * diff;
                norm2 += (double)u[i] * (double)u[i];
                if (u[i] != 0)
                    relative += fabs(diff) / fabs((double)u[i]);
                else
                    n_zero++;
            }
        }
        const size_t at = (size_t)in->layer * (size_t)e->n_heads + (size_t)h;
        e->diff2[at] += diff2;
        e->norm2[at] += norm2;
        e->relative[at] += relative;
        e->n[at] += (double)(in->n_tokens * d - n_zero);
        e->n_zero[at] += (double)n_zero;
    }
    return 0;
}

void kvd_attention_error_add_none(kvd_attention_error *e, const kvd_kept_attention *u, size_t n)
{
    kvd_err none;
    const kvd_kept_attention *const before = e->kept;
    e->kept = u;
    for (int l = 0; l < e->n_layers; l++)
        (void)kvd_attention_error_add(e, &(kvd_attention_in){.layer = l, .n_tokens = n},
                                      kept_layer(u, l), &none);
    e->kept = before;
}

double kvd_attention_error_norm(const kvd_attention_error *e, int layer, int head)
{
    const size_t at = (size_t)layer * (size_t)e->n_heads + (size_t)head;
    return e->norm2[at] > 0 ? sqrt(e->diff2[at] / e->norm2[at]) : NAN;
}

double kvd_attention_error_zdc(const kvd_attention_error *e, int layer, int head)
{
    const size_t at = (size_t)layer * (size_t)e->n_heads + (size_t)head;
    return e->n[at] > 0 ? e->relative[at] / e->n[at] : NAN;
}

void kvd_attention_error_mean(const kvd_attention_error *e, double *norm, double *zdc,
                              double *n_zero)
{
    const double n = (double)e->n_layers * e->n_heads;
    *norm = *zdc = *n_zero = 0;
    for (int l = 0; l < e->n_layers; l++)
        for (int h = 0; h < e->n_heads; h++) {
            *norm += kvd_attention_error_norm(e, l, h) / n;
            *zdc += kvd_attention_error_zdc(e, l, h) / n;
            *n_zero += e->n_zero[(size_t)l * (size_t)e->n_heads + (size_t)h];
        }
}
