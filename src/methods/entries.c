/* Appends, quantises and drops cached tokens of a KV head; prunes or projects their dimensions. */
#include "methods/head.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/quantise.h"
#include "model/pass/blocks.h"

static size_t width_of(const kvd_head *h, int side, size_t i)
{
    return h->level[i] == KVD_LEVEL_LOW ? h->low[side] : h->width[side];
}

static void set_bits(kvd_head *h, int side, size_t i, double payload, double extra)
{
    h->held_payload += payload - h->payload[side][i];
    h->held_side += extra - h->side[side][i];
    h->payload[side][i] = payload;
    h->side[side][i] = extra;
}

static size_t stored_of(const kvd_head *h, int side, size_t i)
{
    return h->basis[side] && h->level[i] == KVD_LEVEL_LOW ? h->n_basis_low[side]
           : h->basis[side]                               ? h->n_basis[side]
           : side == KVD_KEYS && i < h->pruned            ? h->n_keep
                                                          : width_of(h, side, i);
}

static void round_row(const kvd_head *h, float *x, size_t n)
{
    char rounded[4096];
    for (size_t at = 0; at < n; at += 1024) {
        const size_t some = n - at < 1024 ? n - at : 1024;
        kvd_from_f32(h->p->type, x + at, rounded, some);
        kvd_to_f32(h->p->type, rounded, x + at, some);
    }
}

/* Projects x [d] on the first `kept` columns of the basis. */
static void project_row(const kvd_head *h, int side, size_t kept, float *x)
{
    const float *const a = h->basis[side];
    const size_t m = h->n_basis[side];
    float *const c = h->basis[side] + h->d * m;
    memset(c, 0, m * sizeof *c);
    for (size_t i = 0; i < h->d; i++)
        for (size_t j = 0; j < m; j++)
            c[j] += x[i] * a[i * m + j];
    round_row(h, c, kept);
    for (size_t i = 0; i < h->d; i++) {
        x[i] = 0;
        for (size_t j = 0; j < kept; j++)
            x[i] += c[j] * a[i * m + j];
    }
}

/* Stores K or V of token i without quantisation. Removed dimensions become 0. */
static void store_plain(kvd_head *h, int side, size_t i)
{
    const size_t w = h->width[side], kept = width_of(h, side, i);
    float *const x = h->x[side] + i * w;
    if (h->basis[side])
        project_row(h, side, stored_of(h, side, i), x);
    else
        round_row(h, x, kept);
    memset(x + kept, 0, (w - kept) * sizeof *x);
    const bool shared = h->prompts && h->position[i] < h->n0;
    const double share =
        shared ? kvd_prompts_share(h->prompts, (kvd_side)side, h->in->layer, h->sequence)
               : 1 / (double)h->heads;
    /* Models that cache one latent vector per token store values as part of the keys. */
    if (side == KVD_VALUES && h->in->config->latent)
        return;
    set_bits(h, side, i,
             8.0 * share * (double)(stored_of(h, side, i) * kvd_dtype_bytes(h->p->type)), 0);
}

/* Applies RoPE to the keys of cached tokens `from` .. `to` - 1. Writes these keys to h->k_read. */
static void read_keys(kvd_head *h, size_t from, size_t to)
{
    if (!h->before_rope)
        return;
    float *const k = h->k_read + from * h->read;
    kvd_head_project(to - from, h->width[KVD_KEYS], h->read,
                     h->x[KVD_KEYS] + from * h->width[KVD_KEYS], h->width[KVD_KEYS],
                     h->dims ? h->dims->b_k : NULL, k);
    if (h->in->config->positions == KVD_POSITIONS_ROPE)
        kvd_rope_apply(h->in->config, h->cosine, h->sine, h->position + from, to - from, 1, k);
}

void kvd_head_append(kvd_head *h, size_t t)
{
    const size_t i = h->m++;
    h->position[i] = (uint32_t)t;
    h->level[i] = KVD_LEVEL_HIGH;
    h->mass[i] = h->seen[i] = 0;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        const size_t w = h->width[side];
        memcpy(h->x[side] + i * w, h->cut[side] + (t - h->base) * w, w * sizeof(float));
        h->payload[side][i] = h->side[side][i] = 0;
        store_plain(h, side, i);
    }
    read_keys(h, i, i + 1);
}

