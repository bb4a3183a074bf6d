/* Generates tokens with the KV cache in host memory. */
#include <stdlib.h>
#include <string.h>

#include "evaluate/generate/generate_path.h"
#include "model/pass/forward.h"

typedef struct {
    kvd_generate_pass pass;
    const kvd_checkpoint *checkpoint;
    kvd_generator_spec spec;
    kvd_forward *forward;
    kvd_forward *twice; /* pass for methods that read prompts twice */
    /* [max_tokens][d_model] hidden states after the final norm */
    float *hidden;
    /* [max_tokens][d_model] hidden states of each sequence's last token */
    float *last;
    size_t d;
} cpu_pass;

static cpu_pass *cpu_of(kvd_generate_pass *p)
{
    return (cpu_pass *)(void *)p;
}

static void cpu_free(kvd_generate_pass *p)
{
    cpu_pass *const c = cpu_of(p);
    kvd_forward_free(c->forward);
    kvd_forward_free(c->twice);
    free(c->hidden);
    free(c->last);
    free(c);
}

static int cpu_first(kvd_generate_pass *p, const kvd_batch *b, kvd_prompts *prompts, bool twice,
                     kvd_err *err)
{
    cpu_pass *const c = cpu_of(p);
    const size_t most = (size_t)kvd_checkpoint_config(c->checkpoint)->max_positions,
                 len = 2 * c->spec.max_len;
    return (twice && !c->twice &&
            !(c->twice = kvd_forward_new(c->checkpoint, 2 * c->spec.max_tokens,
                                         len < most ? len : most, err))) ||
           kvd_forward_run(twice ? c->twice : c->forward, b, &prompts->hook, -1, NULL, err);
}

static int cpu_run(kvd_generate_pass *p, const kvd_batch *b, kvd_attention *hook, kvd_err *err)
{
    cpu_pass *const c = cpu_of(p);
    if (kvd_forward_run(c->forward, b, hook, -1, c->hidden, err))
        return -1;
    for (size_t s = 0; s < b->n_sequences; s++)
        memcpy(c->last + s * c->d, c->hidden + (b->offset[s + 1] - 1) * c->d,
               c->d * sizeof *c->last);
    return 0;
}

static int cpu_logits(kvd_generate_pass *p, size_t from, size_t n, float *logits, kvd_err *err)
{
    cpu_pass *const c = cpu_of(p);
    return kvd_forward_logits(c->forward, c->last + from * c->d, n, logits, err);
}

/* Opens a forward pass on the CPU in float32. The checkpoint must stay open. */
static kvd_generate_pass *pass_cpu(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                   kvd_err *err)
{
    const size_t d = (size_t)kvd_checkpoint_config(c)->d_model;
    cpu_pass *const p = kvd_new(1, sizeof *p, "a generator", err);
    if (!p)
        return NULL;
    *p = (cpu_pass){
        .pass = {.first = cpu_first, .run = cpu_run, .logits = cpu_logits, .free = cpu_free},
        .checkpoint = c,
        .spec = *s,
        .d = d,
        .hidden = malloc(s->max_tokens * d * sizeof *p->hidden),
        .last = malloc(s->max_tokens * d * sizeof *p->last)};
    if (!p->hidden || !p->last)
        kvd_no_memory(err, "a generator", 2 * s->max_tokens * d * sizeof *p->hidden);
    else if ((p->forward = kvd_forward_new(c, s->max_tokens, s->max_len, err)))
        return &p->pass;
    cpu_free(&p->pass);
    return NULL;
}

typedef struct {
    kvd_generate_path path;
    const kvd_config *config;
    kvd_generate_pass *pass;
    size_t max_tokens;
    const kvd_plan *plan;
    kvd_attention hook; /* calls `cache`'s hook and then path.layer_done */
    kvd_sequence_cache cache;
    kvd_prompts prompts;
    /* [sequence][vocab_size] logits by which the next tokens are chosen */
    float *logits;
} by_rows;

static by_rows *of(kvd_generate_path *p)
{
    return (by_rows *)(void *)p;
}

/* Returns the index of the largest element, the lowest index among equals. */
static size_t largest(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t j = 1; j < n; j++)
        if (x[j] > x[best])
            best = j;
    return best;
}

