/* Generates tokens with the CUDA engine in bf16. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "evaluate/generate/generate_path.h"
#include "kernels/layout.h"
#include "methods/bits/streams.h"
#include "methods/cuda/gpu_method.h"
#include "model/checkpoint/cuda/weights.h"
#include "model/pass/cuda/paged.h"

enum { PAGE = 64 };

/* number of sequences that run together: 1 / GROUPS of all sequences, but at least LEAST_SLOTS and
 * at most MOST_SLOTS */
enum { LEAST_SLOTS = 32, MOST_SLOTS = 256, GROUPS = 8 };

typedef struct {
    size_t rows;
    kvd_engine_count of; /* cache contents of the slot, where `bits` is never NaN */
} slot_state;

typedef struct {
    kvd_generate_path path;
    const kvd_config *config;
    const kvd_plan *plan;
    const kvd_checkpoint *checkpoint;
    kvd_engine_spec spec;
    kvd_engine *engine;
    size_t pages; /* pages of memory that the first engine has */
    size_t slots, max_tokens;
    bool scores;
    kvd_slice *slice; /* [slots] */
    uint32_t *token;  /* [slots] */
    /* [slots][vocab_size] logits of each running sequence, or NULL if the caller does not want
     * logits */
    float *logits;
    slot_state *slot; /* [slots] */
    size_t n;
    /* number of KV heads in all layers, and in the layers without a sliding window */
    double heads, counted_heads;
    double row_bits; /* bits of a token's K and V before quantisation */
    /* bits of a token's K and V in one layer without compression */
    double dense_bits;
    /* bits per token that methods store in addition to K and V */
    double entry_bits;
    kvd_stepwise_account account;
} by_engine;

static by_engine *of(kvd_generate_path *p)
{
    return (by_engine *)(void *)p;
}

static int check_model(const kvd_config *c, size_t max_len, kvd_err *err)
{
    kvd_gpu_share share;
    kvd_attn_map map;
    if (c->positions == KVD_POSITIONS_ROPE && c->rope_scaling == KVD_ROPE_LONGROPE &&
        max_len > (size_t)c->rope_original_positions)
        return kvd_fail(err, "the engine turns keys once, and longrope turns those of long "
                             "sequences otherwise");
    if (kvd_gpu_share_of(c, KVD_GPU_SERVING, 0, 1, &share, err)) {
        char *const advice = strstr(err->msg, ": use ");
        /* Cuts the advice ": use ..." off the error message, because only programs that require a
         * GPU need it. */
        if (advice)
            *advice = '\0';
        return -1;
    }
    return kvd_gpu_paged_map(c, &share, NULL, NULL, &map)
               ? kvd_fail(err, "the engine takes up to %d heads of multiples of %d up to %d",
                          KVD_HEADS_MAX, KVD_WIDTH_STEP, KVD_WIDTH_MAX)
               : 0;
}

bool kvd_generate_engine_runs(const kvd_config *c, const kvd_generator_spec *s, const kvd_plan *p,
                              char why[KVD_GENERATOR_WHY])
{
    const bool member = kvd_gpu_method_name(p) != NULL;
    const bool rebuilds = p->dims && p->dims->rebuild;
    /* Longest sequence in tokens, doubled for methods that feed every prompt to the model twice. */
    const size_t max_len = kvd_plan_copies(p) * s->max_len;
    const kvd_gpu_kind *const kind = kvd_gpu_kind_of_text(p, c, max_len);
    const char *reason = NULL;
    kvd_err err = {""};
    if (s->compute != KVD_BF16)
        reason = "the engine computes in bf16 (--compute bf16)";
    else if (p->type != KVD_BF16)
        reason = "the engine stores bf16 (--cache bf16)";
    else if (p->keep_first + p->keep_last > 0)
        reason = "the engine does not keep layers whole";
    else if (!kvd_gpu_has_keys(kind, p, c))
        reason = "the engine has no keys before RoPE in models with biases or norms of Q and K, or "
                 "with partial RoPE";
    else if (member ? p->levels || !kind || !kind->generates || !kind->generates(p) : rebuilds)
        reason = "the engine has no cache for it whose prompts attend uncompressed";
    else if (member && kind->fits && !kind->fits(p, c))
        reason = "the engine's kernels of this method do not support the heads of the model";
    else if ((member && kvd_gpu_method_check(kind, p, c, max_len, &err)) ||
             check_model(c, max_len, &err))
        reason = err.msg;
    (void)snprintf(why, KVD_GENERATOR_WHY, "%s", reason ? reason : "");
    return !reason;
}

const char *kvd_generate_engine_name(const kvd_config *c, const kvd_generator_spec *s,
                                     const kvd_plan *p)
{
    const kvd_gpu_kind *const kind = kvd_gpu_kind_of_text(p, c, kvd_plan_copies(p) * s->max_len);
    return kind && kind->codes_on_host && kind->codes_on_host(p) ? "GPU engine, codes on the CPU"
                                                                 : "GPU engine";
}