/* Copies the unpruned channels of x [n][d] to y [n][n_keep] or, if `back`, from y to x. */
static void gather_channels(const kvd_head *h, size_t n, float *x, float *y, bool back)
{
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0, at = i * h->n_keep; c < h->d; c++)
            if (h->keep[c]) {
                if (back)
                    x[i * h->d + c] = y[at++];
                else
                    y[at++] = x[i * h->d + c];
            }
}

/* Copies the rows of cached tokens `from` .. `to` - 1 to `x`. `rows` has a row of `wide` elements
 * for each position of the sequence. */
static void gather_rows(const kvd_head *h, const float *rows, size_t wide, size_t from, size_t to,
                        float *x)
{
    for (size_t i = from; i < to; i++) {
        float *const row = x + (i - from) * wide;
        memcpy(row, rows + h->position[i] * wide, wide * sizeof *row);
        round_row(h, row, wide);
    }
}

/* Copies K or V of cached tokens `from` .. `to` - 1 to `x`. Returns false, without copying, if h->x
 * can be read directly. */
static bool gather(const kvd_head *h, int side, size_t from, size_t to, float *x)
{
    if (h->p->bits->all_heads)
        gather_rows(h, h->all_heads[side], (size_t)h->in->config->n_kv_heads * h->d, from, to, x);
    else if (side == KVD_KEYS && from < h->pruned)
        gather_channels(h, to - from, h->x[side] + from * h->d, x, false);
    else
        return false;
    return true;
}

static void scatter(kvd_head *h, int side, size_t from, size_t to, float *decoded)
{
    float *const x = h->x[side] + from * h->width[side];
    const size_t n = to - from, wide = (size_t)h->in->config->n_kv_heads * h->d;
    if (h->p->bits->all_heads)
        kvd_head_project(n, wide, h->d, decoded + (size_t)h->g * h->d, wide, NULL, x);
    else if (side == KVD_KEYS && from < h->pruned)
        gather_channels(h, n, x, decoded, true);
    else
        memcpy(x, decoded, n * h->width[side] * sizeof *x);
}

static int code_block(const kvd_head *h, const kvd_bits_block *b, float *decoded,
                      kvd_bits_count *count, kvd_err *err)
{
    const size_t d_model = (size_t)h->in->config->d_model;
    for (size_t i = 0; b->input && i < b->n * d_model; i++)
        if (!isfinite(b->input[i]))
            return kvd_fail(err,
                            "'%s' codes finite numbers: dimension %zu of the input of layer %d at "
                            "position %u is %g in a cache of type %s",
                            h->p->bits->info.name, i % d_model, b->layer,
                            (unsigned)b->position[i / d_model], (double)b->input[i],
                            kvd_dtype_name(h->p->type));
    for (size_t i = 0; i < b->n * b->d; i++)
        if (!isfinite(b->x[i]))
            return kvd_fail(err,
                            "'%s' codes finite numbers: dimension %zu of the %s at position %u is "
                            "%g in a cache of type %s",
                            h->p->bits->info.name, i % b->d, b->side == KVD_KEYS ? "key" : "value",
                            (unsigned)b->position[i / b->d], (double)b->x[i],
                            kvd_dtype_name(h->p->type));
    return h->p->bits->code(h->p->bits_self, b, decoded, count, err);
}

