/* Generates tokens for a group of sequences: a forward pass over all prompts, then one per decode
 * step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/run.h"
#include "evaluate/generate/generate_path.h"

static bool is_own(const kvd_continuations *c, size_t at)
{
    return !c->forced || c->forced[at] == KVD_FREE_TOKEN;
}

/* Stores `best`, the token with the largest logit, as output token number `at`. Returns the next
 * input token: `best`, or the token that the caller prescribes. */
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

/* consecutive sequences whose texts are generated together in one batch */
typedef struct {
    const kvd_config *config;
    kvd_generate_path *path;
    const kvd_continuations *c;
    const kvd_continued *out;
    pthread_mutex_t *lock; /* held while c->ended runs */
    size_t first, n;
    uint32_t *next; /* [n] */
    size_t *at;     /* [n] output index of the token that follows `next` */
    size_t *rows;   /* [n] number of each sequence's tokens in the cache */
    /* For each sequence in the current batch:
     *
     * - offset: index of its first token in `id`
     * - start: position of its first new token
     * - whole: its final length in tokens, prompt included
     * - row: index among all sequences
     * - slot: number of its KV cache */
    size_t *offset, *start, *whole, *row, *slot;
    uint32_t *id;
    uint32_t *best; /* [n] */
    /* [path->piece][vocab_size] logits of up to path->piece sequences; NULL if neither log
     * probabilities nor ranks are wanted */
    float *logits;
    const kvd_plan *plan;
    kvd_stepwise_account *account;
    /* all tokens so far of a sequence that runs alone because it outgrows LongRoPE's short table;
     * else NULL */
    uint32_t *text;
    /* for the progress report: input tokens of all passes, input tokens of finished passes, and
     * number of sequences already reported as done */
    double all_tokens, tokens, told;
    double pass_tokens; /* input tokens of the current pass */
} group;

static size_t prompt_of(const kvd_continuations *c, size_t s)
{
    return c->offset[s + 1] - c->offset[s];
}

static size_t length_of(const kvd_continuations *c, size_t s)
{
    return c->end[s + 1] - c->end[s];
}

/* Returns the length at which sequence s switches to other LongRoPE factors, or its final length if
 * it never does. */
static size_t first_length(const kvd_config *config, const kvd_continuations *c, size_t s)
{
    const size_t n = prompt_of(c, s), all = n + length_of(c, s),
                 original = (size_t)config->rope_original_positions;
    const bool two =
        config->positions == KVD_POSITIONS_ROPE && config->rope_scaling == KVD_ROPE_LONGROPE;
    return two && n < original && original < all ? original : all;
}

bool kvd_generate_outgrows(const kvd_config *config, const kvd_continuations *c, size_t s)
{
    return prompt_of(c, s) + length_of(c, s) - 1 > first_length(config, c, s);
}

/* Stores `best`, the token with the largest logit, as an output of sequence s. Sets the next input
 * token of the sequence, and advances its output index u->at[s]. */
static int decide(group *u, size_t s, uint32_t best, const float *logits, kvd_err *err)
{
    const kvd_continuations *const c = u->c;
    const size_t row = u->first + s, at = u->at[s]++, vocab = (size_t)u->config->vocab_size;
    u->next[s] = place(c, u->out, at, best, logits, vocab);
    if (!c->ended || !is_own(c, at))
        return 0;
    (void)pthread_mutex_lock(u->lock);
    const int ended = c->ended(c->ended_ctx, row, at, u->out->token, err);
    (void)pthread_mutex_unlock(u->lock);
    for (; ended > 0 && u->at[s] < c->end[row + 1] && is_own(c, u->at[s]); u->at[s]++)
        u->out->token[u->at[s]] = KVD_FREE_TOKEN;
    if (ended == 2 && u->at[s] < c->end[row + 1]) {
        const size_t forced = u->at[s]++;
        u->next[s] = place(c, u->out, forced, best, logits, vocab);
    }
    return ended < 0 ? -1 : 0;
}

static void share_time(group *u, size_t n_sequences, double seconds)
{
    const double rows = (double)u->offset[n_sequences];
    for (size_t i = 0; u->out->cost && i < n_sequences; i++) {
        kvd_continued_cost *const cost = &u->out->cost[u->row[i]];
        const double mine = seconds * (double)(u->offset[i + 1] - u->offset[i]) / rows;
        cost->bits = u->path->bits(u->path, u->slot[i]);
        if (u->rows[u->slot[i]] > prompt_of(u->c, u->row[i])) {
            cost->steps_s += mine;
            cost->steps++;
        } else {
            cost->prompt_s += mine;
            cost->prompt_bits = cost->bits;
        }
    }
}

/* Reports progress to the caller. `part`: finished fraction of the work on all sequences of *u. */
static void advance(group *u, double part)
{
    const kvd_continuations *const c = u->c;
    const double done = fmin(part, 1) * (double)u->n;
    if (!c->advanced || done <= u->told)
        return;
    (void)pthread_mutex_lock(u->lock);
    c->advanced(c->advanced_ctx, done - u->told);
    (void)pthread_mutex_unlock(u->lock);
    u->told = done;
}

static void on_layer(void *ctx, int n_layers)
{
    group *const u = ctx;
    const double part = (double)n_layers / u->config->n_layers;
    advance(u, (u->tokens + part * u->pass_tokens) / u->all_tokens);
}

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
    if (kvd_interrupted())
        return kvd_fail_interrupted(err);
    u->pass_tokens = (double)u->offset[n_sequences];
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
    advance(u, (u->tokens += u->pass_tokens) / u->all_tokens);
    return 0;
}

