#include "evaluate/evaluate.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/run.h"

/* Returns how many sequences, from sequence `first` on, form a batch. Twice their prompt tokens
 * must fit into max_tokens, because some methods read prompts twice. */
static size_t batch_of(const kvd_evaluator *e, size_t first)
{
    const size_t most = e->runner->max_tokens;
    size_t n = kvd_corpus_batch(e->corpus, first, most);
    while (n > 1 && 2 * (e->prompt_at[first + n] - e->prompt_at[first]) > most)
        n--;
    return n;
}

static int load_batch(kvd_evaluator *e, size_t first, kvd_batch *b, kvd_err *err)
{
    const size_t most = e->runner->max_tokens, n = batch_of(e, first);
    kvd_corpus_offsets(e->corpus, first, n, e->offset);
    if (e->offset[n] > most)
        return kvd_fail(err, "sequence %zu has %zu tokens, a batch holds %zu", first, e->offset[n],
                        most);
    if (kvd_corpus_read(e->corpus, first, n, e->id, err))
        return -1;
    for (size_t s = 0, at = 0; s < n; s++) {
        const size_t scored = e->scored_at[first + s + 1] - e->scored_at[first + s];
        for (size_t i = e->offset[s + 1] - scored; i < e->offset[s + 1]; i++, at++) {
            e->target[at] = e->id[i];
            e->sequence[at] = (int)s;
        }
    }
    *b = (kvd_batch){.n_sequences = n, .offset = e->offset, .first_sequence = first, .id = e->id};
    return 0;
}

static int run_reference(kvd_evaluator *e, const kvd_batch *b, float *hidden, kvd_err *err)
{
    const double started = kvd_clock_s();
    const int status = e->runner->reference(e->runner, b, hidden, err);
    e->reference_seconds += kvd_clock_s() - started;
    return status ? kvd_in(err, "uncompressed model, sequences from %zu", b->first_sequence) : 0;
}

static int run_below(kvd_evaluator *e, const kvd_batch *b, int layer, float *residual, kvd_err *err)
{
    if (!layer || !e->runner->below(e->runner, b, layer, residual, err))
        return 0;
    return kvd_in(err, "uncompressed model, sequences from %zu", b->first_sequence);
}

static int in_choice(const kvd_choice *c, kvd_err *err)
{
    return isnan(c->overall_p)
               ? kvd_in(err, "method '%s'", c->method)
               : kvd_in(err, "method '%s', overall p %.4f", c->method, c->overall_p);
}

static kvd_model_runner *runner_of(const kvd_evaluator *e, const kvd_choice *c)
{
    return c->runner ? c->runner : e->runner;
}

static int run_cut(kvd_evaluator *e, const kvd_batch *b, kvd_choice *c, int first_layer,
                   const float *residual, bool errors, float *hidden, kvd_err *err)
{
    const double started = kvd_clock_s();
    kvd_model_runner *const r = runner_of(e, c);
    const int status = r->plan_run(r, b, &c->plan, first_layer, residual, hidden, &c->account,
                                   errors ? &c->error : NULL, err);
    c->seconds += kvd_clock_s() - started;
    if (!status)
        return 0;
    kvd_in(err, "sequences from %zu", b->first_sequence);
    return in_choice(c, err);
}

static int take_scored(const kvd_evaluator *e, const kvd_batch *b, const float *all, float *scored,
                       kvd_err *err)
{
    const size_t d_model = (size_t)e->config->d_model, *const at = e->scored_at + b->first_sequence;
    for (size_t s = 0; s < b->n_sequences; s++) {
        const size_t n = at[s + 1] - at[s];
        if (n && e->runner->rows_copy(e->runner, scored + (at[s] - at[0]) * d_model,
                                      all + (b->offset[s + 1] - 1 - n) * d_model, n, err))
            return -1;
    }
    return 0;
}

