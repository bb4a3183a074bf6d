#include "evaluate/generate/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "evaluate/generate/generate_path.h"

struct kvd_generator {
    const kvd_checkpoint *checkpoint;
    const kvd_config *config;
    kvd_generator_spec spec;
    kvd_generate_path *rows; /* the path by rows; NULL until the first plan that takes it */
};

const char *kvd_generator_name(const kvd_generator_spec *s)
{
    return !s->gpu ? "CPU, f32, row by row" : s->compute == KVD_BF16 ? "GPU, bf16" : "GPU, f32";
}

const char *kvd_generator_path(const kvd_generator *g, const kvd_plan *plan,
                               char why[KVD_GENERATOR_WHY])
{
    (void)plan;
    why[0] = '\0';
#ifdef KVD_CUDA
    if (g->spec.gpu && kvd_generate_engine_runs(g->config, &g->spec, plan, why))
        return "GPU engine";
#endif
    return g->spec.gpu ? "products on the GPU, cache on the CPU" : "CPU";
}

void kvd_generator_free(kvd_generator *g)
{
    if (!g)
        return;
    if (g->rows)
        g->rows->free(g->rows);
    free(g);
}

kvd_generator *kvd_generator_new(const kvd_checkpoint *c, const kvd_generator_spec *s, kvd_err *err)
{
    kvd_generator *const g = calloc(1, sizeof *g);
    if (!g) {
        kvd_no_memory(err, "a generator", sizeof *g);
        return NULL;
    }
    *g = (kvd_generator){.checkpoint = c, .config = kvd_checkpoint_config(c), .spec = *s};
    if (g->spec.max_tokens < s->max_len)
        g->spec.max_tokens = s->max_len;
    /* On a GPU the first plan decides which path gets the memory. */
    if (kvd_batch_limits(c, g->spec.max_tokens, s->max_len, err) ||
        (!s->gpu && !(g->rows = kvd_generate_rows(c, &g->spec, err)))) {
        kvd_generator_free(g);
        return NULL;
    }
    return g;
}

/*
 * ---- what a row of logits says ------------------------------------------------------------------
 */

static bool is_own(const kvd_continuations *c, size_t at)
{
    return !c->forced || c->forced[at] == KVD_FREE_TOKEN;
}

/*
 * Writes the results of place `at`, whose logits are x, the largest that of `best`; x may be NULL
 * if no result needs it. Returns the token that is the next input.
 */
static uint32_t place(const kvd_continuations *c, const kvd_continued *out, size_t at,
                      uint32_t best, const float *x, size_t vocab)
{
    const uint32_t next = is_own(c, at) ? best : c->forced[at];
    if (out->token)
        out->token[at] = best;
    if (out->log_p) {
        double sum = exp((double)x[0] - (double)x[best]);
        for (size_t j = 1; j < vocab; j++)
            sum += exp((double)x[j] - (double)x[best]);
        out->log_p[at] = (double)x[next] - (double)x[best] - log(sum);
    }
    if (out->rank) {
        uint32_t above = 0;
        for (size_t j = 0; j < vocab; j++)
            above += x[j] > x[next];
        out->rank[at] = above + 1;
    }
    return next;
}

/* ---- sequences side by side ---- */

/* Sequences first .. first+n-1 of c, which run together. */
typedef struct {
    const kvd_config *config;
    kvd_generate_path *path;
    const kvd_continuations *c;
    const kvd_continued *out;
    size_t first, n;
    uint32_t *next; /* [n] next input token of each sequence */
    /*
     * [n] index of the place whose token follows `next`; the end of the sequence if there is none
     */
    size_t *at;
    size_t *rows; /* [n] rows of each sequence that the cache holds */
    /* The batch: the sequence of each of its sequences among all, and the slot. */
    size_t *offset, *start, *whole, *row, *slot; /* [n + 1] */
    uint32_t *id;                                /* [tokens of the prompts] */
    uint32_t *best;                              /* [n] */
    float *logits; /* [path->piece][vocab_size]; NULL: no result needs logits */
} group;

/*
 * Decides the token of the place that sequence s of the group has come to, and moves on to the next
 * place; if the token ends an answer, to the place after the answer. `best` has the largest of the
 * logits, which are NULL if no result needs them.
 */
