#include "analysis/evaluate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/run.h"

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the evaluator ---------------------------------------------------------------------------- */

static void *room(size_t n, size_t m, size_t bytes, const char *what, kvd_err *err)
{
    if (m && n > SIZE_MAX / m / bytes) {
        kvd_fail(err, "%s: %zu x %zu numbers overflow", what, n, m);
        return NULL;
    }
    void *p = malloc(n * m * bytes);
    if (!p)
        kvd_no_memory(err, what, (unsigned long long)n * m * bytes);
    return p;
}

int kvd_evaluator_init(kvd_evaluator *e, kvd_forward *forward, const kvd_config *config, kvd_corpus *corpus,
                       size_t max_tokens, size_t max_len, bool keep_reference, kvd_err *err)
{
    memset(e, 0, sizeof *e);
    e->forward = forward;
    e->config = config;
    e->corpus = corpus;
    e->max_tokens = max_tokens;
    e->max_len = max_len;
    e->keep_reference = keep_reference;
    e->n_sequences = kvd_corpus_n_sequences(corpus);
    e->n_tokens = kvd_corpus_n_tokens(corpus);
    const size_t vocab = (size_t)config->vocab_size, d_model = (size_t)config->d_model;
    /* 32 MiB of logits at a time: enough rows for an efficient product, little enough for any vocabulary. */
    e->piece = (size_t)8 * 1024 * 1024 / vocab;
    e->piece = e->piece < 16 ? 16 : e->piece > 1024 ? 1024 : e->piece;
    if (e->piece > max_tokens)
        e->piece = max_tokens;

    e->reference = calloc(e->n_sequences, sizeof *e->reference);
    if (!e->reference)
        kvd_no_memory(err, "sums per sequence", (unsigned long long)e->n_sequences * sizeof *e->reference);
    if (!e->reference || !(e->id = room(max_tokens, 1, sizeof *e->id, "token ids", err)) ||
        !(e->offset = room(max_tokens + 1, 1, sizeof *e->offset, "sequence offsets", err)) ||
        !(e->batch_hidden =
              room(max_tokens, d_model, sizeof *e->batch_hidden, "hidden rows of a batch", err)) ||
        !(e->logits[0] = room(e->piece, vocab, sizeof *e->logits[0], "logits", err)) ||
        !(e->logits[1] = room(e->piece, vocab, sizeof *e->logits[1], "logits", err)) ||
        (keep_reference &&
         !(e->hidden = room(e->n_tokens, d_model, sizeof *e->hidden, "hidden rows of all tokens", err)))) {
        kvd_evaluator_release(e);
        return -1;
    }
    return 0;
}

void kvd_evaluator_release(kvd_evaluator *e)
{
    free(e->reference);
    free(e->hidden);
    free(e->id);
    free(e->offset);
    free(e->batch_hidden);
    free(e->logits[0]);
    free(e->logits[1]);
    memset(e, 0, sizeof *e);
}

static int load_batch(kvd_evaluator *e, size_t first, kvd_batch *b, kvd_err *err)
{
    const size_t n = kvd_corpus_batch(e->corpus, first, e->max_tokens);
    const size_t begin = kvd_corpus_offset(e->corpus, first);
    for (size_t i = 0; i < n; i++)
        e->offset[i] = kvd_corpus_offset(e->corpus, first + i) - begin;
    e->offset[n] = e->offset[n - 1] + kvd_corpus_length(e->corpus, first + n - 1);
    if (e->offset[n] > e->max_tokens)
        return kvd_fail(err, "sequence %zu has %zu tokens, a batch holds %zu", first, e->offset[n],
                        e->max_tokens);
    if (kvd_corpus_read(e->corpus, first, n, e->id, err))
        return -1;
    *b = (kvd_batch){.n_sequences = n, .offset = e->offset, .first_sequence = first, .id = e->id};
    return 0;
}

/* ---- runs of one batch ------------------------------------------------------------------------ */

static int run_reference(kvd_evaluator *e, const kvd_batch *b, kvd_kept_attention *kept, float *hidden,
                         kvd_err *err)
{
    kvd_dense_attention dense;
    kvd_dense_attention_init(&dense);
    kvd_tap tap;
    kvd_tap_init(&tap, &dense.door);
    if (kept) {
        tap.output = kvd_kept_attention_save;
        tap.ctx = kept;
    }
    const double started = now_s();
    const int status = kvd_forward_run(e->forward, b, &tap.door, -1, hidden, err);
    e->reference_seconds += now_s() - started;
    kvd_dense_attention_release(&dense);
    return status ? kvd_in(err, "uncompressed model, sequences from %zu", b->first_sequence) : 0;
}

/* The uncompressed stream that enters `layer`; NULL with layer 0, where a run starts at the embedding. */
static int run_below(kvd_evaluator *e, const kvd_batch *b, int layer, float *residual, kvd_err *err)
{
    if (!layer)
        return 0;
    kvd_dense_attention dense;
    kvd_dense_attention_init(&dense);
    const int status = kvd_forward_residual(e->forward, b, &dense.door, layer, residual, err);
    kvd_dense_attention_release(&dense);
    return status ? kvd_in(err, "uncompressed model, sequences from %zu", b->first_sequence) : 0;
}

