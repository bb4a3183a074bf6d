#include "serving/jct/jct_grid.h"

#include <stdlib.h>

#include "common/run.h"

enum { LEAST = 16, PAGE = 64, ROWS = 8 };

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t after(size_t x, size_t most)
{
    return 8 * x > most ? most : 4 * x;
}

static bool fits(const kvd_batching_limits *l, size_t batch, size_t tokens)
{
    const size_t pages = (tokens + PAGE - 1) / PAGE;
    return batch * pages <= l->pages && batch * smaller(pages, l->window_share) <= l->window_pages;
}

static void add_pieces(size_t longest, size_t max_len, const kvd_batching_limits *l, bool whole,
                       kvd_jct_point *point, size_t *n)
{
    const size_t most = l->chunk ? smaller(l->chunk, longest) : longest;
    for (size_t piece = smaller(LEAST, most);; piece = after(piece, most)) {
        const size_t before[] = {0, max_len / 4, max_len / 2};
        for (size_t i = 0; i < (whole ? 1 : 3); i++)
            if (before[i] + piece + 1 <= max_len && (i == 0 || before[i] > before[i - 1]) &&
                fits(l, 1, before[i] + piece + 1))
                point[(*n)++] = (kvd_jct_point){piece, 1, before[i]};
        if (piece == most)
            return;
    }
}

static void add_prompts(size_t longest, const kvd_batching_limits *l, kvd_jct_point *point,
                        size_t *n)
{
    size_t together = smaller((l->chunk ? l->chunk : l->max_tokens) / longest, l->max_batch);
    while (together > 1 && !fits(l, together, longest + 1))
        together--;
    if (together > 1)
        point[(*n)++] = (kvd_jct_point){longest, together, 0};
}

/* Appends to `point` a decode step whose `batch` requests fill the cache. Appends nothing if the
 * preceding step has at least 80 % as many cached tokens. */
static void add_fullest(const kvd_batching_limits *l, size_t batch, size_t samples,
                        kvd_jct_point *point, size_t *n)
{
    /* number of pages that each request gets in layers with a sliding window */
    const size_t near = l->window_pages / batch;
    const size_t whole =
        (near < l->window_share ? smaller(near, l->pages / batch) : l->pages / batch) * PAGE;
    const size_t last =
        *n && point[*n - 1].batch == batch && !point[*n - 1].piece ? point[*n - 1].tokens : 0;
    if (whole > samples + 2 && whole - samples - 2 > last + last / 4)
        point[(*n)++] = (kvd_jct_point){0, batch, whole - samples - 2};
}

/* Returns the batch size to measure after `batch`, at most `most`. Batch sizes are powers of two
 * and, from ROWS on, also powers of two plus 1 (1, 2, 4, 8, 9, 16, 17 ...). */
static size_t next_batch(size_t batch, size_t most)
{
    const bool power = !(batch & (batch - 1));
    return smaller(batch < ROWS || !power ? 2 * (power ? batch : batch - 1) : batch + 1, most);
}

/* Returns how many tokens a request may have in the cache before one warm-up step and `samples`
 * measured decode steps. max_len: limit of tokens per request. */
static size_t longest_before(size_t max_len, size_t samples)
{
    return max_len > samples + 2 ? max_len - samples - 2 : 1;
}

static void add_steps(size_t max_len, const kvd_batching_limits *l, size_t samples,
                      kvd_jct_point *point, size_t *n)
{
    const size_t most = longest_before(max_len, samples);
    for (size_t batch = 1;; batch = next_batch(batch, l->max_batch)) {
        for (size_t tokens = smaller(LEAST, most);; tokens = after(tokens, most)) {
            if (!fits(l, batch, tokens + samples + 2)) {
                add_fullest(l, batch, samples, point, n);
                break;
            }
            point[(*n)++] = (kvd_jct_point){0, batch, tokens};
            if (tokens == most)
                break;
        }
        if (batch == l->max_batch)
            return;
    }
}

