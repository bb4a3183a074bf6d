#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "collect/sums.h"
#include "common/clock.h"
#include "common/linalg.h"
#include "common/threads.h"

int kvd_accumulator_init(kvd_accumulator *a, kvd_moments *sums, int n_threads, kvd_err *err)
{
    const size_t n = (size_t)n_threads * kvd_gram_scratch((size_t)sums->model.d_head);
    *a = (kvd_accumulator){.sums = sums, .n_threads = n_threads};
    if (!(a->scratch = malloc(n * sizeof *a->scratch)))
        return kvd_no_memory(err, "second moments", n * sizeof *a->scratch);
    return 0;
}

void kvd_accumulator_release(kvd_accumulator *a)
{
    free(a->scratch);
    a->scratch = NULL;
}

/* Vectors x [n][d] of one head, whose products x^T x are added to the second moments of this
 * head. */
typedef struct {
    kvd_g g;
    int head;
    const float *x;
    size_t ld;
} job;

/* For each of n_jobs matrices X, adds X^T X to the second moments of a head. No product X^T X is
 * split among threads, so results do not depend on the number of threads. */
static int add_all(kvd_accumulator *a, int layer, const job *jobs, int n_jobs, size_t n,
                   kvd_err *err)
{
    const size_t d = (size_t)a->sums->model.d_head;
    /* smallest index of a failed job, so that the reported error does not depend on thread order */
    int failed = n_jobs;
    const int saved = kvd_blas_serial();
#pragma omp parallel for num_threads(a->n_threads) schedule(dynamic)
    for (int i = 0; i < n_jobs; i++) {
        kvd_err mine = {""};
        double *G = kvd_moments_at(a->sums, jobs[i].g, layer, jobs[i].head);
        double *scratch = a->scratch + kvd_thread_index() * kvd_gram_scratch(d);
        if (kvd_gram_add(G, d, jobs[i].x, n, jobs[i].ld, scratch, &mine)) {
#pragma omp critical(kvd_accumulate_error)
            if (i < failed) {
                failed = i;
                *err = mine;
            }
        }
    }
    kvd_blas_restore(saved);
    if (failed < n_jobs)
        return kvd_in(err, "layer %d head %d: %s", a->sums->first_layer + layer, jobs[failed].head,
                      kvd_g_name[jobs[failed].g]);
    return 0;
}

int kvd_accumulator_record(kvd_accumulator *a, const kvd_attention_in *in, kvd_err *err)
{
    const kvd_moments *m = a->sums;
    const int layer = in->layer - m->first_layer;
    if (layer < 0 || layer >= m->n_layers)
        return 0;
    const double start = kvd_clock_s();
    const float *from[KVD_N_G] = {in->q, in->k, in->v, in->q_pre, in->k_pre, NULL, NULL};
    const size_t d = (size_t)m->model.d_head;
    int n_jobs = 0;
    for (int g = KVD_G_Q; g <= KVD_G_K_PRE; g++)
        n_jobs += m->gram[g] ? kvd_moments_heads(m, (kvd_g)g) : 0;
    job *jobs = malloc((size_t)n_jobs * sizeof *jobs);
    if (!jobs)
        return kvd_no_memory(err, "second moments", (size_t)n_jobs * sizeof *jobs);
    job *j = jobs;
    for (int g = KVD_G_Q; g <= KVD_G_K_PRE; g++)
        for (int h = 0; m->gram[g] && h < kvd_moments_heads(m, (kvd_g)g); h++) {
            const size_t ld = (size_t)kvd_moments_heads(m, (kvd_g)g) * d;
            const job next = {(kvd_g)g, h, from[g] + (size_t)h * d, ld};
            *j++ = next;
        }
    const int status = add_all(a, layer, jobs, n_jobs, in->n_tokens, err);
    free(jobs);
    a->seconds += kvd_clock_s() - start;
    return status;
}