static int run_choice(kvd_evaluator *e, const kvd_batch *b, kvd_choice *c, int first_layer,
                      const float *residual, float *hidden, kvd_err *err)
{
    kvd_cache cache;
    if (kvd_cache_init(&cache, e->config, c->dims, c->type, e->max_len, err))
        return -1;
    kvd_tap tap;
    kvd_tap_init(&tap, &cache.door);
    if (c->error.kept) {
        tap.output = kvd_attention_error_add;
        tap.ctx = &c->error;
    }
    const double started = now_s();
    const int status =
        first_layer ? kvd_forward_run_from(e->forward, b, &tap.door, first_layer, residual, hidden, err)
                    : kvd_forward_run(e->forward, b, &tap.door, -1, hidden, err);
    c->seconds += now_s() - started;
    kvd_cache_account_add(&c->account, &cache.account);
    kvd_cache_release(&cache);
    return status ? kvd_in(err, "method '%s', overall p %.4f, sequences from %zu", c->method, c->overall_p,
                           b->first_sequence)
                  : 0;
}

/* Adds the predictions among rows first .. first+n-1 of the batch; the last row of a sequence predicts
 * nothing that the corpus knows. reference NULL: these are the uncompressed logits themselves. */
static int add_piece(const kvd_batch *b, size_t first, size_t n, const float *logits, const float *reference,
                     size_t vocab, kvd_quality *per_sequence, kvd_err *err)
{
    for (size_t s = 0; s < b->n_sequences; s++) {
        const size_t from = b->offset[s] > first ? b->offset[s] : first;
        const size_t end = b->offset[s + 1] - 1 < first + n ? b->offset[s + 1] - 1 : first + n;
        if (from >= end)
            continue;
        const size_t sequence = b->first_sequence + s;
        if (kvd_quality_add(&per_sequence[sequence], logits + (from - first) * vocab,
                            reference ? reference + (from - first) * vocab : NULL, b->id + from + 1,
                            end - from, vocab, err))
            return kvd_in(err, "sequence %zu, rows from %zu", sequence, from - b->offset[s]);
        if (!reference)
            per_sequence[sequence].agree += (double)(end - from);
    }
    return 0;
}

static int score_batch(kvd_evaluator *e, const kvd_batch *b, const float *ref_hidden, const float *hidden,
                       kvd_choice *choice, size_t n_choices, kvd_err *err)
{
    const size_t vocab = (size_t)e->config->vocab_size, d_model = (size_t)e->config->d_model;
    const size_t n_tokens = b->offset[b->n_sequences];
    for (size_t first = 0; first < n_tokens; first += e->piece) {
        const size_t n = n_tokens - first < e->piece ? n_tokens - first : e->piece;
        if (kvd_forward_logits(e->forward, ref_hidden + first * d_model, n, e->logits[0], err))
            return -1;
        if (!e->reference_known && add_piece(b, first, n, e->logits[0], NULL, vocab, e->reference, err))
            return kvd_in(err, "uncompressed model");
        for (size_t i = 0; i < n_choices; i++) {
            kvd_choice *const c = &choice[i];
            if (kvd_forward_logits(e->forward, hidden + (i * e->max_tokens + first) * d_model, n,
                                   e->logits[1], err))
                return -1;
            if (add_piece(b, first, n, e->logits[1], e->logits[0], vocab, c->per_sequence, err))
                return kvd_in(err, "method '%s', overall p %.4f", c->method, c->overall_p);
        }
    }
    return 0;
}

/* ---- a corpus --------------------------------------------------------------------------------- */

static int check_choice(const kvd_evaluator *e, const kvd_choice *c, int first_layer, kvd_err *err)
{
    if (kvd_cache_check(&c->account, e->config, c->dims, e->n_sequences, e->n_tokens, first_layer, err))
        return kvd_in(err, "method '%s', overall p %.4f", c->method, c->overall_p);
    if (c->overall_p > 0 && !c->differs)
        return kvd_fail(err,
                        "method '%s', overall p %.4f: every prediction is bit for bit the uncompressed one, "
                        "so nothing was compressed",
                        c->method, c->overall_p);
    return 0;
}

static int prepare(kvd_evaluator *e, kvd_choice *choice, size_t n, const kvd_kept_attention *kept,
                   kvd_err *err)
{
    for (size_t i = 0; i < n; i++) {
        kvd_choice *const c = &choice[i];
        c->per_sequence = calloc(e->n_sequences, sizeof *c->per_sequence);
        if (!c->per_sequence)
            return kvd_no_memory(err, "sums per sequence",
                                 (unsigned long long)e->n_sequences * sizeof *c->per_sequence);
        if (kept && kvd_attention_error_init(&c->error, kept, e->config, err))
            return -1;
    }
    return 0;
}