/* Runs a method on a batch. `ref`: the uncompressed model's hidden states, to compare with. */
static int run_choice(kvd_evaluator *e, const kvd_batch *b, kvd_choice *c, int first_layer,
                      const float *residual, bool errors, const float *ref, kvd_err *err)
{
    kvd_model_runner *const r = e->runner;
    const size_t *const at = e->scored_at + b->first_sequence;
    bool differs;
    c->is_reference = !first_layer && !c->runner && r->plan_is_reference &&
                      r->plan_is_reference(r, b, &c->plan, &c->account, errors ? &c->error : NULL);
    if (c->is_reference)
        return 0;
    if (run_cut(e, b, c, first_layer, residual, errors, e->batch_hidden, err) ||
        take_scored(e, b, e->batch_hidden, c->hidden, err) ||
        r->differ(r, c->hidden, ref, at[b->n_sequences] - at[0], &differs, err))
        return -1;
    c->differs = c->differs || differs;
    return 0;
}

static void score_as_reference(const kvd_evaluator *e, const kvd_batch *b, kvd_choice *c)
{
    for (size_t s = b->first_sequence; s < b->first_sequence + b->n_sequences; s++) {
        c->per_sequence[s] = e->reference[s];
        c->per_sequence[s].agree = e->reference[s].n;
    }
}

static int score_batch(kvd_evaluator *e, const kvd_batch *b, const float *ref, kvd_choice *choice,
                       size_t n_choices, kvd_err *err)
{
    kvd_model_runner *const r = e->runner;
    const size_t d_model = (size_t)e->config->d_model;
    const size_t n_rows =
        e->scored_at[b->first_sequence + b->n_sequences] - e->scored_at[b->first_sequence];
    size_t n_run = 0;
    for (size_t i = 0; i < n_choices; i++)
        n_run += !choice[i].is_reference;
    for (size_t first = 0; first < n_rows && (n_run || !e->reference_known); first += r->piece) {
        kvd_predictions p = {.n = n_rows - first < r->piece ? n_rows - first : r->piece,
                             .target = e->target + first,
                             .sequence = e->sequence + first};
        if (r->reference_logits(r, ref + first * d_model, p.n, err) ||
            (!e->reference_known && r->score(r, NULL, &p, e->reference + b->first_sequence, err)))
            return kvd_in(err, "uncompressed model, sequences from %zu, scored rows from %zu",
                          b->first_sequence, first);
        for (size_t i = 0; i < n_choices; i++) {
            kvd_choice *const c = &choice[i];
            p.each = c->each ? c->each + e->scored_at[b->first_sequence] + first : NULL;
            if (!c->is_reference && r->score(r, choice[i].hidden + first * d_model, &p,
                                             choice[i].per_sequence + b->first_sequence, err)) {
                kvd_in(err, "sequences from %zu, scored rows from %zu", b->first_sequence, first);
                return in_choice(&choice[i], err);
            }
        }
    }
    for (size_t i = 0; i < n_choices; i++)
        if (choice[i].is_reference)
            score_as_reference(e, b, &choice[i]);
    return 0;
}

static int check_choice(const kvd_evaluator *e, const kvd_choice *c, int first_layer, kvd_err *err)
{
    if (kvd_cache_check(&c->account, e->config, &c->plan, e->n_sequences, e->n_tokens, e->n_steps,
                        first_layer, err))
        return in_choice(c, err);
    if ((c->overall_p > 0 || kvd_plan_beyond_widths(&c->plan) || c->runner) && !c->differs) {
        kvd_fail(err,
                 "every prediction is bit for bit the uncompressed one, so nothing was compressed");
        return in_choice(c, err);
    }
    return 0;
}

static int ready(kvd_evaluator *e, kvd_choice *c, kvd_err *err)
{
    kvd_model_runner *const r = runner_of(e, c);
    if (r->plan_load(r, &c->plan, err))
        return in_choice(c, err);
    snprintf(c->engine, sizeof c->engine, "%s", r->plan_engine(&c->plan));
    c->hidden = r->rows_new(r, r->max_tokens, "hidden rows of all choices", err);
    return c->hidden ? 0 : -1;
}