static int code_level(kvd_head *h, int side, size_t from, size_t to, uint8_t level, bool prompt,
                      kvd_err *err)
{
    const size_t w = h->width[side], kept = level == KVD_LEVEL_LOW ? h->low[side] : w,
                 room = to - from;
    size_t n = 0;
    kvd_pool pool = {0};
    float *const x = kvd_pool_new(&pool, room * kept * sizeof *x);
    float *const decoded = kvd_pool_new(&pool, room * kept * sizeof *decoded);
    size_t *const entry = kvd_pool_new(&pool, room * sizeof *entry);
    double *const mass = kvd_pool_new(&pool, room * sizeof *mass);
    double *const seen = kvd_pool_new(&pool, room * sizeof *seen);
    uint32_t *const position = kvd_pool_new(&pool, room * sizeof *position);
    uint8_t *const levels = kvd_pool_new(&pool, room);
    int status = kvd_pool_check(&pool, "a block of one level", err);
    for (size_t i = from; !status && i < to; i++)
        if (h->level[i] == level) {
            memcpy(x + n * kept, h->x[side] + i * w, kept * sizeof *x);
            position[n] = h->position[i];
            mass[n] = h->mass[i];
            seen[n] = h->seen[i];
            levels[n] = level;
            entry[n++] = i;
        }
    const kvd_bits_block block = {.side = (kvd_side)side,
                                  .layer = h->in->layer,
                                  .kv_head = h->g,
                                  .n = n,
                                  .d = kept,
                                  .x = x,
                                  .level = levels,
                                  .position = position,
                                  .mass = mass,
                                  .seen = seen,
                                  .balance = side == KVD_KEYS && h->balanced ? h->balance : NULL,
                                  .prompt = prompt};
    kvd_bits_count count = {0, 0};
    if (!status && n)
        status = code_block(h, &block, decoded, &count, err);
    for (size_t k = 0; !status && k < n; k++) {
        memcpy(h->x[side] + entry[k] * w, decoded + k * kept, kept * sizeof *x);
        set_bits(h, side, entry[k], count.payload / (double)n, count.side / (double)n);
        h->account->coded += position[k] >= h->exact;
    }
    kvd_pool_free(&pool);
    return status;
}

/* Returns true if cached tokens `from` .. `to` - 1 have different numbers of bits. */
static bool has_two_levels(const kvd_head *h, size_t from, size_t to)
{
    bool there[KVD_N_LEVELS] = {false};
    for (size_t i = from; i < to; i++)
        there[h->level[i]] = true;
    return h->p->bits->two_levels && there[KVD_LEVEL_LOW] && there[KVD_LEVEL_HIGH];
}

/* Quantises K or V of cached tokens `from` .. `to` - 1. Keys must be pruned (some channels removed)
 * in all of these tokens or in none. */
static int code(kvd_head *h, int side, size_t from, size_t to, bool prompt, kvd_err *err)
{
    const bool all = h->p->bits->all_heads, pruned = side == KVD_KEYS && from < h->pruned;
    const size_t sharing = all ? (size_t)h->in->config->n_kv_heads : h->heads;
    /* Quantises high-precision and low-precision tokens separately. */
    if (h->low[side] < h->width[side] ||
        (!pruned && !all && sharing == 1 && has_two_levels(h, from, to))) {
        if (code_level(h, side, from, to, KVD_LEVEL_HIGH, prompt, err) ||
            code_level(h, side, from, to, KVD_LEVEL_LOW, prompt, err))
            return -1;
        if (side == KVD_KEYS)
            read_keys(h, from, to);
        return 0;
    }
    const size_t n = to - from, w = all ? sharing * h->d : pruned ? h->n_keep : h->width[side];
    const size_t d_model = (size_t)h->in->config->d_model, inputs = h->input ? n * d_model : 0,
                 numbers = 2 * n * w + inputs;
    float *const decoded = malloc(numbers * sizeof *decoded);
    if (!decoded)
        return kvd_no_memory(err, "a decoded block", numbers * sizeof *decoded);
    float *const gathered = decoded + n * w;
    const bool other = gather(h, side, from, to, gathered);
    if (inputs)
        gather_rows(h, h->input, d_model, from, to, gathered + n * w);
    const kvd_bits_block block = {.side = (kvd_side)side,
                                  .layer = h->in->layer,
                                  .kv_head = all ? 0 : h->g,
                                  .n = n,
                                  .d = w,
                                  .x = other ? gathered : h->x[side] + from * h->width[side],
                                  .input = inputs ? gathered + n * w : NULL,
                                  .level = h->level + from,
                                  .position = h->position + from,
                                  .mass = h->mass + from,
                                  .seen = h->seen + from,
                                  .balance = side == KVD_KEYS && h->balanced ? h->balance : NULL,
                                  .state = h->stream[side],
                                  .prompt = prompt};
    kvd_bits_count count = {0, 0};
    if (code_block(h, &block, decoded, &count, err)) {
        free(decoded);
        return -1;
    }
    scatter(h, side, from, to, decoded);
    free(decoded);
    if (side == KVD_KEYS)
        read_keys(h, from, to);
    const double parts = (double)(n * sharing);
    for (size_t i = from; i < to; i++) {
        set_bits(h, side, i, count.payload / parts, count.side / parts);
        h->account->coded += h->position[i] >= h->exact;
    }
    return 0;
}