int kvd_evaluate(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer, bool attention_errors,
                 kvd_progress *progress, kvd_err *err)
{
    const size_t d_model = (size_t)e->config->d_model;
    const bool cached = e->hidden && e->reference_known;
    assert(!(cached && attention_errors)); /* attention outputs are kept for one batch only */
    kvd_kept_attention kept = {0};
    float *hidden = NULL, *residual = NULL;
    int status = -1;
    if (attention_errors && kvd_kept_attention_init(&kept, e->config, e->max_tokens, err))
        goto done;
    if (prepare(e, choice, n, attention_errors ? &kept : NULL, err))
        goto done;
    if (!(hidden =
              room(n ? n : 1, e->max_tokens * d_model, sizeof *hidden, "hidden rows of all choices", err)))
        goto done;

    if (first_layer &&
        !(residual = room(e->max_tokens, d_model, sizeof *residual, "residual rows of a batch", err)))
        goto done;

    for (size_t first = 0; first < e->n_sequences;) {
        kvd_batch b;
        if (load_batch(e, first, &b, err))
            goto done;
        const size_t n_tokens = b.offset[b.n_sequences], begin = kvd_corpus_offset(e->corpus, first);
        float *const ref = e->hidden ? e->hidden + begin * d_model : e->batch_hidden;
        if (!cached && run_reference(e, &b, attention_errors ? &kept : NULL, ref, err))
            goto done;
        if (run_below(e, &b, first_layer, residual, err))
            goto done;
        for (size_t i = 0; i < n; i++) {
            float *const mine = hidden + i * e->max_tokens * d_model;
            if (run_choice(e, &b, &choice[i], first_layer, residual, mine, err))
                goto done;
            if (memcmp(mine, ref, n_tokens * d_model * sizeof *mine))
                choice[i].differs = true;
            if (kvd_interrupted()) {
                kvd_fail_interrupted(err);
                goto done;
            }
            if (progress)
                kvd_progress_step(progress, progress->done + (double)n_tokens);
        }
        if (score_batch(e, &b, ref, hidden, choice, n, err))
            goto done;
        first += b.n_sequences;
    }
    e->reference_known = true;
    for (size_t i = 0; i < n; i++) {
        if (check_choice(e, &choice[i], first_layer, err))
            goto done;
        choice[i].error.kept = NULL; /* ends with this call */
    }
    status = 0;
done:
    free(residual);
    free(hidden);
    kvd_kept_attention_release(&kept);
    return status;
}

void kvd_choice_release(kvd_choice *c)
{
    free(c->per_sequence);
    c->per_sequence = NULL;
    kvd_attention_error_release(&c->error);
}

/* ---- full rank -------------------------------------------------------------------------------- */

double kvd_full_rank_tolerance(const kvd_dims_method *m)
{
    return m->biorthogonal ? 1e-2 : 1e-3;
}

int kvd_evaluate_full_rank(kvd_evaluator *e, const kvd_dims *full, double tolerance, double *error,
                           kvd_err *err)
{
    const size_t vocab = (size_t)e->config->vocab_size, d_model = (size_t)e->config->d_model;
    kvd_batch b;
    if (load_batch(e, 0, &b, err))
        return -1;
    const size_t n_tokens = b.offset[b.n_sequences];
    float *const hidden = room(n_tokens, d_model, sizeof *hidden, "hidden rows of a batch", err);
    if (!hidden)
        return -1;
    /* Stored as float32 whatever the run uses: rounding of a 16-bit cache is not what is looked for. */
    kvd_choice c = {.method = full->method, .dims = full, .type = KVD_F32};
    double largest = 0, sum2 = 0;
    int status = -1;
    if (run_reference(e, &b, NULL, e->batch_hidden, err) || run_choice(e, &b, &c, 0, NULL, hidden, err))
        goto done;
    for (size_t first = 0; first < n_tokens; first += e->piece) {
        const size_t n = n_tokens - first < e->piece ? n_tokens - first : e->piece;
        if (kvd_forward_logits(e->forward, e->batch_hidden + first * d_model, n, e->logits[0], err) ||
            kvd_forward_logits(e->forward, hidden + first * d_model, n, e->logits[1], err))
            goto done;
        for (size_t i = 0; i < n * vocab; i++) {
            const double u = (double)e->logits[0][i], diff = fabs((double)e->logits[1][i] - u);
            if (!(diff <= largest))
                largest = isnan(diff) ? INFINITY : diff;
            sum2 += u * u;
        }
    }
    *error = largest / sqrt(sum2 / ((double)n_tokens * (double)vocab));
    if (!(*error <= tolerance)) {
        kvd_fail(err,
                 "method '%s' at full width changes logits by %.3g of their rms, allowed is %.3g: its "
                 "projections are not the identity",
                 full->method, *error, tolerance);
        goto done;
    }
    status = 0;
done:
    free(hidden);
    return status;
}