static int prepare(kvd_evaluator *e, kvd_choice *choice, size_t n, bool errors, kvd_err *err)
{
    for (size_t i = 0; i < n; i++) {
        kvd_choice *const c = &choice[i];
        c->n_each = e->n_scored;
        if (!(c->per_sequence =
                  kvd_new(e->n_sequences, sizeof *c->per_sequence, "sums per sequence", err)) ||
            !(c->each = kvd_new(e->n_scored, sizeof *c->each, "changes of predictions", err)) ||
            ready(e, c, err) ||
            (errors && kvd_attention_error_init(&c->error, NULL, e->config, err)))
            return -1;
    }
    return 0;
}

static void put_away(kvd_evaluator *e, kvd_choice *c)
{
    kvd_model_runner *const r = runner_of(e, c);
    r->rows_free(r, c->hidden);
    if (r->plan_unload)
        r->plan_unload(r, &c->plan);
    c->hidden = NULL;
}

/* Evaluates n methods on the batch that starts at sequence *first. Then sets *first to the first
 * sequence after the batch. */
static int evaluate_batch(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer,
                          float *residual, bool errors, size_t *first, kvd_progress *progress,
                          kvd_err *err)
{
    kvd_batch b;
    if (load_batch(e, *first, &b, err))
        return -1;
    kvd_model_runner *const r = e->runner;
    const bool kept = e->hidden && e->reference_known && (!errors || e->keeps_attention);
    const size_t n_tokens = b.offset[b.n_sequences];
    float *const ref =
        e->hidden ? e->hidden + e->scored_at[*first] * (size_t)e->config->d_model : e->batch_scored;
    r->kept_row = e->keeps_attention ? kvd_corpus_offset(e->corpus, *first) : 0;
    r->kept_prompt = e->keeps_prompts == KVD_PROMPTS_OF_ALL     ? e->prompt_at[*first]
                     : e->keeps_prompts == KVD_PROMPTS_OF_BATCH ? 0
                                                                : KVD_NOT_KEPT;
    if ((!kept && (run_reference(e, &b, e->batch_hidden, err) ||
                   take_scored(e, &b, e->batch_hidden, ref, err))) ||
        run_below(e, &b, first_layer, residual, err))
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (run_choice(e, &b, &choice[i], first_layer, residual, errors, ref, err))
            return -1;
        if (kvd_interrupted())
            return kvd_fail_interrupted(err);
        if (progress)
            kvd_progress_step(progress, progress->done + (double)n_tokens);
    }
    *first += b.n_sequences;
    return score_batch(e, &b, ref, choice, n, err);
}

int kvd_evaluate(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer,
                 bool attention_errors, kvd_progress *progress, kvd_err *err)
{
    kvd_model_runner *const r = e->runner;
    /* true to keep uncompressed attention outputs for one batch at a time, because they are not
     * kept for all texts */
    const bool keep = attention_errors && !e->keeps_attention;
    float *residual = NULL;
    int status = -1;
    if ((keep && r->keep_attention(r, r->max_tokens, err)) ||
        prepare(e, choice, n, attention_errors, err) ||
        (first_layer &&
         !(residual = r->rows_new(r, r->max_tokens, "residual rows of a batch", err))))
        goto done;
    for (size_t first = 0; first < e->n_sequences;)
        if (evaluate_batch(e, choice, n, first_layer, residual, attention_errors, &first, progress,
                           err))
            goto done;
    for (size_t s = 0; s < e->n_sequences; s++)
        e->reference[s].agree = e->reference[s].n;
    e->reference_known = true;
    for (size_t i = 0; i < n; i++)
        if (choice[i].is_reference)
            choice[i].seconds = e->reference_seconds;
    for (size_t i = 0; i < n; i++)
        if (check_choice(e, &choice[i], first_layer, err)) {
            if (!e->reports_inert)
                goto done;
            choice[i].inert = *err;
        }
    status = 0;
done:
    for (size_t i = 0; i < n; i++)
        put_away(e, &choice[i]);
    r->rows_free(r, residual);
    if (keep)
        r->drop_attention(r);
    return status;
}