int kvd_head_code_ready(kvd_head *h, bool prompt, kvd_err *err)
{
    for (int side = 0; h->p->bits && side < KVD_N_SIDES; side++) {
        size_t window = 0, block = 1;
        if (h->p->bits->window)
            h->p->bits->window(&h->p->bits_values, (kvd_side)side, &window, &block);
        const size_t end = h->m > window ? (h->m - window) / block * block : 0;
        while (h->coded[side] < end) {
            const size_t edge =
                side == KVD_KEYS && h->coded[side] < h->pruned && h->pruned < end ? h->pruned : end;
            const size_t left = edge - h->coded[side], n = prompt || left < block ? left : block;
            if (code(h, side, h->coded[side], h->coded[side] + n, prompt, err))
                return -1;
            h->coded[side] += n;
        }
    }
    return 0;
}

static void move_entry(kvd_head *h, size_t to, size_t from)
{
    if (to == from)
        return;
    h->position[to] = h->position[from];
    h->level[to] = h->level[from];
    h->mass[to] = h->mass[from];
    h->seen[to] = h->seen[from];
    for (int side = 0; side < KVD_N_SIDES; side++) {
        const size_t w = h->width[side];
        memcpy(h->x[side] + to * w, h->x[side] + from * w, w * sizeof(float));
        h->payload[side][to] = h->payload[side][from];
        h->side[side][to] = h->side[side][from];
    }
    if (h->before_rope)
        memcpy(h->k_read + to * h->read, h->k_read + from * h->read, h->read * sizeof(float));
}

void kvd_head_leave(kvd_head *h, size_t t)
{
    const size_t from = kvd_head_seen_from(h, t);
    size_t n = 0;
    while (n < h->m && h->position[n] < from)
        n++;
    n = n / h->leaving * h->leaving;
    if (!n)
        return;
    for (size_t i = 0; i < n; i++)
        for (int side = 0; side < KVD_N_SIDES; side++)
            set_bits(h, side, i, 0, 0);
    for (size_t i = n; i < h->m; i++)
        move_entry(h, i - n, i);
    for (int side = 0; side < KVD_N_SIDES; side++)
        h->coded[side] -= h->coded[side] < n ? h->coded[side] : n;
    h->pruned -= h->pruned < n ? h->pruned : n;
    h->m -= n;
}

static void merge_into(kvd_head *h, int side, size_t j, const size_t *into, const double *weight)
{
    const size_t w = h->width[side];
    float *const x = h->x[side] + j * w;
    double sum = weight[j];
    for (size_t i = 0; i < h->m; i++)
        sum += into[i] == j ? weight[i] : 0;
    for (size_t c = 0; c < w; c++) {
        double mean = weight[j] / sum * (double)x[c];
        for (size_t i = 0; i < h->m; i++)
            if (into[i] == j)
                mean += weight[i] / sum * (double)h->x[side][i * w + c];
        x[c] = (float)mean;
    }
    store_plain(h, side, j);
}

static int merge_dropped(kvd_head *h, kvd_err *err)
{
    const kvd_merge_choice choice = {.n = h->m,
                                     .level = h->decision,
                                     .k = h->x[KVD_KEYS],
                                     .v = h->x[KVD_VALUES],
                                     .d_k = h->width[KVD_KEYS],
                                     .d_v = h->width[KVD_VALUES]};
    kvd_pool pool = {0};
    size_t *const into = kvd_pool_new(&pool, h->m * sizeof *into);
    double *const weight = kvd_pool_new(&pool, h->m * sizeof *weight);
    uint8_t *const target = kvd_pool_new(&pool, h->m);
    int status = kvd_pool_check(&pool, "merged entries", err);
    for (size_t i = 0; !status && i < h->m; i++) {
        into[i] = h->m;
        weight[i] = 1;
    }
    status = status || h->p->tokens->merge(h->p->tokens_self, h->state, &choice, into, weight, err);
    for (size_t i = 0; !status && i < h->m; i++)
        if (into[i] < h->m) {
            target[into[i]] = 1;
            h->account->merged++;
        }
    for (size_t j = 0; !status && j < h->m; j++)
        for (int side = 0; target[j] && side < KVD_N_SIDES; side++)
            merge_into(h, side, j, into, weight);
    kvd_pool_free(&pool);
    return status ? -1 : 0;
}