int kvd_jct_grid(size_t longest_input, size_t max_len, const kvd_batching_limits *limits,
                 bool whole, size_t samples, kvd_jct_point **point, size_t *n, kvd_err *err)
{
    /* largest number of iterations to measure: 128 batch sizes with 64 lengths each */
    enum { MOST = 64 * 128 };
    *n = 0;
    if (!(*point = calloc(MOST, sizeof **point)))
        return kvd_no_memory(err, "a grid", MOST * sizeof **point);
    add_pieces(longest_input, max_len, limits, whole, *point, n);
    add_prompts(longest_input, limits, *point, n);
    add_steps(max_len, limits, samples, *point, n);
    return 0;
}

int kvd_jct_longest_steps(size_t max_len, const size_t *batch, size_t n_batches, size_t samples,
                          kvd_jct_point **point, kvd_err *err)
{
    if (!(*point = calloc(n_batches, sizeof **point)))
        return kvd_no_memory(err, "steps", n_batches * sizeof **point);
    for (size_t i = 0; i < n_batches; i++)
        (*point)[i] = (kvd_jct_point){0, batch[i], longest_before(max_len, samples)};
    return 0;
}

typedef struct {
    const kvd_jct_loop *loop;
    kvd_slice *slice; /* slices of the iteration, [max_batch] */
    uint32_t *id, *next;
    /* number of input plus output tokens of a request, from which methods compute how many tokens
     * to keep */
    size_t whole;
    /* true if the engine can run a step after any number of tokens without having processed them */
    bool anywhere;
} bench;

static int iterate(bench *b, const kvd_iteration *it, uint32_t *next, double *seconds, kvd_err *err)
{
    kvd_engine *const e = b->loop->engine;
    kvd_phase_times times;
    const double begin = kvd_jct_now();
    if (kvd_interrupted())
        return kvd_fail_interrupted(err);
    if (e->step(e, it, b->id, next, &times, err))
        return -1;
    *seconds = kvd_jct_now() - begin;
    return 0;
}

/* Processes n prompt tokens after `before` cached tokens, in chunks. If `emits`, also computes an
 * output token. If `last`, the request then ends. *seconds: time of the last chunk. */
static int prompt(bench *b, uint32_t slot, size_t before, size_t n, bool emits, bool last,
                  double *seconds, kvd_err *err)
{
    const size_t chunk = b->loop->limits.chunk ? b->loop->limits.chunk : n;
    for (size_t at = 0; at < n; at += chunk) {
        const size_t some = smaller(chunk, n - at);
        const bool end = at + some == n;
        for (size_t i = 0; i < some; i++)
            b->id[i] = kvd_jct_id(b->loop->seed, slot, before + at + i, b->loop->vocab);
        b->slice[slot] = (kvd_slice){.request = slot,
                                     .slot = slot,
                                     .before = (uint32_t)(before + at),
                                     .n = (uint32_t)some,
                                     .whole = (uint32_t)b->whole,
                                     .emits = emits && end,
                                     .last = last && end};
        const kvd_iteration it = {.n_slices = 1, .slice = &b->slice[slot], .n_tokens = some};
        uint32_t token = 0;
        if (iterate(b, &it, &token, seconds, err))
            return -1;
        if (emits && end)
            b->next[slot] = token;
    }
    return 0;
}

static int prompts(bench *b, size_t n, size_t tokens, double *seconds, kvd_err *err)
{
    for (uint32_t s = 0; s < n; s++) {
        for (size_t i = 0; i < tokens; i++)
            b->id[s * tokens + i] = kvd_jct_id(b->loop->seed, s, i, b->loop->vocab);
        b->slice[s] = (kvd_slice){.request = s,
                                  .slot = s,
                                  .n = (uint32_t)tokens,
                                  .whole = (uint32_t)b->whole,
                                  .emits = 1,
                                  .last = 1};
    }
    const kvd_iteration it = {.n_slices = n, .slice = b->slice, .n_tokens = n * tokens};
    return iterate(b, &it, b->next, seconds, err);
}