void kvd_choice_release(kvd_choice *c)
{
    free(c->per_sequence);
    c->per_sequence = NULL;
    free(c->each);
    c->each = NULL;
    kvd_attention_error_release(&c->error);
}

int kvd_evaluator_know_reference(kvd_evaluator *e, kvd_err *err)
{
    return e->reference_known ? 0 : kvd_evaluate(e, NULL, 0, 0, false, NULL, err);
}

int kvd_evaluator_compare(const kvd_evaluator *e, const kvd_choice *c, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err)
{
    return e->n_texts
               ? kvd_quality_compare_texts(c->per_sequence, e->reference, e->text_first, e->n_texts,
                                           seed, out, err)
               : kvd_quality_compare(c->per_sequence, e->reference, e->n_sequences, seed, out, err);
}

double kvd_full_rank_tolerance(const kvd_dims_method *m, kvd_dtype compute)
{
    return compute != KVD_F32 ? 0.25 : m->biorthogonal ? 1e-2 : 1e-3;
}

int kvd_evaluate_full_rank(kvd_evaluator *e, const kvd_dims *full, double tolerance, double *error,
                           kvd_err *err)
{
    kvd_model_runner *const r = e->runner;
    const size_t vocab = (size_t)e->config->vocab_size, d_model = (size_t)e->config->d_model;
    /* Stores K and V in float32, so that rounding to 16 bits does not add to the measured change of
     * the logits. */
    kvd_choice c = {.method = full->method,
                    .plan = {.dims = full, .type = KVD_F32, .prompt = e->prompt}};
    kvd_batch b;
    double largest = 0, sum2 = 0;
    int status = -1;
    r->kept_prompt = KVD_NOT_KEPT;
    if (load_batch(e, 0, &b, err) || ready(e, &c, err) ||
        run_reference(e, &b, e->batch_hidden, err) ||
        run_cut(e, &b, &c, 0, NULL, false, c.hidden, err))
        goto done;
    const size_t n_tokens = b.offset[b.n_sequences];
    for (size_t first = 0; first < n_tokens; first += r->piece) {
        const size_t n = n_tokens - first < r->piece ? n_tokens - first : r->piece;
        double change;
        if (r->reference_logits(r, e->batch_hidden + first * d_model, n, err) ||
            r->logit_change(r, c.hidden + first * d_model, n, &change, &sum2, err))
            goto done;
        largest = change > largest ? change : largest;
    }
    /* root mean square of the uncompressed model's logits; 0 if all its weights are 0 */
    const double rms = sqrt(sum2 / ((double)n_tokens * (double)vocab));
    *error = largest <= 0 && rms <= 0 ? 0 : largest / rms;
    if (!(*error <= tolerance)) {
        kvd_fail(
            err,
            "method '%s' at full width changes logits by %.3g of their rms, allowed is %.3g: its "
            "projections are not the identity",
            full->method, *error, tolerance);
        goto done;
    }
    status = 0;
done:
    put_away(e, &c);
    return status;
}

static int keep_rows(kvd_evaluator *e, kvd_err *err)
{
    const size_t row = (size_t)e->config->d_model * sizeof *e->hidden;
    if (e->n_scored > e->runner->spare(e->runner) / row) {
        e->bytes_not_kept = e->n_scored * row;
        return 0;
    }
    e->hidden = e->runner->rows_new(e->runner, e->n_scored, "hidden rows of all tokens", err);
    return e->hidden ? 0 : -1;
}

static int count_rows(kvd_evaluator *e, kvd_err *err)
{
    size_t longest = 0;
    for (size_t s = 0; s < e->n_sequences; s++) {
        const size_t n = kvd_corpus_length(e->corpus, s), prompt = kvd_prompt_rows(e->prompt, n);
        longest = n > longest ? n : longest;
        e->n_steps += n - prompt;
        e->prompt_at[s + 1] = e->prompt_at[s] + prompt;
        e->scored_at[s + 1] = e->scored_at[s] + n - prompt - 1;
    }
    e->n_scored = e->scored_at[e->n_sequences];
    if (longest < e->prompt + 2)
        return kvd_fail(
            err, "no row is left to score: the longest sequence has %zu tokens, the prompt %zu",
            longest, e->prompt);
    return 0;
}