int kvd_head_decide(kvd_head *h, bool merges, kvd_err *err)
{
    if (merges && h->p->tokens->merge && memchr(h->decision, KVD_LEVEL_DROPPED, h->m) &&
        merge_dropped(h, err))
        return -1;
    size_t m = 0, coded[KVD_N_SIDES] = {0, 0}, pruned = 0;
    for (size_t i = 0; i < h->m; i++) {
        const uint8_t was = h->level[i], now = h->decision[i];
        if (now > was)
            return kvd_fail(err,
                            "layer %d, KV head %d: method '%s' raised an entry from level %d to %d",
                            h->in->layer, h->g, h->p->tokens->info.name, was, now);
        if (now == KVD_LEVEL_DROPPED) {
            for (int side = 0; side < KVD_N_SIDES; side++)
                set_bits(h, side, i, 0, 0);
            h->account->dropped++;
            continue;
        }
        if (now < was)
            h->level[i] = now;
        if (now < was && kvd_plan_two_levels(h->p)) {
            h->account->lowered++;
            for (int side = 0; side < KVD_N_SIDES; side++) {
                store_plain(h, side, i);
                if (side == KVD_KEYS)
                    read_keys(h, i, i + 1);
                if (i < h->coded[side] && code(h, side, i, i + 1, false, err))
                    return -1;
            }
        }
        for (int side = 0; side < KVD_N_SIDES; side++)
            coded[side] += i < h->coded[side];
        pruned += i < h->pruned;
        h->kept[m] = i;
        move_entry(h, m++, i);
    }
    if (m < h->m && h->tokens->forget)
        h->tokens->forget(h->p->tokens_self, h->state, h->kept, m);
    h->m = m;
    h->pruned = pruned;
    memcpy(h->coded, coded, sizeof coded);
    return 0;
}

int kvd_head_prune(kvd_head *h, kvd_err *err)
{
    const kvd_channels_in in = {.layer = h->in->layer,
                                .kv_head = h->g,
                                .group = h->group,
                                .d = h->d,
                                .n_q = h->n0,
                                .ldq = (size_t)h->in->config->n_heads * h->d,
                                .q = kvd_head_query(h, 0, 0),
                                .n_k = h->m,
                                .k = h->x[KVD_KEYS]};
    size_t newest = 0;
    if (h->p->channels->prune(&h->p->channels_values, &in, h->keep, &newest, err))
        return -1;
    h->n_keep = 0;
    for (size_t c = 0; c < h->d; c++)
        h->n_keep += h->keep[c];
    for (; h->pruned < h->m && h->position[h->pruned] + newest < h->n0; h->pruned++) {
        float *const k = h->x[KVD_KEYS] + h->pruned * h->d;
        for (size_t c = 0; c < h->d; c++)
            k[c] = h->keep[c] ? k[c] : 0;
    }
    for (size_t i = 0; i < h->pruned; i++)
        store_plain(h, KVD_KEYS, i);
    h->held_side += (double)(h->pruned ? h->d : 0);
    h->account->pruned += h->n_keep < h->d ? h->pruned : 0;
    return 0;
}

/* Fills *x with the vectors of the prompt from which the projection basis of K or V is computed. */
static int basis_rows(const kvd_head *h, int side, kvd_channels_rows *x, kvd_err *err)
{
    const kvd_plan *const p = h->p;
    const kvd_config *const c = h->in->config;
    *x = (kvd_channels_rows){.n = h->m, .d = h->d, .x = h->x[side], .group = h->group};
    if (!p->channels->stacks)
        return 0;
    if (side == KVD_KEYS) {
        x->n_q = h->n0;
        x->ldq = (size_t)c->n_heads * h->d;
        x->q = kvd_head_query(h, 0, 0);
        return 0;
    }
    if (!p->moments)
        return kvd_fail(err,
                        "%s decomposes V together with W_O, and this program gives the method no "
                        "weights: use kvdim-eval, kvdim-tasks or kvdim-jct",
                        p->channels->info.name);
    x->moment = p->moments + (size_t)(h->in->layer * c->n_kv_heads + h->g) * h->d * h->d;
    return 0;
}