static int add_weight(kvd_accumulator *a, kvd_g g, int layer, const float *w, float *transposed,
                      kvd_err *err)
{
    const size_t d = (size_t)a->sums->model.d_head, width = (size_t)a->sums->model.d_model;
    for (int h = 0; h < kvd_moments_heads(a->sums, g); h++) {
        const float *from = w + (size_t)h * d * width;
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < width; j++)
                transposed[j * d + i] = from[i * width + j];
        double *G = kvd_moments_at(a->sums, g, layer, h);
        memset(G, 0, d * d * sizeof *G);
        const job one = {g, h, transposed, d};
        if (add_all(a, layer, &one, 1, width, err))
            return -1;
    }
    return 0;
}

int kvd_accumulator_weights(kvd_accumulator *a, int layer, const float *w_o, const float *w_v,
                            kvd_err *err)
{
    const size_t n = (size_t)a->sums->model.d_head * (size_t)a->sums->model.d_model;
    float *transposed = malloc(n * sizeof *transposed);
    if (!transposed)
        return kvd_no_memory(err, "weights of a head", n * sizeof *transposed);
    const int status = add_weight(a, KVD_G_W_O, layer, w_o, transposed, err) ||
                       add_weight(a, KVD_G_W_V, layer, w_v, transposed, err);
    free(transposed);
    return kvd_status(status);
}

int kvd_tally_init(kvd_tally *t, kvd_attention_stats *stats, int n_threads, kvd_err *err)
{
    const size_t n = stats->seq_len, all = (size_t)stats->model.n_heads * n,
                 threads = (size_t)n_threads;
    *t = (kvd_tally){.stats = stats, .n_threads = n_threads};
    t->scores = malloc(threads * KVD_ATTEND_ROWS * n * sizeof *t->scores);
    t->row = malloc(threads * n * sizeof *t->row);
    t->mass = malloc(5 * all * sizeof *t->mass);
    if (!t->scores || !t->row || !t->mass)
        return kvd_no_memory(err, "attention statistics",
                             threads * KVD_ATTEND_ROWS * n * sizeof *t->scores);
    t->later = t->mass + all;
    t->denominator = t->later + all;
    t->query_score = t->denominator + all;
    t->key_score = t->query_score + all;
    return 0;
}

void kvd_tally_release(kvd_tally *t)
{
    free(t->scores);
    free(t->row);
    free(t->mass);
    *t = (kvd_tally){0};
}

typedef struct {
    kvd_word *score_bins, *probability_bins;
    double score_sum, score_squares, score_min, score_max;
} head_sums;

static void extend(double x, kvd_word *sum, kvd_word *squares, kvd_word *least, kvd_word *most)
{
    sum->x += x;
    squares->x += x * x;
    least->x = fmin(least->x, x);
    most->x = fmax(most->x, x);
}

/* Adds a query's scores s [n] to the statistics *h. Writes the attention probabilities to p.
 * Returns the logarithm of the softmax denominator, or NaN if a score is not finite. */
static double row_of(const float *s, size_t n, kvd_scores score, head_sums *h, double *p,
                     double *of_query, double *of_key)
{
    double largest = -INFINITY, total = 0;
    *of_query = 0;
    for (size_t k = 0; k < n; k++) {
        const double linear = (double)(s[k] * score.scale), cap = (double)score.softcap,
                     x = cap > 0 ? cap * tanh(linear / cap) : linear;
        if (!isfinite(x))
            return NAN;
        p[k] = x;
        largest = fmax(largest, x);
        h->score_bins[kvd_score_bin(x)].n++;
        h->score_sum += x;
        *of_query += x;
        of_key[k] += x;
        h->score_squares += x * x;
        h->score_min = fmin(h->score_min, x);
        h->score_max = fmax(h->score_max, x);
    }
    for (size_t k = 0; k < n; k++)
        total += exp(p[k] - largest);
    if (score.sink)
        total += exp((double)*score.sink - largest);
    const double denominator = largest + log(total);
    for (size_t k = 0; k < n; k++) {
        const double log_p = fmin(p[k] - denominator, 0);
        h->probability_bins[kvd_probability_bin(log_p * M_LOG10E)].n++;
        p[k] = exp(log_p);
    }
    return denominator;
}

/* Returns how many of n tokens attend to token j: at most `window` tokens or, if `window` is 0, all
 * tokens from j on. */
static size_t seen_by(size_t j, size_t n, size_t window)
{
    return window && n - j > window ? window : n - j;
}

