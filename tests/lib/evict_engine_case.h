/* Runs a token-eviction or token-selection method in the CPU and CUDA engines, and records the
 * logits and which tokens each engine keeps. */
#ifndef KVD_TESTS_EVICT_ENGINE_CASE_H
#define KVD_TESTS_EVICT_ENGINE_CASE_H

#include <math.h>

#include "engine/cuda/engine_parts.h"
#include "engine_schedule.h"
#include "methods/tokens/cuda/evict.h"

enum { N_REQUESTS = 8, LONGEST = 512 };

static kvd_activations calibration; /* random Q and K of the model's shape */

/* requests {input tokens, output tokens} */

static const request requests[N_REQUESTS] = {{300, 20}, {1, 60},  {64, 12}, {129, 1},
                                             {200, 40}, {63, 30}, {5, 100}, {440, 33}};

typedef struct {
    float *logits; /* logits of emitted tokens, [outputs][vocab] */
    /* [outputs] number of cached tokens, mean over KV heads */
    double *entries;
    /* [requests][KV heads of all layers][LONGEST] positions of the tokens in the cache before each
     * request's last decode step */
    uint32_t *position;
    /* [requests][KV heads of all layers] number of cached tokens that each request's last decode
     * step reads */
    size_t *kept;
} result;

static size_t heads_of(const kvd_config *c)
{
    return (size_t)c->n_layers * (size_t)c->n_kv_heads;
}

static size_t window_of(const kvd_config *c)
{
    size_t window = 0;
    for (int l = 0; l < c->n_layers; l++)
        window = kvd_config_window(c, l) ? kvd_config_window(c, l) : window;
    return window;
}

/* Returns the number of KV heads in layers without a sliding window. Methods act only on these
 * layers. */
static size_t full_heads(const kvd_config *c)
{
    size_t n = 0;
    for (int l = 0; l < c->n_layers; l++)
        n += kvd_config_window(c, l) ? 0 : (size_t)c->n_kv_heads;
    return n;
}

/* Returns the number of cached tokens of an n-token request, summed over KV heads with a sliding
 * window. If `pages`, counts whole pages. */