static int steps(bench *b, size_t n, size_t before, bool last, double *seconds, kvd_err *err)
{
    for (uint32_t s = 0; s < n; s++) {
        b->id[s] = b->next[s];
        b->slice[s] = (kvd_slice){.request = s,
                                  .slot = s,
                                  .before = (uint32_t)before,
                                  .n = 1,
                                  .whole = (uint32_t)b->whole,
                                  .emits = 1,
                                  .last = last};
    }
    const kvd_iteration it = {.n_slices = n, .n_steps = n, .slice = b->slice, .n_tokens = n};
    return iterate(b, &it, b->next, seconds, err);
}

/* Keeps the GPU busy with decode steps for `seconds`, so that its clock rate does not change
 * between measurements. */
static int steps_between(bench *b, const kvd_jct_point *p, double seconds, kvd_err *err)
{
    const size_t n = smaller(LEAST, p->piece), most = p->tokens + p->piece - n;
    double one;
    if (!most)
        return 0;
    if (prompt(b, 0, 0, n, true, false, &one, err))
        return -1;
    const double begin = kvd_jct_now();
    bool last = false;
    for (size_t i = 1; !last; i++) {
        last = i == most || kvd_jct_now() - begin >= seconds;
        if (steps(b, 1, n + i - 1, last, &one, err))
            return -1;
    }
    return 0;
}

static int run_piece(bench *b, const kvd_jct_point *p, size_t samples, double *second, kvd_err *err)
{
    const double most = 0.1;
    double seconds = 0;
    /* Run 0 is a warm-up, and its time is not recorded. */
    for (size_t i = 0; i <= samples; i++) {
        if ((i && steps_between(b, p, seconds < most ? seconds : most, err)) ||
            (p->tokens && !b->anywhere &&
             prompt(b, 0, 0, p->tokens, false, false, &seconds, err)) ||
            (p->batch > 1 ? prompts(b, p->batch, p->piece, &seconds, err)
                          : prompt(b, 0, p->tokens, p->piece, true, true, &seconds, err)))
            return -1;
        if (i)
            second[i - 1] = seconds;
    }
    return 0;
}

static int run_steps(bench *b, const kvd_jct_point *p, size_t samples, double *second, kvd_err *err)
{
    double seconds;
    for (uint32_t s = 0; s < p->batch; s++)
        if (b->anywhere)
            b->next[s] = kvd_jct_id(b->loop->seed, s, p->tokens, b->loop->vocab);
        else if (prompt(b, s, 0, p->tokens, true, false, &seconds, err))
            return -1;
    for (size_t i = 0; i <= samples; i++) {
        if (steps(b, p->batch, p->tokens + i, i == samples, &seconds, err))
            return -1;
        if (i)
            second[i - 1] = seconds;
    }
    return 0;
}

int kvd_jct_grid_run(const kvd_jct_loop *l, const kvd_jct_point *p, size_t samples, double *second,
                     double *context, kvd_err *err)
{
    const size_t ids = p->piece * p->batch + p->tokens + p->batch, n = l->limits.max_batch;
    bench b = {.loop = l,
               .anywhere = l->engine->facts.anywhere,
               .whole = p->piece ? p->tokens + p->piece + 1 : p->tokens + samples + 2,
               .slice = calloc(n, sizeof *b.slice),
               .id = calloc(ids, sizeof *b.id),
               .next = calloc(n, sizeof *b.next)};
    int status = b.slice && b.id && b.next
                     ? 0
                     : kvd_no_memory(err, "an iteration", ids * sizeof *b.id + n * sizeof *b.slice);
    if (!status)
        status = p->piece ? run_piece(&b, p, samples, second, err)
                          : run_steps(&b, p, samples, second, err);
    *context = p->piece ? 0 : (double)p->tokens + (double)(samples + 1) / 2;
    free(b.slice);
    free(b.id);
    free(b.next);
    return status;
}
