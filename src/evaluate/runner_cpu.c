/* Runs the models of an evaluation on the CPU, in float32. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "evaluate/model_runner.h"

typedef struct {
    kvd_model_runner hook;
    kvd_forward *forward;
    kvd_dense_attention dense;
    kvd_kept_attention kept;
    bool keeps;
    kvd_kept_prompts prompts;
    bool keeps_prompts;
    /* logits of the tokens that are compared at once: logits[0] of the uncompressed model,
     * logits[1] of a compressed one */
    float *logits[2];
} runner;

static runner *self_of(kvd_model_runner *r)
{
    return (runner *)(void *)r;
}

static float *new_rows(size_t n, size_t width, const char *what, kvd_err *err)
{
    if (n > SIZE_MAX / width / sizeof(float)) {
        kvd_fail(err, "%s: %zu x %zu numbers overflow", what, n, width);
        return NULL;
    }
    float *const p = malloc((n ? n : 1) * width * sizeof *p);
    if (!p)
        kvd_no_memory(err, what, (unsigned long long)n * width * sizeof *p);
    return p;
}

static float *rows_new(kvd_model_runner *r, size_t n, const char *what, kvd_err *err)
{
    return new_rows(n, (size_t)r->config->d_model, what, err);
}

static void rows_free(kvd_model_runner *r, float *rows)
{
    (void)r;
    free(rows);
}

static size_t spare(const kvd_model_runner *r)
{
    (void)r;
    const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    /* Returns a quarter of the machine's memory, or SIZE_MAX (no limit) if its size is unknown. */
    return pages > 0 && bytes > 0 ? (size_t)pages * (size_t)bytes / 4 : SIZE_MAX;
}

static int keep_attention(kvd_model_runner *r, size_t n_tokens, kvd_err *err)
{
    runner *const self = self_of(r);
    if (kvd_kept_attention_init(&self->kept, r->config, n_tokens, err))
        return -1;
    self->keeps = true;
    return 0;
}

static size_t attention_bytes(const kvd_model_runner *r)
{
    return (size_t)r->config->n_layers * (size_t)r->config->n_heads * (size_t)r->config->d_head *
           sizeof(float);
}

static void drop_attention(kvd_model_runner *r)
{
    runner *const self = self_of(r);
    kvd_kept_attention_release(&self->kept);
    self->keeps = false;
}

static int keep_prompts(kvd_model_runner *r, size_t prompt, size_t n_rows, kvd_err *err)
{
    runner *const self = self_of(r);
    if (kvd_kept_prompts_init(&self->prompts, r->config, prompt, n_rows, r->max_tokens, err)) {
        kvd_kept_prompts_release(&self->prompts);
        return -1;
    }
    self->keeps_prompts = true;
    return 0;
}

static size_t prompt_bytes(const kvd_model_runner *r)
{
    return kvd_kept_prompts_row_bytes(r->config);
}

static kvd_kept_prompts *prompts_of(runner *self)
{
    if (!self->keeps_prompts || self->hook.kept_prompt == KVD_NOT_KEPT)
        return NULL;
    self->prompts.first = self->hook.kept_prompt;
    return &self->prompts;
}

static int record_reference(void *ctx, const kvd_attention_in *in, kvd_err *err)
{
    kvd_kept_prompts *const p = prompts_of(ctx);
    return p ? kvd_kept_prompts_save(p, in, err) : 0;
}

static int save_reference(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err)
{
    runner *const self = ctx;
    self->kept.first = self->hook.kept_row;
    return self->keeps ? kvd_kept_attention_save(&self->kept, in, out, err) : 0;
}

static int reference(kvd_model_runner *r, const kvd_batch *b, float *hidden, kvd_err *err)
{
    runner *const self = self_of(r);
    kvd_capture capture;
    kvd_capture_init(&capture, &self->dense.hook);
    capture.record = record_reference;
    capture.output = save_reference;
    capture.ctx = self;
    capture.hook.wants_pre = prompts_of(self) != NULL;
    return kvd_forward_run(self->forward, b, &capture.hook, -1, hidden, err);
}