static double near_entries(const kvd_config *c, size_t n, bool pages)
{
    const size_t window = window_of(c), first = window && n + 1 > window ? n + 1 - window : 0,
                 held = pages ? (n + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS -
                                    first / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS
                        : n < window ? n
                                     : window;
    return (double)(held * (heads_of(c) - full_heads(c)));
}

static result result_make(const load *l, const kvd_config *c)
{
    const size_t heads = l->n * heads_of(c);
    return (result){need(l->outputs * l->vocab * sizeof(float)), need(l->outputs * sizeof(double)),
                    need(heads * LONGEST * sizeof(uint32_t)), need(heads * sizeof(size_t))};
}

static void result_release(result *r)
{
    host_free(r->logits, r->entries, r->position, r->kept);
}

/* Returns 1 in the last decode step of request r. Tests then compare which tokens the CPU engine
 * and the GPU engine keep. */
static int compared(size_t r, size_t tokens)
{
    return requests[r].output > 2 && tokens == requests[r].input + requests[r].output - 2;
}

static struct {
    const kvd_tokens_method *method;
    const kvd_config *config;
    result *to;
    size_t request;
} watched;

static void record_kept(const kvd_step_attention *a, const uint8_t *level)
{
    if (!compared(watched.request, a->now + 1))
        return;
    const size_t head = watched.request * heads_of(watched.config) +
                        (size_t)a->layer * (size_t)watched.config->n_kv_heads + (size_t)a->kv_head;
    watched.to->kept[head] = 0;
    for (size_t i = 0; i < a->n; i++)
        if (level[i] != KVD_LEVEL_DROPPED)
            watched.to->position[head * LONGEST + watched.to->kept[head]++] = a->position[i];
}

/* Calls the eviction method's function `step`, then records which tokens the method keeps. Tests
 * use this function in place of `step`. */
static int watch(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                 kvd_err *err)
{
    const int status = watched.method->step(self, state, a, level, err);
    if (!status)
        record_kept(a, level);
    return status;
}

static int watch_heads(const void *self, void *const *state, const kvd_step_attention *a,
                       size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const int status = watched.method->step_heads(self, state, a, n_heads, level, err);
    for (size_t g = 0; !status && g < n_heads; g++)
        record_kept(&a[g], level[g]);
    return status;
}

static void record_prompt(const kvd_prompt_attention *p, const uint8_t *level)
{
    const size_t head = watched.request * heads_of(watched.config) +
                        (size_t)p->layer * (size_t)watched.config->n_kv_heads + (size_t)p->kv_head;
    watched.to->kept[head] = 0;
    for (size_t t = 0; t < p->n; t++)
        watched.to->kept[head] += level[t] != KVD_LEVEL_DROPPED;
}

/* Calls the eviction method's function `prompt`, then records how many tokens each KV head keeps.
 * Tests use this function in place of `prompt`. */
static int watch_prompt(const void *self, void *state, const kvd_prompt_attention *p,
                        uint8_t *level, kvd_err *err)
{
    const int status = watched.method->prompt(self, state, p, level, err);
    if (!status)
        record_prompt(p, level);
    return status;
}

static int watch_prompt_heads(const void *self, void *const *state, const kvd_prompt_attention *p,
                              size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const int status = watched.method->prompt_heads(self, state, p, n_heads, level, err);
    for (size_t g = 0; !status && g < n_heads; g++)
        record_prompt(&p[g], level[g]);
    return status;
}

/* Returns true if the method both drops prompt tokens and selects which cached tokens a decode step
 * reads. */
static bool drops(const kvd_tokens_method *t)
{
    return t->select && t->prompt_heads;
}

/* Calls the method's function `select`, then records how many tokens the last layer reads. Tests
 * use this function in place of `select`. */
static int watch_select(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                        kvd_err *err)
{
    const int status = watched.method->select(self, state, c, read, err),
              last = watched.config->n_layers - 1;
    if (status || c->layer != last || !compared(watched.request, c->position[c->n - 1] + 1))
        return status;
    const size_t head = watched.request * heads_of(watched.config) +
                        (size_t)last * (size_t)watched.config->n_kv_heads + (size_t)c->kv_head;
    watched.to->kept[head] = 0;
    for (size_t i = 0; i < c->n; i++)
        if (read[i])
            watched.to->position[head * LONGEST + watched.to->kept[head]++] =
                drops(watched.method) ? (uint32_t)i : c->position[i];
    return 0;
}

/* Returns true if layers or KV heads may keep different numbers of tokens. */
static bool is_uneven(const kvd_tokens_method *t)
{
    return t && t->info.gpu == &kvd_gpu_uneven;
}

static bool selects(const kvd_tokens_method *t)
{
    return t && t->select;
}

static bool notes(const kvd_tokens_method *t)
{
    return t && (t->step || t->step_heads) && t != &kvd_tokens_streaming &&
           t != &kvd_tokens_elasticcache && !t->select;
}

/* Returns the bytes that the cache stores for a token in addition to K and V: its score, position
 * and similar data. */
static double noted_bytes(const kvd_tokens_method *t)
{
    return !notes(t) ? 0 : t == &kvd_tokens_scissorhands ? 16 : 8;
}

static int by_cpu(const kvd_checkpoint *c, const load *l, const kvd_plan *plan, result *to,
                  kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    const kvd_engine_spec spec = spec_of(&(setting){.max_batch = 1}, LONGEST, LONGEST);
    const serving_order by = {.slots = 1};
    kvd_tokens_method method;
    kvd_plan mine = *plan;
    if (is_uneven(plan->tokens)) {
        method = *plan->tokens;
        method.prompt = method.prompt ? watch_prompt : NULL;
        method.prompt_heads = method.prompt_heads ? watch_prompt_heads : NULL;
        mine.tokens = &method;
    }
    if (notes(plan->tokens)) {
        method = *plan->tokens;
        method.step = method.step ? watch : NULL;
        method.step_heads = method.step_heads ? watch_heads : NULL;
        mine.tokens = &method;
    }
    if (selects(plan->tokens)) {
        method = *plan->tokens;
        method.select = watch_select;
        mine.tokens = &method;
    }
    kvd_engine *const e = kvd_engine_open_cpu(c, &mine, &spec, err);
    int status = e ? 0 : -1;
    watched.method = plan->tokens;
    watched.config = config;
    watched.to = to;
    schedule s = schedule_make(l);
    for (kvd_iteration it = schedule_next(&s, l, &by); it.n_slices && !status;
         it = schedule_next(&s, l, &by)) {
        const size_t row = output_row(l, it.slice);
        kvd_phase_times t;
        uint32_t token;
        watched.request = it.slice->request;
        status = e->step(e, &it, s.id, &token, &t, err) ||
                 e->logits(e, 0, to->logits + row * l->vocab, err);
        const double held = e->held ? e->held(e) / (4.0 * (double)config->d_head) : 0;
        to->entries[row] = (held - near_entries(config, it.slice->before + it.slice->n, false)) /
                           (double)full_heads(config);
    }
    schedule_release(&s);
    engine_free(e);
    return status;
}

static const setting apart = {.name = "apart, graphs",
                              .max_batch = 3,
                              .graphs = true,
                              .phases = true},
                     together = {.name = "together", .max_batch = 5, .mixed = true},
                     plain = {.name = "apart, no graphs", .max_batch = 3},
                     pieces = {
                         .name = "prompts in chunks", .max_batch = 4, .chunk = 53, .mixed = true};

/* Returns the engine's eviction method, also if the method palu is added to it, as in
 * `h2o+palu`. */
static const kvd_gpu_method *evicting(const kvd_engine *e)
{
    const kvd_gpu_method *const m = ((const kvd_cuda_engine *)(const void *)e)->cache.method;
    return m->plan->maker ? kvd_gpu_palu_evict(m) : m;
}

static int read_kept(kvd_engine *e, const kvd_config *c, size_t r, size_t slot, result *to,
                     kvd_err *err)
{
    const kvd_gpu_method *const m = evicting(e);
    float score[LONGEST];
    int status = 0;
    for (size_t h = 0; !status && h < heads_of(c); h++) {
        const size_t head = r * heads_of(c) + h;
        if (kvd_config_window(c, (int)(h / (size_t)c->n_kv_heads)))
            continue;
        status = kvd_gpu_evict_read(m, slot, (int)(h / (size_t)c->n_kv_heads),
                                    (int)(h % (size_t)c->n_kv_heads), score,
                                    to->position + head * LONGEST, &to->kept[head], err);
    }
    return status;
}

/* Records how many tokens each KV head keeps. Returns the number of KV heads that have too few or
 * too many pages for these tokens. */
static size_t read_heads(kvd_engine *e, const kvd_config *c, size_t r, size_t slot, result *to)
{
    const kvd_gpu_method *const m = ((kvd_cuda_engine *)(void *)e)->cache.method;
    size_t wrong = 0;
    for (int l = 0; l < c->n_layers; l++)
        for (int g = 0; g < c->n_kv_heads && !kvd_config_window(c, l); g++) {
            const size_t n = kvd_gpu_uneven_entries(m, slot, l, g);
            to->kept[r * heads_of(c) + (size_t)(l * c->n_kv_heads + g)] = n;
            const size_t pages = kvd_gpu_uneven_pages(m, slot, l, g);
            wrong += pages * KVD_PAGE_TOKENS < n || pages > n / KVD_PAGE_TOKENS + 1;
        }
    return wrong;
}

typedef struct {
    const load *l;
    const kvd_config *config;
    /* [outputs] expected number of cached tokens per KV head when this output token is computed,
     * mean over heads, or NULL */
    const double *want;
    double entry;
    /* Cached tokens of each request. here: per KV head of layers without a sliding window. near:
     * total over the KV heads of layers with a sliding window. */
    double here[MOST], near[MOST];
    /* true if the method evicts tokens in decode steps; the cache then stores each token's score
     * and position */
    bool steps;
    bool uneven;
    /* true if pages store latent vectors instead of K and V; each KV head then also stores the
     * positions of its tokens */
    bool latents;
    /* number of tokens per page if decode steps select pages to read, otherwise 0 */
    size_t page;
    result *to;
    size_t wrong;
} counted;

static int read_chosen(kvd_engine *e, const counted *x, size_t r, size_t step, size_t tokens,
                       kvd_err *err)
{
    const kvd_gpu_method *const m = ((kvd_cuda_engine *)(void *)e)->cache.method;
    const size_t kv = (size_t)x->config->n_kv_heads, page = x->page,
                 first = r * heads_of(x->config) + heads_of(x->config) - kv;
    int32_t chosen[LONGEST];
    for (size_t g = 0; g < kv; g++) {
        size_t n = 0, read = 0, *const kept = &x->to->kept[first + g];
        if (kvd_gpu_selection_read(m, step, (int)g, chosen, &n, &read, err))
            return -1;
        *kept = 0;
        for (size_t i = 0; i < n; i++)
            for (size_t t = (size_t)chosen[i] * page; t < ((size_t)chosen[i] + 1) * page; t++)
                if (t < tokens && *kept < read)
                    x->to->position[(first + g) * LONGEST + (*kept)++] = (uint32_t)t;
    }
    return 0;
}

static int count(void *ctx, kvd_engine *e, const kvd_iteration *it, const uint32_t *token,
                 const kvd_phase_times *t, kvd_err *err)
{
    counted *const c = ctx;
    double sum = 0, near = 0;
    int status = 0;
    (void)token, (void)t;
    for (size_t i = 0; i < it->n_slices && !status; i++) {
        const kvd_slice *const x = &it->slice[i];
        c->near[x->request] = near_entries(c->config, x->before + x->n, !c->latents);
        if (!x->emits)
            continue;
        const size_t r = x->request, row = output_row(c->l, x);
        status = e->logits(e, i, c->to->logits + row * c->l->vocab, err) ||
                 (c->steps && compared(r, x->before + x->n) &&
                  read_kept(e, c->config, r, x->slot, c->to, err)) ||
                 (c->page && i < it->n_steps && compared(r, x->before + x->n) &&
                  read_chosen(e, c, r, i, x->before + x->n, err));
        if (c->uneven && x->before == 0 && !x->last)
            c->wrong += read_heads(e, c->config, r, x->slot, c->to);
        c->here[r] = c->want ? c->want[row] : 0;
    }
    for (size_t r = 0; c->want && r < c->l->n; r++) {
        sum += c->here[r];
        near += c->near[r];
    }
    near *= 4.0 * (double)c->config->d_head + (c->latents ? sizeof(int32_t) : 0);
    c->wrong += c->want && fabs(e->held(e) - sum * c->entry - near) > 0.5;
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            c->here[it->slice[i].request] = c->near[it->slice[i].request] = 0;
    return status;
}

static int by_cuda(const kvd_checkpoint *c, const load *l, const kvd_plan *plan, const setting *set,
                   const double *want, result *to, size_t *wrong, kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    const kvd_engine_spec spec = spec_of(set, LONGEST, 4 * LONGEST);
    const serving_order by = order_of(set);
    kvd_engine *const e = kvd_engine_open_cuda(c, plan, &spec, err);
    counted x = {.l = l,
                 .config = config,
                 .want = want,
                 .steps = notes(plan->tokens),
                 .uneven = is_uneven(plan->tokens),
                 .latents = plan->maker != NULL,
                 .to = to};
    x.entry =
        e ? e->facts.bytes_per_token + noted_bytes(plan->tokens) * (double)heads_of(config) : 0;
    if (window_of(config))
        x.entry = (4.0 * (double)config->d_head + (x.latents ? sizeof(int32_t) : 0) +
                   noted_bytes(plan->tokens)) *
                  (double)full_heads(config);
    if (selects(plan->tokens)) {
        const kvd_read_rule rule = plan->tokens->read_rule(&plan->tokens_values);
        const double token = 4.0 * (double)config->d_head;
        x.page = rule.page;
        x.entry = token * (double)full_heads(config);
        /* For these rankings, the GPU stores more bits per token than the CPU counts, so expected
         * bytes are scaled. */
        if (rule.ranking == KVD_READ_RECENT || rule.ranking == KVD_READ_CODES)
            x.entry *= (token + (rule.ranking == KVD_READ_RECENT ? 4 * rule.history : 2)) /
                       (token + plan->tokens->select_bits(plan->tokens_self, NULL, NULL, 1,
                                                          (size_t)config->d_head, 16) /
                                    8);
    }
    const int status = !e || serve(e, l, &by, count, &x, err) ? -1 : 0;
    *wrong = x.wrong;
    engine_free(e);
    return status;
}

/* Compares the tokens that each KV head keeps in results a and b: (tokens in both) / (tokens in the
 * larger set). Returns the smallest of these fractions; *mean: their mean over KV heads. */
static double overlap(const load *l, const kvd_config *c, const result *a, const result *b,
                      bool numbers, double *mean)
{
    double least = 1, sum = 0;
    size_t n = 0;
    for (size_t h = 0; h < l->n * heads_of(c); h++) {
        const bool read = !numbers || requests[h / heads_of(c)].output > 1;
        if (!read || (!a->kept[h] && !b->kept[h]))
            continue;
        size_t both = 0;
        if (numbers)
            both = a->kept[h] < b->kept[h] ? a->kept[h] : b->kept[h];
        for (size_t i = 0; i < a->kept[h] && !numbers; i++)
            for (size_t k = 0; k < b->kept[h]; k++)
                both += a->position[h * LONGEST + i] == b->position[h * LONGEST + k];
        const size_t larger = a->kept[h] > b->kept[h] ? a->kept[h] : b->kept[h];
        least = fmin(least, (double)both / (double)larger);
        sum += (double)both / (double)larger;
        n++;
    }
    *mean = n ? sum / (double)n : 1;
    return least;
}

static int plan_of(const char *text, const kvd_config *c, kvd_plan *plan, kvd_err *err)
{
    static kvd_method m; /* static, because the plan keeps pointers to its values */
    /* The networks of the eviction method locret get random weights, because no calibration file is
     * given. */
    const kvd_method_setup setup = {.config = c,
                                    .calibration = strstr(text, "locret") ? NULL : &calibration,
                                    .drawn = true,
                                    .seed = 3};
    if (kvd_method_parse(text, &m, err))
        return -1;
    *plan = m.plan;
    plan->type = KVD_BF16;
    plan->seed = 3;
    plan->prompt = LONGEST;
    return kvd_plan_open(plan, &setup, err);
}

#endif