static int decide(group *u, size_t s, uint32_t best, const float *logits, kvd_err *err)
{
    const kvd_continuations *const c = u->c;
    const size_t row = u->first + s, at = u->at[s]++, vocab = (size_t)u->config->vocab_size;
    u->next[s] = place(c, u->out, at, best, logits, vocab);
    if (!c->ended || !is_own(c, at))
        return 0;
    const int ended = c->ended(c->ended_ctx, row, at, u->out->token, err);
    for (; ended > 0 && u->at[s] < c->end[row + 1] && is_own(c, u->at[s]); u->at[s]++)
        u->out->token[u->at[s]] = KVD_FREE_TOKEN;
    if (ended == 2 && u->at[s] < c->end[row + 1]) {
        const size_t forced = u->at[s]++;
        u->next[s] = place(c, u->out, forced, best, logits, vocab);
    }
    return ended < 0 ? -1 : 0;
}

/* Adds the seconds of a pass to the sequences of the batch by their rows. */
static void share_time(group *u, size_t n_sequences, double seconds)
{
    const double rows = (double)u->offset[n_sequences];
    for (size_t i = 0; u->out->cost && i < n_sequences; i++) {
        kvd_continued_cost *const cost = &u->out->cost[u->row[i]];
        const double mine = seconds * (double)(u->offset[i + 1] - u->offset[i]) / rows;
        cost->bits = u->path->bits(u->path, u->slot[i]);
        if (u->start[i]) {
            cost->steps_s += mine;
            cost->steps++;
        } else {
            cost->prompt_s += mine;
            cost->prompt_bits = cost->bits;
        }
    }
}

/* Runs the model on the rows of the batch, and decides the token that follows each sequence. */
static int pass(group *u, size_t n_sequences, kvd_err *err)
{
    const size_t vocab = (size_t)u->config->vocab_size, piece = u->path->piece;
    const kvd_batch b = {.n_sequences = n_sequences,
                         .offset = u->offset,
                         .first_sequence = u->first,
                         .id = u->id,
                         .start = u->start,
                         .whole = u->whole};
    const double started = kvd_clock_s();
    if (u->path->run(u->path, &b, u->slot, err))
        return -1;
    for (size_t from = 0; from < n_sequences; from += piece) {
        const size_t n = n_sequences - from < piece ? n_sequences - from : piece;
        if (u->path->read(u->path, from, n, u->best + from, u->logits, err))
            return -1;
        for (size_t s = from; s < from + n; s++)
            if (decide(u, u->slot[s], u->best[s], u->logits ? u->logits + (s - from) * vocab : NULL,
                       err))
                return -1;
    }
    share_time(u, n_sequences, kvd_clock_s() - started);
    return 0;
}

static size_t length_of(const kvd_continuations *c, size_t s)
{
    return c->end[s + 1] - c->end[s];
}

static int run_prompts(group *u, kvd_err *err)
{
    const kvd_continuations *const c = u->c;
    for (size_t s = 0; s < u->n; s++) {
        const size_t at = c->offset[u->first + s], n = c->offset[u->first + s + 1] - at;
        memcpy(u->id + u->offset[s], c->id + at, n * sizeof *u->id);
        u->offset[s + 1] = u->offset[s] + n;
        u->start[s] = 0;
        u->whole[s] = n + length_of(c, u->first + s);
        u->row[s] = u->first + s;
        u->slot[s] = s;
        u->at[s] = c->end[u->first + s];
        u->rows[s] = n;
    }
    return pass(u, u->n, err);
}

/*
 * Feeds the next token to all sequences that have a place after it. Sets *left to the number of
 * these sequences.
 */
static int run_step(group *u, size_t *left, kvd_err *err)
{
    const kvd_continuations *const c = u->c;
    *left = 0;
    for (size_t s = 0; s < u->n; s++) {
        const size_t row = u->first + s, n = c->offset[row + 1] - c->offset[row];
        if (u->at[s] == c->end[row + 1])
            continue;
        const size_t i = (*left)++;
        u->offset[i] = i;
        u->id[i] = u->next[s];
        u->start[i] = u->rows[s]++;
        u->whole[i] = n + length_of(c, row);
        u->row[i] = row;
        u->slot[i] = s;
    }
    u->offset[*left] = *left;
    return *left ? pass(u, *left, err) : 0;
}