static int run_prompts(group *u, kvd_err *err)
{
    const kvd_continuations *const c = u->c;
    for (size_t s = 0; s < u->n; s++) {
        const size_t at = c->offset[u->first + s], n = c->offset[u->first + s + 1] - at;
        memcpy(u->id + u->offset[s], c->id + at, n * sizeof *u->id);
        u->offset[s + 1] = u->offset[s] + n;
        u->start[s] = 0;
        u->whole[s] = first_length(u->config, c, u->first + s);
        u->row[s] = u->first + s;
        u->slot[s] = s;
        u->at[s] = c->end[u->first + s];
        u->rows[s] = n;
    }
    if (u->text)
        memcpy(u->text, u->id, u->offset[1] * sizeof *u->text);
    return pass(u, u->n, err);
}

/* Appends the newest token to u->text, the whole sequence so far. When the sequence outgrows
 * LongRoPE's short factors, clears the cache, so that the next pass recomputes it with the long
 * factors. */
static int add_to_text(group *u, kvd_err *err)
{
    const size_t rows = u->rows[0];
    u->text[rows - 1] = u->id[0];
    if (rows != first_length(u->config, u->c, u->first) + 1)
        return 0;
    u->path->end(u->path, u->account);
    memcpy(u->id, u->text, rows * sizeof *u->id);
    u->offset[1] = rows;
    u->start[0] = 0;
    return u->path->begin(u->path, u->plan, 1, err);
}

/* Runs one decode step of the group's unfinished sequences. Sets *left to their number before the
 * step. */
static int run_step(group *u, size_t *left, kvd_err *err)
{
    const kvd_continuations *const c = u->c;
    *left = 0;
    for (size_t s = 0; s < u->n; s++) {
        const size_t row = u->first + s;
        if (u->at[s] == c->end[row + 1])
            continue;
        const size_t i = (*left)++;
        u->offset[i] = i;
        u->id[i] = u->next[s];
        u->start[i] = u->rows[s]++;
        const size_t first = first_length(u->config, c, row);
        u->whole[i] = u->rows[s] <= first ? first : prompt_of(c, row) + length_of(c, row);
        u->row[i] = row;
        u->slot[i] = s;
    }
    u->offset[*left] = *left;
    if (*left == 0 || (u->text && add_to_text(u, err)))
        return *left ? -1 : 0;
    return pass(u, *left, err);
}

static int reserve(group *u, kvd_err *err)
{
    const bool alone = kvd_generate_outgrows(u->config, u->c, u->first);
    const size_t n = u->n, vocab = (size_t)u->config->vocab_size,
                 tokens = u->c->offset[u->first + n] - u->c->offset[u->first] +
                          (alone ? length_of(u->c, u->first) : 0);
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
    if (alone)
        u->text = malloc(tokens * sizeof *u->text);
    return failed || !u->next || !u->best || !u->id || (wanted && !u->logits) || (alone && !u->text)
               ? kvd_no_memory(err, "sequences that run together", tokens * sizeof *u->id)
               : 0;
}

static void release(group *u)
{
    void *const all[] = {u->at,   u->rows, u->offset, u->start, u->whole,  u->row,
                         u->slot, u->next, u->best,   u->id,    u->logits, u->text};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static int run_all(group *u, kvd_err *err)
{
    size_t left = 1;
    u->path->layer_done = on_layer;
    u->path->layer_ctx = u;
    int status =
        reserve(u, err) || u->path->begin(u->path, u->plan, u->n, err) || run_prompts(u, err) ? -1
                                                                                              : 0;
    while (!status && left)
        status = run_step(u, &left, err);
    if (!status)
        advance(u, 1);
    u->path->end(u->path, status ? NULL : u->account);
    u->path->layer_done = NULL;
    u->path->layer_ctx = NULL;
    return status;
}

static void take_back(group *u)
{
    const kvd_continuations *const c = u->c;
    for (size_t s = u->first; u->out->cost && s < u->first + u->n; s++)
        u->out->cost[s] = (kvd_continued_cost){0};
    if (!c->advanced || !(u->told > 0))
        return;
    (void)pthread_mutex_lock(u->lock);
    c->advanced(c->advanced_ctx, -u->told);
    (void)pthread_mutex_unlock(u->lock);
}

/* Generates n sequences from `first` on. If a pass fails, gets more memory, if possible, and starts
 * again. */
static int generate(kvd_generate_path *path, const kvd_config *config, const kvd_plan *plan,
                    const kvd_continuations *c, const kvd_continued *out, size_t first, size_t n,
                    pthread_mutex_t *lock, kvd_stepwise_account *account, kvd_err *err)
{
    group u = {.config = config,
               .path = path,
               .c = c,
               .out = out,
               .lock = lock,
               .first = first,
               .n = n,
               .plan = plan,
               .account = account,
               .all_tokens = (double)(c->offset[first + n] - c->offset[first] + c->end[first + n] -
                                      c->end[first])};
    const int status = run_all(&u, err);
    release(&u);
    if (!status)
        return 0;
    if (!path->grow || path->grow(path, err) <= 0)
        return kvd_in(err, "generating after prompts from %zu on", first);
    take_back(&u);
    return kvd_generate_group(path, config, plan, c, out, first, n, lock, account, err);
}

int kvd_generate_group(kvd_generate_path *path, const kvd_config *config, const kvd_plan *plan,
                       const kvd_continuations *c, const kvd_continued *out, size_t first, size_t n,
                       pthread_mutex_t *lock, kvd_stepwise_account *account, kvd_err *err)
{
    for (size_t s = first, some; s < first + n; s += some) {
        some = path->fits ? path->fits(path, c, s, first + n - s) : n;
        if (generate(path, config, plan, c, out, s, some, lock, account, err))
            return -1;
    }
    return 0;
}