static int below(kvd_model_runner *r, const kvd_batch *b, int layer, float *residual, kvd_err *err)
{
    runner *const self = self_of(r);
    return kvd_forward_residual(self->forward, b, &self->dense.hook, layer, residual, err);
}

static int plan_load(kvd_model_runner *r, kvd_plan *plan, kvd_err *err)
{
    return plan->dims ? kvd_dims_fits(plan->dims, r->config, err) : 0;
}

static const char *plan_engine(const kvd_plan *plan)
{
    return kvd_plan_stepwise(plan) ? "CPU, f32, row by row" : "CPU, f32";
}

static int run_prompts(void *ctx, const kvd_batch *first, kvd_prompts *prompts, kvd_err *err)
{
    runner *const self = ctx;
    kvd_kept_prompts *const kept = prompts_of(self);
    return kept && !kvd_prompts_repeated(prompts)
               ? kvd_kept_prompts_show(kept, first, &prompts->hook, err)
               : kvd_forward_run(self->forward, first, &prompts->hook, -1, NULL, err);
}

static int plan_run(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan, int first_layer,
                    const float *residual, float *hidden, kvd_cache_account *account,
                    kvd_attention_error *error, kvd_err *err)
{
    runner *const self = self_of(r);
    kvd_cache cache;
    kvd_prompts prompts = {0};
    if (kvd_cache_init(&cache, r->config, plan, r->max_len, err))
        return -1;
    kvd_capture capture;
    kvd_capture_init(&capture, &cache.hook);
    if (error) {
        self->kept.first = r->kept_row;
        error->kept = &self->kept;
        capture.output = kvd_attention_error_add;
        capture.ctx = error;
    }
    const bool first_pass = kvd_plan_first_pass(plan);
    int status = first_pass ? kvd_prompts_make(&prompts, r->config, plan, b, r->max_len,
                                               run_prompts, self, err)
                            : 0;
    cache.prompts = first_pass ? &prompts : NULL;
    /* Recorded Q, K and V of the prompts; NULL if a method needs layer inputs, which are not
     * recorded. */
    kvd_kept_prompts *const kept = cache.hook.wants_input ? NULL : prompts_of(self);
    if (!status)
        status = first_layer ? kvd_forward_run_from(self->forward, b, &capture.hook, first_layer,
                                                    residual, hidden, err)
                 : kept ? kvd_kept_prompts_run(kept, self->forward, b, &capture.hook, hidden, err)
                        : kvd_forward_run(self->forward, b, &capture.hook, -1, hidden, err);
    if (error)
        error->kept = NULL;
    kvd_cache_account_add(account, &cache.account);
    kvd_prompts_release(&prompts);
    kvd_cache_release(&cache);
    return status;
}

static bool plan_is_reference(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan,
                              kvd_cache_account *account, kvd_attention_error *error)
{
    runner *const self = self_of(r);
    if (!kvd_plan_changes_nothing(plan))
        return false;
    kvd_cache_account_whole(r->config, plan, b->offset, b->n_sequences, account);
    self->kept.first = r->kept_row;
    if (error)
        kvd_attention_error_add_none(error, &self->kept, b->offset[b->n_sequences]);
    return true;
}

static int rows_copy(kvd_model_runner *r, float *to, const float *from, size_t n, kvd_err *err)
{
    (void)err;
    memcpy(to, from, n * (size_t)r->config->d_model * sizeof *to);
    return 0;
}

static int differ(kvd_model_runner *r, const float *a, const float *b, size_t n, bool *yes,
                  kvd_err *err)
{
    (void)err;
    *yes = memcmp(a, b, n * (size_t)r->config->d_model * sizeof *a) != 0;
    return 0;
}

static int reference_logits(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err)
{
    runner *const self = self_of(r);
    return kvd_forward_logits(self->forward, rows, n, self->logits[0], err);
}