static size_t prompts_of_batch(const kvd_evaluator *e)
{
    size_t most = 0;
    for (size_t s = 0, n; s < e->n_sequences; s += n) {
        n = batch_of(e, s);
        const size_t rows = e->prompt_at[s + n] - e->prompt_at[s];
        most = rows > most ? rows : most;
    }
    return most;
}

/* Decides, once for all evaluations, if there is memory to keep K and V of prompts, so that methods
 * need not compute them again. */
static int keep_prompts(kvd_evaluator *e, kvd_err *err)
{
    kvd_model_runner *const r = e->runner;
    if (!r->keep_prompts || e->prompt == 0)
        return 0;
    const size_t rows = e->hidden ? e->prompt_at[e->n_sequences] : prompts_of_batch(e);
    if (rows > r->spare(r) / r->prompt_bytes(r))
        return 0;
    e->keeps_prompts = e->hidden ? KVD_PROMPTS_OF_ALL : KVD_PROMPTS_OF_BATCH;
    return r->keep_prompts(r, e->prompt, rows, err);
}

int kvd_evaluator_init(kvd_evaluator *e, kvd_model_runner *runner, kvd_corpus *corpus,
                       size_t prompt, bool keep_reference, kvd_err *err)
{
    const size_t rows = runner->max_tokens;
    memset(e, 0, sizeof *e);
    e->runner = runner;
    e->config = runner->config;
    e->corpus = corpus;
    e->n_sequences = kvd_corpus_n_sequences(corpus);
    e->n_tokens = kvd_corpus_n_tokens(corpus);
    e->prompt = prompt;
    if (!(e->prompt_at =
              kvd_new(e->n_sequences + 1, sizeof *e->prompt_at, "rows of prompts", err)) ||
        !(e->scored_at = kvd_new(e->n_sequences + 1, sizeof *e->scored_at, "scored rows", err)) ||
        count_rows(e, err) ||
        !(e->reference = kvd_new(e->n_sequences, sizeof *e->reference, "sums per sequence", err)) ||
        !(e->id = kvd_new(rows, sizeof *e->id, "token ids", err)) ||
        !(e->offset = kvd_new(rows + 1, sizeof *e->offset, "sequence offsets", err)) ||
        !(e->target = kvd_new(rows, sizeof *e->target, "targets", err)) ||
        !(e->sequence = kvd_new(rows, sizeof *e->sequence, "targets", err)) ||
        !(e->batch_hidden = runner->rows_new(runner, rows, "hidden rows of a batch", err)) ||
        !(e->batch_scored = runner->rows_new(runner, rows, "hidden rows of a batch", err)) ||
        (keep_reference && keep_rows(e, err)) || keep_prompts(e, err)) {
        kvd_evaluator_release(e);
        return -1;
    }
    return 0;
}

int kvd_evaluator_keep_attention(kvd_evaluator *e, kvd_err *err)
{
    kvd_model_runner *const r = e->runner;
    assert(!e->reference_known && !e->keeps_attention);
    if (!e->hidden || e->n_tokens > r->spare(r) / r->attention_bytes(r))
        return 0;
    e->keeps_attention = !r->keep_attention(r, e->n_tokens, err);
    return e->keeps_attention ? 0 : -1;
}

void kvd_evaluator_release(kvd_evaluator *e)
{
    free(e->reference);
    free(e->id);
    free(e->offset);
    free(e->target);
    free(e->sequence);
    free(e->prompt_at);
    free(e->scored_at);
    if (e->runner) {
        if (e->keeps_attention)
            e->runner->drop_attention(e->runner);
        e->runner->rows_free(e->runner, e->hidden);
        e->runner->rows_free(e->runner, e->batch_hidden);
        e->runner->rows_free(e->runner, e->batch_scored);
    }
    memset(e, 0, sizeof *e);
}