/* Returns how many bits one token's K and V take in a layer. A latent that K and V share counts
 * once. */
static double layer_bits(const by_engine *e, int layer)
{
    const kvd_plan *const p = e->plan;
    const kvd_dims *const dims = p->dims ? p->dims : p->widths;
    const int heads = e->config->n_kv_heads;
    const size_t d = (size_t)e->config->d_head,
                 width = p->channels && p->channels->width
                             ? p->channels->width(&p->channels_values, d)
                             : d;
    double sum = 0;
    for (int i = layer * heads; i < (layer + 1) * heads; i++)
        sum += dims ? dims->head[i].d_qk + dims->head[i].d_v : 2 * (double)width;
    return 8 * (double)kvd_dtype_bytes(KVD_BF16) * sum / (dims && dims->rebuild ? dims->heads : 1);
}

static size_t rows_held(const by_engine *e, int layer, size_t rows)
{
    const size_t window = kvd_config_window(e->config, layer);
    return window && window < rows ? window : rows;
}

/* Returns true if the layer attends within a sliding window shorter than the longest sequence. */
static bool has_window(const by_engine *e, int layer)
{
    return rows_held(e, layer, e->spec.max_len) < e->spec.max_len;
}

/* Returns true if the layer keeps only the tokens of its sliding window, uncompressed. */
static bool holds_window(const by_engine *e, int layer)
{
    return !e->plan->bits && has_window(e, layer);
}

/* Returns how many bits the layers with an uncompressed sliding window hold after `rows` tokens. */
static double window_bits(const by_engine *e, size_t rows)
{
    double sum = 0;
    for (int l = 0; l < e->config->n_layers; l++)
        sum += holds_window(e, l) ? (double)rows_held(e, l, rows) * layer_bits(e, l) : 0;
    return sum;
}

static double dense_bits(const by_engine *e, size_t rows)
{
    double sum = 0;
    for (int l = 0; l < e->config->n_layers; l++)
        sum += (double)rows_held(e, l, rows) * e->dense_bits;
    return sum;
}

static void count(const by_engine *e, size_t slot, size_t rows, slot_state *to)
{
    to->rows = rows;
    e->engine->count(e->engine, slot, rows, &to->of);
    if (isnan(to->of.bits))
        to->of.bits = to->of.entries * e->row_bits;
}

/* Returns how many of n tokens have a quantised K plus how many have a quantised V. The newest and
 * the first tokens may stay unquantised. */
static size_t coded(const by_engine *e, size_t n)
{
    const size_t exact = e->plan->tokens ? 0 : kvd_plan_exact(e->plan);
    size_t sum = 0;
    for (int side = 0; e->plan->bits && side < KVD_N_SIDES; side++) {
        size_t window = 0, block = 1;
        if (e->plan->bits->window)
            e->plan->bits->window(&e->plan->bits_values, (kvd_side)side, &window, &block);
        const size_t end = n > window ? (n - window) / block * block : 0;
        sum += end > exact ? end - exact : 0;
    }
    return sum;
}

/* Returns true if the compression method projects the keys of a prompt to fewer channels. */
static bool cuts_prompts(const by_engine *e)
{
    return e->plan->channels && !e->plan->channels->prune;
}

/* Returns how many tokens of an n-token prompt the cache holds, summed over all KV heads and
 * layers. */
static size_t held_tokens(const by_engine *e, size_t n)
{
    size_t sum = 0;
    for (int l = 0; l < e->config->n_layers; l++)
        sum += rows_held(e, l, n) * (size_t)e->config->n_kv_heads;
    return sum;
}

/* Updates the cache statistics e->account after n new tokens in cache `slot`. If `step`, the tokens
 * come from a decode step, and the bits that the step has read are counted too. */
static void account_for(by_engine *e, size_t slot, size_t n, bool step)
{
    kvd_stepwise_account *const a = &e->account;
    slot_state *const s = &e->slot[slot];
    const kvd_engine_count was = s->of, *const is = &s->of;
    const size_t heads = (size_t)e->heads;
    count(e, slot, s->rows + n, s);
    /* bits stored for this sequence in all layers with a sliding window */
    const double window = window_bits(e, s->rows);
    a->dropped += (size_t)llround((was.entries + (double)n - is->entries) * e->counted_heads);
    a->merged += is->merged - was.merged;
    a->lowered += is->lowered - was.lowered;
    a->pruned += cuts_prompts(e) && !step ? held_tokens(e, n) : is->pruned - was.pruned;
    a->coded += (coded(e, (size_t)is->entries) - coded(e, (size_t)was.entries)) * heads;
    if (!step)
        return;
    a->rows += heads;
    a->payload += is->bits + window;
    a->entries += is->entries * e->entry_bits + is->side;
    a->dense += dense_bits(e, s->rows);
    /* bits in the cache during the step: compressed earlier tokens, the uncompressed new token, and
     * sliding windows */
    a->peak += was.bits + e->row_bits + window;
    a->read += was.bits + e->row_bits + window + (was.entries + 1) * e->entry_bits + is->side -
               is->unread * e->row_bits - is->unseen;
    a->unread += (size_t)llround(is->unread * e->counted_heads);
}