static int score(kvd_model_runner *r, const float *rows, const kvd_predictions *p,
                 kvd_quality *per_sequence, kvd_err *err)
{
    runner *const self = self_of(r);
    const size_t vocab = (size_t)r->config->vocab_size;
    const float *const mine = self->logits[rows ? 1 : 0];
    if (rows && kvd_forward_logits(self->forward, rows, p->n, self->logits[1], err))
        return -1;
    for (size_t from = 0, end; from < p->n; from = end) {
        for (end = from + 1; end < p->n && p->sequence[end] == p->sequence[from];)
            end++;
        if (p->sequence[from] < 0)
            continue;
        if (kvd_quality_add(&per_sequence[p->sequence[from]], mine + from * vocab,
                            rows ? self->logits[0] + from * vocab : NULL, p->target + from,
                            end - from, vocab, rows && p->each ? p->each + from : NULL, err))
            return kvd_in(err, "rows from %zu", from);
    }
    return 0;
}

static int logit_change(kvd_model_runner *r, const float *rows, size_t n, double *largest,
                        double *sum2, kvd_err *err)
{
    runner *const self = self_of(r);
    if (kvd_forward_logits(self->forward, rows, n, self->logits[1], err))
        return -1;
    *largest = 0;
    for (size_t i = 0; i < n * (size_t)r->config->vocab_size; i++) {
        const double u = (double)self->logits[0][i], diff = fabs((double)self->logits[1][i] - u);
        if (!(diff <= *largest))
            *largest = isnan(diff) ? INFINITY : diff;
        *sum2 += u * u;
    }
    return 0;
}

static const char *describe(const kvd_model_runner *r)
{
    (void)r;
    return "CPU, f32";
}

static void release(kvd_model_runner *r)
{
    runner *const self = self_of(r);
    kvd_forward_free(self->forward);
    kvd_dense_attention_release(&self->dense);
    kvd_kept_attention_release(&self->kept);
    kvd_kept_prompts_release(&self->prompts);
    free(self->logits[0]);
    free(self->logits[1]);
    free(self);
}

kvd_model_runner *kvd_runner_cpu(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                 kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    const size_t vocab = (size_t)config->vocab_size;
    runner *const self = kvd_new(1, sizeof *self, "an evaluation", err);
    if (!self)
        return NULL;
    /* number of predictions to score at a time: as many as have 32 MiB of logits, but at least 16
     * and at most 1024 */
    size_t piece = (size_t)8 * 1024 * 1024 / vocab;
    piece = piece < 16 ? 16 : piece > 1024 ? 1024 : piece;
    self->hook = (kvd_model_runner){.config = config,
                                    .max_tokens = max_tokens,
                                    .max_len = max_len,
                                    .piece = piece < max_tokens ? piece : max_tokens,
                                    .compute = KVD_F32,
                                    .rows_new = rows_new,
                                    .rows_free = rows_free,
                                    .spare = spare,
                                    .keep_attention = keep_attention,
                                    .attention_bytes = attention_bytes,
                                    .drop_attention = drop_attention,
                                    .kept_prompt = KVD_NOT_KEPT,
                                    .keep_prompts = keep_prompts,
                                    .prompt_bytes = prompt_bytes,
                                    .reference = reference,
                                    .below = below,
                                    .plan_load = plan_load,
                                    .plan_engine = plan_engine,
                                    .plan_run = plan_run,
                                    .plan_is_reference = plan_is_reference,
                                    .rows_copy = rows_copy,
                                    .differ = differ,
                                    .reference_logits = reference_logits,
                                    .score = score,
                                    .logit_change = logit_change,
                                    .describe = describe,
                                    .free = release};
    kvd_dense_attention_init(&self->dense);
    if (!(self->forward = kvd_forward_new(c, max_tokens, max_len, err)) ||
        !(self->logits[0] = new_rows(self->hook.piece, vocab, "logits", err)) ||
        !(self->logits[1] = new_rows(self->hook.piece, vocab, "logits", err))) {
        release(&self->hook);
        return NULL;
    }
    return &self->hook;
}