/* Returns the number of tokens that token j attends to, itself included. If `window` is 0, j
 * attends to all earlier tokens. */
static size_t sees(size_t j, size_t window)
{
    return window && j + 1 > window ? window : j + 1;
}

static int head_of(kvd_tally *t, const kvd_attention_in *in, size_t sequence, int layer, int head,
                   kvd_err *err)
{
    kvd_attention_stats *s = t->stats;
    const kvd_config *c = in->config;
    const size_t d = (size_t)c->d_head, ldq = (size_t)c->n_heads * d,
                 ldk = (size_t)c->n_kv_heads * d;
    const size_t at = in->offset[sequence], n = in->offset[sequence + 1] - at, window = in->window;
    const float *q = in->q + at * ldq + (size_t)head * d;
    const float *k = in->k + at * ldk + (size_t)(head / (c->n_heads / c->n_kv_heads)) * d;
    const kvd_scores score = kvd_attention_scores(in, (size_t)head);
    float *scores = t->scores + kvd_thread_index() * KVD_ATTEND_ROWS * s->seq_len;
    double *p = t->row + kvd_thread_index() * s->seq_len;
    double *mass = t->mass + (size_t)head * s->seq_len,
           *later = t->later + (size_t)head * s->seq_len,
           *denominator = t->denominator + (size_t)head * s->seq_len,
           *query_score = t->query_score + (size_t)head * s->seq_len,
           *key_score = t->key_score + (size_t)head * s->seq_len;
#define AT(field) kvd_attention_stats_at(s, KVD_A_##field, layer, head)
    head_sums h = {AT(SCORE_HISTOGRAM),  AT(PROBABILITY_HISTOGRAM), AT(SCORE_SUM)->x,
                   AT(SCORE_SQUARES)->x, AT(SCORE_MIN)->x,          AT(SCORE_MAX)->x};
    memset(mass, 0, n * sizeof *mass);
    memset(later, 0, n * sizeof *later);
    memset(key_score, 0, n * sizeof *key_score);
    for (size_t first = 0; first < n; first += KVD_ATTEND_ROWS) {
        const size_t rows = n - first < KVD_ATTEND_ROWS ? n - first : KVD_ATTEND_ROWS;
        const size_t from = window && first + 1 > window ? first + 1 - window : 0,
                     keys = first + rows - from;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)keys, (int)d, 1.0f,
                    q + first * ldq, (int)ldq, k + from * ldk, (int)ldk, 0.0f, scores, (int)keys);
        for (size_t i = first; i < first + rows; i++) {
            const size_t start = window && i + 1 > window ? i + 1 - window : 0;
            denominator[i] = row_of(scores + (i - first) * keys + (start - from), i + 1 - start,
                                    score, &h, p, query_score + i, key_score + start);
            if (isnan(denominator[i]))
                return kvd_fail(err, "layer %d head %d: a score of row %zu is not finite",
                                in->layer, head, i);
            extend(denominator[i], AT(DENOMINATOR_SUM), AT(DENOMINATOR_SQUARES),
                   AT(DENOMINATOR_MIN), AT(DENOMINATOR_MAX));
            for (size_t j = start; j < i; j++)
                later[j] += p[j - start];
            /* attention that token i receives, so far only from itself */
            mass[i] = p[i - start];
        }
    }
    AT(SCORE_SUM)->x = h.score_sum;
    AT(SCORE_SQUARES)->x = h.score_squares;
    AT(SCORE_MIN)->x = h.score_min;
    AT(SCORE_MAX)->x = h.score_max;
    for (size_t j = 0; j < n; j++) {
        mass[j] += later[j];
        AT(RECEIVED_AT)[j].x += mass[j];
        const size_t others = seen_by(j, n, window) - 1;
        if (j + 1 == n) /* The last token has no later tokens. */
            break;
        /* With a window of 1, no other token attends to token j. */
        const double mean = others ? later[j] / (double)others : 0;
        AT(RECEIVED_HISTOGRAM)[mean > 0 ? kvd_probability_bin(log10(mean)) : 0].n++;
        AT(RECEIVED_MIN)->x = fmin(AT(RECEIVED_MIN)->x, mean);
        AT(RECEIVED_MAX)->x = fmax(AT(RECEIVED_MAX)->x, mean);
    }