static void count_rows(by_engine *e)
{
    const kvd_config *const c = e->config;
    e->heads = (double)c->n_layers * c->n_kv_heads;
    e->dense_bits = 8 * (double)kvd_dtype_bytes(KVD_BF16) * (double)kvd_config_cached(c);
    for (int l = 0; l < c->n_layers; l++) {
        /* Methods that choose tokens skip layers with a sliding window. Quantisation does not. */
        const bool window = e->plan->tokens ? has_window(e, l) : holds_window(e, l);
        e->counted_heads += window ? 0 : c->n_kv_heads;
        e->row_bits += holds_window(e, l) ? 0 : layer_bits(e, l);
    }
    e->entry_bits = e->plan->tokens ? e->counted_heads * kvd_plan_entry_bits(e->plan) : 0;
}

/* Returns how many sequences, from number `first` on, fit together into `room` pages of KV cache.
 * Returns 1 even if no sequence fits. */
static size_t fitting(const kvd_engine_facts *f, const kvd_continuations *c, size_t first,
                      size_t most, size_t room)
{
    size_t pages = 0, n = 0;
    for (; n < most; n++) {
        const size_t s = first + n,
                     tokens = c->offset[s + 1] - c->offset[s] + c->end[s + 1] - c->end[s];
        pages += (tokens + PAGE - 1) / PAGE;
        if (n && (pages > room || (n + 1) * f->window_share > f->window_pages))
            break;
    }
    return n;
}

static size_t together(const kvd_generate_path *p, const kvd_continuations *c, size_t first)
{
    const by_engine *const e = (const by_engine *)(const void *)p;
    const size_t left = c->n_sequences - first;
    return fitting(&e->engine->facts, c, first, left < e->slots ? left : e->slots, e->pages);
}

static size_t fits(const kvd_generate_path *p, const kvd_continuations *c, size_t first, size_t n)
{
    const kvd_engine_facts *const f = &((const by_engine *)(const void *)p)->engine->facts;
    return fitting(f, c, first, n, f->pages);
}

/* Opens the engine again with more memory for outliers of quantisation, or for entropy-coded data.
 * Returns 1 on success, 0 if more memory would not help, and -1 on failure. */
static int grow(kvd_generate_path *p, kvd_err *err)
{
    by_engine *const e = of(p);
    const size_t needed = e->engine->lacking ? e->engine->lacking(e->engine) : 0,
                 of_head = (size_t)KVD_PAGE_TOKENS * (size_t)e->config->d_head,
                 of_stream = (size_t)KVD_PAGE_TOKENS * KVD_LANES * KVD_STREAM_GROUPS,
                 most = needed > of_head ? of_stream : of_head, twice = 2 * e->spec.outliers,
                 wanted = needed + needed / 4;
    if (!needed || e->spec.outliers >= most)
        return 0;
    e->spec.outliers = wanted < twice ? twice : wanted;
    e->spec.outliers = e->spec.outliers < most ? e->spec.outliers : most;
    e->engine->free(e->engine);
    e->engine = kvd_engine_open_cuda(e->checkpoint, e->plan, &e->spec, err);
    return e->engine ? 1 : -1;
}

static int begin(kvd_generate_path *p, const kvd_plan *plan, size_t n, kvd_err *err)
{
    by_engine *const e = of(p);
    (void)err;
    e->plan = plan;
    e->n = n;
    e->account = (kvd_stepwise_account){0};
    for (size_t s = 0; s < n; s++)
        e->slot[s] = (slot_state){.rows = 0};
    return 0;
}

static int iterate(by_engine *e, const kvd_batch *b, const size_t *slot, size_t from, size_t n,
                   kvd_err *err)
{
    const size_t vocab = (size_t)e->config->vocab_size;
    const bool steps = b->start[from] > 0;
    for (size_t i = 0; i < n; i++) {
        const size_t s = from + i;
        e->slice[i] = (kvd_slice){.request = (uint32_t)(b->first_sequence + slot[s]),
                                  .slot = (uint32_t)slot[s],
                                  .before = (uint32_t)b->start[s],
                                  .n = (uint32_t)(b->offset[s + 1] - b->offset[s]),
                                  .whole = (uint32_t)b->whole[s],
                                  .emits = 1};
    }
    const kvd_iteration it = {.n_slices = n,
                              .n_steps = steps ? n : 0,
                              .slice = e->slice,
                              .n_tokens = b->offset[from + n] - b->offset[from]};
    if (e->engine->step(e->engine, &it, b->id + b->offset[from], e->token + from, NULL, err))
        return -1;
    for (size_t i = 0; e->scores && i < n; i++)
        if (e->engine->logits(e->engine, i, e->logits + (from + i) * vocab, err))
            return -1;
    return 0;
}