static int reserve(group *u, kvd_err *err)
{
    const size_t n = u->n, vocab = (size_t)u->config->vocab_size,
                 tokens = u->c->offset[u->first + n] - u->c->offset[u->first];
    size_t **const lists[] = {&u->at,    &u->rows, &u->offset, &u->start,
                              &u->whole, &u->row,  &u->slot};
    const bool wanted = u->out->log_p || u->out->rank;
    bool failed = false;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        failed = !(*lists[i] = calloc(n + 1, sizeof **lists[i])) || failed;
    u->next = calloc(n, sizeof *u->next);
    u->best = calloc(n, sizeof *u->best);
    u->id = malloc(tokens * sizeof *u->id);
    if (wanted)
        u->logits = malloc(u->path->piece * vocab * sizeof *u->logits);
    return failed || !u->next || !u->best || !u->id || (wanted && !u->logits)
               ? kvd_no_memory(err, "sequences that run together", tokens * sizeof *u->id)
               : 0;
}

static void release(group *u)
{
    void *const all[] = {u->at,   u->rows, u->offset, u->start, u->whole, u->row,
                         u->slot, u->next, u->best,   u->id,    u->logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static int run_group(group *u, const kvd_plan *plan, kvd_stepwise_account *account, kvd_err *err)
{
    size_t left = 1;
    int status =
        reserve(u, err) || u->path->begin(u->path, plan, u->n, err) || run_prompts(u, err) ? -1 : 0;
    while (!status && left)
        status = run_step(u, &left, err);
    u->path->end(u->path, status ? NULL : account);
    release(u);
    return status;
}

static int check(const kvd_generator *g, const kvd_continuations *c, kvd_err *err)
{
    for (size_t s = 0; s < c->n_sequences; s++) {
        const size_t n = c->offset[s + 1] - c->offset[s];
        if (n == 0 || length_of(c, s) == 0)
            return kvd_fail(err, "sequence %zu: a prompt of %zu tokens and %zu after it", s, n,
                            length_of(c, s));
        if (n + length_of(c, s) > g->spec.max_len)
            return kvd_fail(err,
                            "sequence %zu: a prompt of %zu tokens and %zu after it, room for %zu",
                            s, n, length_of(c, s), g->spec.max_len);
        for (size_t i = c->end[s]; c->forced && i < c->end[s + 1]; i++)
            if (!is_own(c, i) && c->forced[i] >= (uint32_t)g->config->vocab_size)
                return kvd_fail(err,
                                "sequence %zu: token id %u is not below the vocabulary size %d", s,
                                (unsigned)c->forced[i], g->config->vocab_size);
    }
    return 0;
}

/*
 * Returns the path of the plan, or NULL with *err. The engine and the path by rows each have the
 * weights on the GPU, so one is freed before the other is opened. The caller frees an engine's
 * path.
 */
static kvd_generate_path *path_of(kvd_generator *g, const kvd_plan *plan, size_t n_sequences,
                                  bool scores, kvd_err *err)
{
    (void)plan, (void)n_sequences, (void)scores;
#ifdef KVD_CUDA
    char why[KVD_GENERATOR_WHY];
    if (g->spec.gpu && n_sequences && kvd_generate_engine_runs(g->config, &g->spec, plan, why)) {
        if (g->rows)
            g->rows->free(g->rows);
        g->rows = NULL;
        return kvd_generate_engine(g->checkpoint, &g->spec, plan, n_sequences, scores, err);
    }
#endif
    if (!g->rows)
        g->rows = kvd_generate_rows(g->checkpoint, &g->spec, err);
    return g->rows;
}

static int run_groups(const kvd_generator *g, kvd_generate_path *path, const kvd_plan *plan,
                      const kvd_continuations *c, const kvd_continued *out,
                      kvd_stepwise_account *account,
                      int (*step)(void *ctx, size_t n_sequences, kvd_err *err), void *ctx,
                      kvd_err *err)
{
    for (size_t first = 0, n; first < c->n_sequences; first += n) {
        n = path->together(path, c, first);
        group u = {.config = g->config, .path = path, .c = c, .out = out, .first = first, .n = n};
        if (run_group(&u, plan, account, err))
            return kvd_in(err, "generating after prompts from %zu on", first);
        if (step && step(ctx, n, err))
            return -1;
    }
    return 0;
}

int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                 const kvd_continued *out, kvd_stepwise_account *account,
                 int (*step)(void *ctx, size_t n_sequences, kvd_err *err), void *ctx, kvd_err *err)
{
    if (check(g, c, err))
        return -1;
    for (size_t s = 0; out->cost && s < c->n_sequences; s++)
        out->cost[s] = (kvd_continued_cost){0};
    kvd_generate_path *const path = path_of(g, plan, c->n_sequences, out->log_p || out->rank, err);
    const int status = path ? run_groups(g, path, plan, c, out, account, step, ctx, err) : -1;
    if (path && path != g->rows)
        path->free(path);
    return status;
}