#undef AT
    return 0;
}

static int falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Increases *at until *sum, the sum of sorted[0] .. sorted[*at - 1], is at least `wanted`. Returns
 * *at. */
static size_t count_to(const double *sorted, size_t n, double wanted, size_t *at, double *sum)
{
    while (*at < n && *sum < wanted)
        *sum += sorted[(*at)++];
    return *at;
}

static double sort_mass(const double *mass, size_t n, double *sorted)
{
    double total = 0;
    memcpy(sorted, mass, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, falling);
    for (size_t i = 0; i < n; i++)
        total += sorted[i];
    return total;
}

/* factor that lowers the thresholds 90, 95 and 99 % slightly, to tolerate rounding errors */
static const double slack = 1 - 1e-12;

/* For 90, 95 and 99 % of the attention mass [n], finds the smallest number k of tokens that receive
 * it. Updates statistics number `count` to `count` + 4 of *s: sum of k, sum of k^2, minimum,
 * maximum, sum of k / n. */
static void add_counts(kvd_attention_stats *s, kvd_a count, int layer, int head, const double *mass,
                       size_t n, double *sorted)
{
    double sum = 0;
    size_t at = 0;
    const double total = sort_mass(mass, n, sorted);
    for (int i = 0; i < KVD_N_CRITICAL_LEVELS; i++) {
        const uint64_t k = count_to(sorted, n, kvd_critical_level[i] * total * slack, &at, &sum);
        kvd_word *least = kvd_attention_stats_at(s, count + 2, layer, head) + i,
                 *most = kvd_attention_stats_at(s, count + 3, layer, head) + i;
        kvd_attention_stats_at(s, count, layer, head)[i].n += k;
        kvd_attention_stats_at(s, count + 1, layer, head)[i].n += k * k;
        least->n = k < least->n ? k : least->n;
        most->n = k > most->n ? k : most->n;
        kvd_attention_stats_at(s, count + 4, layer, head)[i].x += (double)k / (double)n;
    }
}

/* Adds statistics of the attention that tokens receive from the query heads of one KV head. */
static int kv_head_of(kvd_tally *t, const kvd_attention_in *in, size_t sequence, int layer,
                      int kv_head, kvd_err *err)
{
    kvd_attention_stats *s = t->stats;
    const kvd_config *c = in->config;
    const int group = c->n_heads / c->n_kv_heads;
    const size_t d = (size_t)c->d_head, ldk = (size_t)c->n_kv_heads * d, at = in->offset[sequence],
                 n = in->offset[sequence + 1] - at;
    double *sorted = t->row + kvd_thread_index() * s->seq_len;
    double *sum = t->mass + (size_t)(kv_head * group) * s->seq_len;
    for (int h = kv_head * group; h < (kv_head + 1) * group; h++)
        add_counts(s, KVD_A_HEAD_COUNT, layer, h, t->mass + (size_t)h * s->seq_len, n, sorted);
    for (int h = 1; h < group; h++)
        for (size_t j = 0; j < n; j++)
            sum[j] += sum[(size_t)h * s->seq_len + j];
    add_counts(s, KVD_A_KV_COUNT, layer, kv_head, sum, n, sorted);
#define AT(field) kvd_attention_stats_at(s, KVD_A_##field, layer, kv_head)
    for (size_t j = 0; j < n; j++) {
        const float *v = in->v + (at + j) * ldk + (size_t)kv_head * d;
        double squares = 0;
        for (size_t i = 0; i < d; i++)
            squares += (double)v[i] * (double)v[i];
        const double norm = sqrt(squares);
        if (!isfinite(norm))
            return kvd_fail(err, "layer %d head %d: v of token %zu is not finite", in->layer,
                            kv_head, j);
        AT(VALUE_HISTOGRAM)[norm > 0 ? kvd_norm_bin(log10(norm)) : 0].n++;
        extend(norm, AT(VALUE_SUM), AT(VALUE_SQUARES), AT(VALUE_MIN), AT(VALUE_MAX));
    }
#undef AT
    return 0;
}