static void basis_widths(kvd_head *h, int side)
{
    const kvd_plan *const p = h->p;
    const kvd_dims_head *const high = kvd_head_dims(p->widths, h->in->layer, h->g),
                               *const low = kvd_head_dims(p->widths_low, h->in->layer, h->g);
    h->n_basis[side] = !high              ? p->channels->width(&p->channels_values, h->d)
                       : side == KVD_KEYS ? (size_t)high->d_qk
                                          : (size_t)high->d_v;
    h->n_basis_low[side] = !low               ? h->n_basis[side]
                           : side == KVD_KEYS ? (size_t)low->d_qk
                                              : (size_t)low->d_v;
}

/* Writes the projection matrix [d][n_basis] for K or V of one KV head to `a`. */
static int find_basis(const kvd_head *h, int side, float *a, kvd_err *err)
{
    const kvd_dims_head *const widths = kvd_head_dims(h->p->widths, h->in->layer, h->g);
    kvd_channels_rows rows;
    if (!h->p->channels->shared)
        return kvd_status(basis_rows(h, side, &rows, err) ||
                          h->p->channels->project(&rows, h->n_basis[side], a, err));
    memcpy(a, side == KVD_KEYS ? widths->a_k : widths->a_v, h->d * h->n_basis[side] * sizeof *a);
    return 0;
}

int kvd_head_cut(kvd_head *h, kvd_err *err)
{
    for (int side = 0; side < KVD_N_SIDES; side++) {
        basis_widths(h, side);
        const size_t width = h->n_basis[side];
        float *const a = kvd_pool_new(&h->pool, (h->d + 1) * width * sizeof *a);
        h->basis[side] = a;
        if (kvd_pool_check(&h->pool, "a basis", err) || find_basis(h, side, a, err))
            return -1;
        round_row(h, a, h->d * width);
        for (size_t i = 0; i < h->m; i++)
            store_plain(h, side, i);
        if (!h->p->channels->shared)
            h->held_side += 8.0 * (double)(h->d * width * kvd_dtype_bytes(h->p->type));
    }
    h->account->pruned += h->m;
    return 0;
}

int kvd_head_rebuild(kvd_head *h, kvd_err *err)
{
    const kvd_config *const c = h->in->config;
    const size_t wide = (size_t)c->n_kv_heads * h->d;
    const kvd_prompt_keys keys = {.kv_head = h->g,
                                  .n = h->m,
                                  .n_kv_heads = (size_t)c->n_kv_heads,
                                  .d = h->d,
                                  .k_pre = h->in->k_pre + h->first * wide,
                                  .k = h->x[KVD_KEYS],
                                  .type = h->p->type};
    float *const k = malloc(h->m * h->d * sizeof *k);
    uint8_t *const exact = malloc(h->m);
    kvd_rebuilt_bits bits = {0, 0};
    int status = k && exact ? 0 : kvd_no_memory(err, "keys of a prompt", h->m * h->d * sizeof *k);
    status = status || h->tokens->rebuild(h->p->tokens_self, h->state, &keys, k, exact, &bits, err);
    if (!status && c->positions == KVD_POSITIONS_ROPE)
        kvd_rope_apply(c, h->cosine, h->sine, h->position, h->m, 1, k);
    for (size_t i = 0; !status && i < h->m; i++) {
        if (exact[i])
            continue;
        memcpy(h->x[KVD_KEYS] + i * h->d, k + i * h->d, h->d * sizeof *k);
        round_row(h, h->x[KVD_KEYS] + i * h->d, h->d);
        set_bits(h, KVD_KEYS, i, bits.token, 0);
    }
    h->held_side += status ? 0 : bits.prompt;
    free(exact);
    free(k);
    return status ? -1 : 0;
}

void kvd_head_balance(kvd_head *h)
{
    for (size_t c = 0; c < h->d; c++) {
        float q = 0, k = 0;
        for (size_t t = 0; t < h->n0; t++) {
            k = fmaxf(k, fabsf(kvd_head_key(h, h->in->k, t)[c]));
            for (size_t j = 0; j < h->group; j++)
                q = fmaxf(q, fabsf(kvd_head_query(h, j, t)[c]));
        }
        h->balance[c] = kvd_round_f16(q > 0 && k > 0 ? sqrtf(q / k) : 1);
        if (!(h->balance[c] > 0) || isinf(h->balance[c]))
            h->balance[c] = 1;
    }
    h->balanced = true;
    h->held_side += 16 * (double)h->d;
}