static int run(kvd_generate_path *p, const kvd_batch *b, const size_t *slot, kvd_err *err)
{
    by_engine *const e = of(p);
    for (size_t from = 0, n; from < b->n_sequences; from += n) {
        n = 1;
        while (from + n < b->n_sequences &&
               (b->start[from] || b->offset[from + n + 1] - b->offset[from] <= e->max_tokens))
            n++;
        if (iterate(e, b, slot, from, n, err))
            return -1;
    }
    if (e->engine->finish && e->engine->finish(e->engine, err))
        return -1;
    for (size_t i = 0; i < b->n_sequences; i++)
        account_for(e, slot[i], b->offset[i + 1] - b->offset[i], b->start[i] > 0);
    return 0;
}

static int read(kvd_generate_path *p, size_t from, size_t n, uint32_t *token, float *logits,
                kvd_err *err)
{
    const by_engine *const e = of(p);
    const size_t vocab = (size_t)e->config->vocab_size;
    (void)err;
    for (size_t i = 0; i < n; i++)
        token[i] = e->token[from + i];
    for (size_t i = 0; logits && i < n * vocab; i++)
        logits[i] = e->logits[from * vocab + i];
    return 0;
}

static double bits(const kvd_generate_path *p, size_t slot)
{
    const by_engine *const e = (const by_engine *)(const void *)p;
    const kvd_engine_count *const c = &e->slot[slot].of;
    return c->bits + window_bits(e, e->slot[slot].rows) + c->entries * e->entry_bits + c->side;
}

static void end(kvd_generate_path *p, kvd_stepwise_account *account)
{
    by_engine *const e = of(p);
    if (account)
        kvd_stepwise_account_add(account, &e->account);
    for (size_t s = 0; e->engine && s < e->n; s++)
        e->engine->drop(e->engine, s);
    e->n = 0;
}

static void release(kvd_generate_path *p)
{
    by_engine *const e = of(p);
    if (e->engine)
        e->engine->free(e->engine);
    free(e->slice);
    free(e->token);
    free(e->logits);
    free(e->slot);
    free(e);
}

static size_t slots_of(size_t n)
{
    const size_t share = (n + GROUPS - 1) / GROUPS, slots = share < LEAST_SLOTS  ? LEAST_SLOTS
                                                            : share > MOST_SLOTS ? MOST_SLOTS
                                                                                 : share;
    return n < slots ? n : slots;
}

kvd_generate_path *kvd_generate_engine(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                       const kvd_gpu_weights *weights, const kvd_plan *plan,
                                       size_t n_sequences, bool scores, kvd_err *err)
{
    by_engine *const e = calloc(1, sizeof *e);
    const size_t slots = slots_of(n_sequences);
    const kvd_engine_spec spec = {.limits = {.max_batch = slots, .max_tokens = s->max_tokens},
                                  .max_len = s->max_len,
                                  .type = KVD_BF16,
                                  .first_gpu = s->first_gpu,
                                  .n_gpus = 1,
                                  .exact_prompts = true,
                                  .weights = weights};
    if (!e) {
        kvd_no_memory(err, "a generator", sizeof *e);
        return NULL;
    }
    *e = (by_engine){.path = {.piece = slots,
                              .together = together,
                              .grow = grow,
                              .fits = fits,
                              .begin = begin,
                              .run = run,
                              .read = read,
                              .bits = bits,
                              .end = end,
                              .free = release},
                     .config = kvd_checkpoint_config(c),
                     .plan = plan,
                     .checkpoint = c,
                     .spec = spec,
                     .slots = slots,
                     .max_tokens = s->max_tokens,
                     .scores = scores};
    const size_t logits = scores ? slots * (size_t)e->config->vocab_size : 0;
    e->slice = calloc(slots, sizeof *e->slice);
    e->token = calloc(slots, sizeof *e->token);
    e->slot = calloc(slots, sizeof *e->slot);
    e->logits = logits ? malloc(logits * sizeof *e->logits) : NULL;
    count_rows(e);
    if (!e->slice || !e->token || !e->slot || (logits && !e->logits))
        kvd_no_memory(err, "a generator", logits * sizeof *e->logits);
    else if ((e->engine = kvd_engine_open_cuda(c, plan, &spec, err))) {
        e->pages = e->engine->facts.pages;
        return &e->path;
    }
    release(&e->path);
    return NULL;
}