/* Adds the attention of one sequence in one layer to the statistics t->stats. For the first n_kept
 * sequences, also stores statistics of each single token. */
static void layer_of(kvd_tally *t, const kvd_attention_in *in, size_t sequence, int layer)
{
    kvd_attention_stats *s = t->stats;
    const size_t n = in->offset[sequence + 1] - in->offset[sequence], ld = s->seq_len;
    const size_t group = (size_t)(in->config->n_heads / in->config->n_kv_heads),
                 heads = (size_t)in->config->n_heads;
    const size_t request = in->first_sequence + sequence;
    for (size_t h = group; h < heads; h += group)
        for (size_t j = 0; j < n; j++)
            t->mass[j] += t->mass[h * ld + j];
    add_counts(s, KVD_A_LAYER_COUNT, layer, 0, t->mass, n, t->row);
    if (layer == 0)
        for (size_t j = 0; j < n; j++)
            s->word[s->at[KVD_A_REQUESTS_AT] + j].n++;
    s->word[s->at[KVD_A_WINDOW] + (size_t)layer].n = in->window;
    if (request >= s->n_kept)
        return;
    kvd_word *mass = kvd_attention_stats_kept(s, KVD_A_KEPT_MASS, request, layer),
             *denominator = kvd_attention_stats_kept(s, KVD_A_KEPT_DENOMINATOR, request, layer),
             *as_query = kvd_attention_stats_kept(s, KVD_A_KEPT_QUERY_SCORE, request, layer),
             *as_key = kvd_attention_stats_kept(s, KVD_A_KEPT_KEY_SCORE, request, layer);
    s->word[s->at[KVD_A_KEPT_LENGTH] + request].n = n;
    for (size_t j = 0; j < n; j++) {
        double largest = t->denominator[j], sum = 0, of_query = 0, of_key = 0;
        for (size_t h = 1; h < heads; h++)
            largest = fmax(largest, t->denominator[h * ld + j]);
        for (size_t h = 0; h < heads; h++) {
            sum += exp(t->denominator[h * ld + j] - largest);
            of_query += t->query_score[h * ld + j];
            of_key += t->key_score[h * ld + j];
        }
        as_query[j].x = of_query / (double)(heads * sees(j, in->window));
        as_key[j].x = of_key / (double)(heads * seen_by(j, n, in->window));
        mass[j].x = t->mass[j];
        /* logarithm of the sum of all heads' softmax denominators; fmax corrects a rounding error
         * of `sum` */
        denominator[j].x = largest + log(fmax(sum, 1));
    }
}

typedef int (*of_head)(kvd_tally *t, const kvd_attention_in *in, size_t sequence, int layer,
                       int head, kvd_err *err);

/* Calls the function `one` for each head of a layer, in parallel. If several calls fail, reports
 * the error of the lowest-numbered head. */
static int all_heads(kvd_tally *t, const kvd_attention_in *in, size_t sequence, int layer,
                     int n_heads, of_head one, kvd_err *err)
{
    int failed = n_heads;
#pragma omp parallel for num_threads(t->n_threads) schedule(dynamic)
    for (int h = 0; h < n_heads; h++) {
        kvd_err mine = {""};
        if (one(t, in, sequence, layer, h, &mine)) {
#pragma omp critical(kvd_tally_error)
            if (h < failed) {
                failed = h;
                *err = mine;
            }
        }
    }
    return kvd_status(failed < n_heads);
}

int kvd_tally_record(kvd_tally *t, const kvd_attention_in *in, kvd_err *err)
{
    const kvd_attention_stats *s = t->stats;
    const int layer = in->layer - s->first_layer;
    if (layer < 0 || layer >= s->n_layers)
        return 0;
    const double start = kvd_clock_s();
    const int saved = kvd_blas_serial();
    int status = 0;
    for (size_t i = 0; i < in->n_sequences && !status; i++) {
        status = all_heads(t, in, i, layer, s->model.n_heads, head_of, err) ||
                 all_heads(t, in, i, layer, s->model.n_kv_heads, kv_head_of, err);
        if (!status)
            layer_of(t, in, i, layer);
    }
    kvd_blas_restore(saved);
    t->seconds += kvd_clock_s() - start;
    return kvd_status(status);
}