static size_t together(const kvd_generate_path *p, const kvd_continuations *c, size_t first)
{
    const by_rows *const r = (const by_rows *)(const void *)p;
    size_t tokens = 0, n = 0;
    for (; first + n < c->n_sequences; n++) {
        const size_t s = first + n,
                     more = c->offset[s + 1] - c->offset[s] + c->end[s + 1] - c->end[s];
        if (n && tokens + more > r->max_tokens)
            break;
        tokens += more;
    }
    return n;
}

static int begin(kvd_generate_path *p, const kvd_plan *plan, size_t n, kvd_err *err)
{
    by_rows *const r = of(p);
    r->plan = plan;
    return kvd_sequence_cache_init(&r->cache, r->config, plan, n, err);
}

static int first_pass(void *ctx, const kvd_batch *first, kvd_prompts *prompts, kvd_err *err)
{
    const by_rows *const r = ctx;
    return r->pass->first(r->pass, first, prompts, kvd_prompts_repeated(prompts), err);
}

static int attend(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err)
{
    by_rows *const r = (by_rows *)(void *)((char *)self - offsetof(by_rows, hook));
    const int status = r->cache.hook.run(&r->cache.hook, in, out, err);
    if (r->path.layer_done)
        r->path.layer_done(r->path.layer_ctx, in->layer + 1);
    return status;
}

static int run(kvd_generate_path *p, const kvd_batch *b, const size_t *slot, kvd_err *err)
{
    by_rows *const r = of(p);
    if (!b->start[0] && kvd_plan_first_pass(r->plan)) {
        if (kvd_prompts_make(&r->prompts, r->config, r->plan, b, SIZE_MAX, first_pass, r, err))
            return -1;
        r->cache.prompts = &r->prompts;
    }
    r->cache.slot = slot;
    r->hook = r->cache.hook;
    r->hook.run = attend;
    return r->pass->run(r->pass, b, &r->hook, err);
}

static int read(kvd_generate_path *p, size_t from, size_t n, uint32_t *token, float *logits,
                kvd_err *err)
{
    by_rows *const r = of(p);
    const size_t vocab = (size_t)r->config->vocab_size;
    float *const x = logits ? logits : r->logits;
    if (r->pass->logits(r->pass, from, n, x, err))
        return -1;
    for (size_t i = 0; i < n; i++)
        token[i] = (uint32_t)largest(x + i * vocab, vocab);
    return 0;
}

static double bits(const kvd_generate_path *p, size_t slot)
{
    return kvd_sequence_cache_bits(&((const by_rows *)(const void *)p)->cache, slot);
}

static void end(kvd_generate_path *p, kvd_stepwise_account *account)
{
    by_rows *const r = of(p);
    if (account)
        kvd_stepwise_account_add(account, &r->cache.account);
    kvd_sequence_cache_release(&r->cache);
    kvd_prompts_release(&r->prompts);
    r->prompts = (kvd_prompts){0};
}

static void release(kvd_generate_path *p)
{
    by_rows *const r = of(p);
    if (r->pass)
        r->pass->free(r->pass);
    free(r->logits);
    free(r);
}

kvd_generate_path *kvd_generate_rows(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                     const struct kvd_gpu_weights *weights, kvd_err *err)
{
    (void)weights;
    const kvd_config *const config = kvd_checkpoint_config(c);
    const size_t vocab = (size_t)config->vocab_size, most = (size_t)4 * 1024 * 1024 / vocab,
                 piece = most < 1               ? 1
                         : most > s->max_tokens ? s->max_tokens
                                                : most;
    by_rows *const r = kvd_new(1, sizeof *r, "a generator", err);
    if (!r)
        return NULL;
    *r = (by_rows){.path = {.piece = piece,
                            .together = together,
                            .begin = begin,
                            .run = run,
                            .read = read,
                            .bits = bits,
                            .end = end,
                            .free = release},
                   .config = config,
                   .max_tokens = s->max_tokens,
                   .logits = malloc(piece * vocab * sizeof *r->logits)};
#ifdef KVD_CUDA
    if (s->gpu)
        r->pass = kvd_generate_pass_cuda(c, s, weights, piece, err);
#endif
    if (!s->gpu)
        r->pass = pass_cpu(c, s, err);
    if (r->pass && r->logits)
        return &r->path;
    if (r->pass)
        kvd_no_memory(err, "a generator", piece * vocab * sizeof *r->logits);
    release(&r->path);
    return NULL;
}
