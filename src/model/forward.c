#include "model/forward.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "model/blocks.h"

/* The tensors of one layer, in the order of use. */
enum { NORM_ATTENTION, W_Q, W_K, W_V, W_O, NORM_FFN, W_GATE, W_UP, W_DOWN, N_PARTS };

static const char *const part_name[N_PARTS] = {
    "input_layernorm.weight",  "self_attn.q_proj.weight", "self_attn.k_proj.weight",
    "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",    "mlp.up_proj.weight",      "mlp.down_proj.weight",
};

enum {
    CONVERT_CHUNK = 65536,        /* elements that a thread converts at a time            */
    HEAD_SLAB = 16 * 1024 * 1024, /* bytes of the head that are in float32 at one time    */
    /*
     * Rows that a thread takes through everything between two attentions. Each block packs all
     * weights anew inside the BLAS: with 256 rows that no longer shows in the rate, with 32 it
     * costs half, and fewer would not be worth another thread.
     */
    MOST_ROWS = 256,
    FEWEST_ROWS = 32,
};

struct kvd_forward {
    kvd_config config;
    size_t d_model, d_ffn, width_q, width_k; /* width: heads * d_head */
    size_t max_tokens, max_len;

    kvd_tensor *part; /* [n_layers][N_PARTS] */
    kvd_tensor embedding, norm, head;

    float *layer;     /* float32 copies of the parts of one layer that need one */
    float *slab;      /* float32 copy of head rows slab_first .. ; NULL when the head is used in place */
    size_t slab_rows; /* vocabulary rows that fit */
    size_t slab_first;

    float *norm_gain;     /* [d_model] of the final norm                          */
    float *x;             /* [max_tokens][d_model], residual stream               */
    float *q, *k, *v, *o; /* [max_tokens][width_q or width_k]                     */
    float *q_pre, *k_pre; /* NULL until a door wants them                         */
    float *cosine, *sine; /* [max_len][d_head / 2]                                */
    uint32_t *position;   /* [max_tokens]                                         */

    size_t block;     /* rows of the blocks of the running batch                       */
    size_t work_size; /* floats per thread: [block][d_model + 2 d_ffn]                 */
    size_t work_n;    /* floats allocated                                              */
    float *work;
};

/* ---- weights --------------------------------------------------------- */

static int is_usable_in_place(const kvd_tensor *t)
{
    return t->dtype == KVD_F32 && (uintptr_t)t->data % sizeof(float) == 0;
}

/* Elements first .. first+n-1 of t in float32. */
static void convert(const kvd_tensor *t, size_t first, size_t n, float *out)
{
    const unsigned char *from = (const unsigned char *)t->data + first * kvd_dtype_bytes(t->dtype);
#pragma omp parallel for schedule(static) if (n > CONVERT_CHUNK)
    for (size_t i = 0; i < n; i += CONVERT_CHUNK)
        kvd_to_f32(t->dtype, from + i * kvd_dtype_bytes(t->dtype), out + i,
                   n - i < CONVERT_CHUNK ? n - i : CONVERT_CHUNK);
}

/* w[part] points to float32: into the file where it can, else into f->layer. */
static void load_layer(kvd_forward *f, int layer, const float *w[N_PARTS])
{
    const kvd_tensor *part = f->part + (size_t)layer * N_PARTS;
    float *to[N_PARTS], *end = f->layer;
    for (int p = 0; p < N_PARTS; p++) {
        to[p] = is_usable_in_place(&part[p]) ? NULL : end;
        w[p] = to[p] ? to[p] : part[p].data;
        end += to[p] ? part[p].n : 0;
    }
#pragma omp parallel
    for (int p = 0; p < N_PARTS; p++) {
        if (!to[p])
            continue;
        const size_t n = part[p].n;
#pragma omp for schedule(dynamic) nowait
        for (size_t i = 0; i < n; i += CONVERT_CHUNK)
            convert(&part[p], i, n - i < CONVERT_CHUNK ? n - i : CONVERT_CHUNK, to[p] + i);
    }
}

static int find_tensors(kvd_forward *f, const kvd_checkpoint *c, kvd_err *err)
{
    const size_t rows[N_PARTS] = {f->d_model, f->width_q, f->width_k, f->width_k, f->d_model,
                                  f->d_model, f->d_ffn,   f->d_ffn,   f->d_model};
    const size_t cols[N_PARTS] = {0, f->d_model, f->d_model, f->d_model, f->width_q,
                                  0, f->d_model, f->d_model, f->d_ffn};
    const size_t vocab = (size_t)f->config.vocab_size;

    for (int l = 0; l < f->config.n_layers; l++)
        for (int p = 0; p < N_PARTS; p++) {
            char name[96];
            (void)snprintf(name, sizeof name, "model.layers.%d.%s", l, part_name[p]);
            if (kvd_checkpoint_tensor(c, name, rows[p], cols[p], &f->part[(size_t)l * N_PARTS + (size_t)p],
                                      err))
                return -1;
        }
    if (kvd_checkpoint_tensor(c, "model.embed_tokens.weight", vocab, f->d_model, &f->embedding, err) ||
        kvd_checkpoint_tensor(c, "model.norm.weight", f->d_model, 0, &f->norm, err))
        return -1;
    f->head = f->embedding;
    if (!f->config.tied_head)
        return kvd_checkpoint_tensor(c, "lm_head.weight", vocab, f->d_model, &f->head, err);
    return 0;
}

/* ---- life ------------------------------------------------------------ */

static void *allocate(const char *what, size_t a, size_t b, size_t element, kvd_err *err)
{
    if (b > 0 && a > SIZE_MAX / b / element) {
        kvd_fail(err, "%s of %zu x %zu elements overflows", what, a, b);
        return NULL;
    }
    const size_t bytes = a * b * element;
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        kvd_no_memory(err, what, bytes);
    return p;
}

static float *floats(const char *what, size_t a, size_t b, kvd_err *err)
{
    return allocate(what, a, b, sizeof(float), err);
}

/* Elements of the layer that needs the most converted. */
static size_t layer_buffer_size(const kvd_forward *f)
{
    size_t most = 0;
    for (size_t l = 0; l < (size_t)f->config.n_layers; l++) {
        size_t n = 0;
        for (size_t p = 0; p < N_PARTS; p++)
            if (!is_usable_in_place(&f->part[l * N_PARTS + p]))
                n += f->part[l * N_PARTS + p].n;
        most = n > most ? n : most;
    }
    return most;
}

static int allocate_buffers(kvd_forward *f, kvd_err *err)
{
    const size_t n = f->max_tokens, half = (size_t)f->config.d_head / 2, vocab = (size_t)f->config.vocab_size;
    f->slab_rows = HEAD_SLAB / sizeof(float) / f->d_model;
    f->slab_rows = f->slab_rows < 1 ? 1 : f->slab_rows > vocab ? vocab : f->slab_rows;
    f->slab_first = SIZE_MAX;
    if (!(f->layer = floats("weights of a layer", layer_buffer_size(f), 1, err)) ||
        !(f->norm_gain = floats("the final norm", f->d_model, 1, err)) ||
        !(f->x = floats("activations", n, f->d_model, err)) ||
        !(f->q = floats("queries", n, f->width_q, err)) || !(f->k = floats("keys", n, f->width_k, err)) ||
        !(f->v = floats("values", n, f->width_k, err)) ||
        !(f->o = floats("attention output", n, f->width_q, err)) ||
        !(f->cosine = floats("the rope table", f->max_len, half, err)) ||
        !(f->sine = floats("the rope table", f->max_len, half, err)) ||
        !(f->position = allocate("positions", n, 1, sizeof *f->position, err)))
        return -1;
    if (!is_usable_in_place(&f->head) &&
        !(f->slab = floats("the output head", f->slab_rows, f->d_model, err)))
        return -1;
    return 0;
}

kvd_forward *kvd_forward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err)
{
    const kvd_config *config = kvd_checkpoint_config(c);
    if (max_tokens == 0 || max_tokens > INT_MAX) {
        kvd_fail(err, "a batch of %zu tokens is outside 1 .. %d", max_tokens, INT_MAX);
        return NULL;
    }
    if (max_len == 0 || max_len > (size_t)config->max_positions) {
        kvd_fail(err, "'%s': sequences of %zu tokens, but the model was made for 1 .. %d",
                 kvd_checkpoint_path(c), max_len, config->max_positions);
        return NULL;
    }
    kvd_forward *f = calloc(1, sizeof *f);
    if (!f) {
        kvd_no_memory(err, "the forward pass", sizeof *f);
        return NULL;
    }
    f->config = *config;
    f->d_model = (size_t)config->d_model;
    f->d_ffn = (size_t)config->d_ffn;
    f->width_q = (size_t)config->n_heads * (size_t)config->d_head;
    f->width_k = (size_t)config->n_kv_heads * (size_t)config->d_head;
    f->max_tokens = max_tokens;
    f->max_len = max_len;
    f->part = allocate("the list of tensors", (size_t)config->n_layers, N_PARTS, sizeof *f->part, err);
    if (!f->part || find_tensors(f, c, err) || allocate_buffers(f, err)) {
        kvd_forward_free(f);
        return NULL;
    }
    convert(&f->norm, 0, f->d_model, f->norm_gain);
    kvd_rope_tables(&f->config, max_len, f->cosine, f->sine);
    return f;
}

void kvd_forward_free(kvd_forward *f)
{
    if (!f)
        return;
    float *const buffers[] = {f->layer, f->slab,  f->norm_gain, f->x,      f->q,    f->k,   f->v,
                              f->o,     f->q_pre, f->k_pre,     f->cosine, f->sine, f->work};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        free(buffers[i]);
    free(f->position);
    free(f->part);
    free(f);
}

/* ---- a batch ----------------------------------------------------------- */

static int check_batch(const kvd_forward *f, const kvd_batch *b, kvd_err *err)
{
    if (b->n_sequences == 0 || b->offset[0] != 0 || b->offset[b->n_sequences] > f->max_tokens)
        return kvd_fail(err, "a batch of %zu sequences and %zu tokens, room for %zu", b->n_sequences,
                        b->n_sequences ? b->offset[b->n_sequences] : 0, f->max_tokens);
    for (size_t s = 0; s < b->n_sequences; s++) {
        const size_t first = b->offset[s], end = b->offset[s + 1];
        if (end <= first || end - first > f->max_len)
            return kvd_fail(err, "sequence %zu has %zu tokens, not 1 .. %zu", b->first_sequence + s,
                            end > first ? end - first : 0, f->max_len);
        for (size_t i = first; i < end; i++) {
            if (b->id[i] >= (uint32_t)f->config.vocab_size)
                return kvd_fail(err,
                                "sequence %zu, position %zu: token id %u is not below the vocabulary size %d",
                                b->first_sequence + s, i - first, (unsigned)b->id[i], f->config.vocab_size);
            f->position[i] = (uint32_t)(i - first);
        }
    }
    return 0;
}

static int not_finite(const kvd_forward *f, const kvd_batch *b, const char *where, size_t row, kvd_err *err)
{
    size_t s = 0;
    while (b->offset[s + 1] <= row)
        s++;
    return kvd_fail(err, "%s, row %zu (sequence %zu, position %u): activation is not finite", where, row,
                    b->first_sequence + s, (unsigned)f->position[row]);
}

static int check_finite(const kvd_forward *f, const kvd_batch *b, const char *where, const float *x,
                        size_t width, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences] * width, at = kvd_first_nonfinite_f32(x, n);
    return at < n ? not_finite(f, b, where, at / width, err) : 0;
}

static int reserve_pre(kvd_forward *f, kvd_err *err)
{
    if (!f->q_pre && !(f->q_pre = floats("queries before rope", f->max_tokens, f->width_q, err)))
        return -1;
    if (!f->k_pre && !(f->k_pre = floats("keys before rope", f->max_tokens, f->width_k, err)))
        return -1;
    return 0;
}

/* Cuts n rows into blocks, one per thread or more, and makes room for every thread's. */
static int reserve_work(kvd_forward *f, size_t n, kvd_err *err)
{
    const size_t threads = kvd_thread_count(), each = ((n + threads - 1) / threads + 15) / 16 * 16;
    f->block = each < FEWEST_ROWS ? FEWEST_ROWS : each > MOST_ROWS ? MOST_ROWS : each;
    f->work_size = f->block * (f->d_model + 2 * f->d_ffn);
    if (f->work && threads <= f->work_n / f->work_size)
        return 0;
    free(f->work);
    f->work = floats("activations of a block", threads, f->work_size, err);
    f->work_n = f->work ? threads * f->work_size : 0;
    return f->work ? 0 : -1;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* x -> q, k, v for `rows` rows from `first` on. Returns the first row with one that is not finite,
 * SIZE_MAX when there is none. */
static size_t queries_keys_values(kvd_forward *f, const float *const w[N_PARTS], int keep_pre, size_t first,
                                  size_t rows)
{
    const kvd_config *c = &f->config;
    const size_t width_q = f->width_q, width_k = f->width_k;
    float *normed = f->work + kvd_thread_index() * f->work_size;
    float *q = f->q + first * width_q, *k = f->k + first * width_k, *v = f->v + first * width_k;

    kvd_rms_norm(f->x + first * f->d_model, w[NORM_ATTENTION], c->norm_eps, rows, f->d_model, normed);
    kvd_linear(normed, w[W_Q], rows, f->d_model, width_q, q, 0);
    kvd_linear(normed, w[W_K], rows, f->d_model, width_k, k, 0);
    kvd_linear(normed, w[W_V], rows, f->d_model, width_k, v, 0);
    if (keep_pre) {
        memcpy(f->q_pre + first * width_q, q, rows * width_q * sizeof *q);
        memcpy(f->k_pre + first * width_k, k, rows * width_k * sizeof *k);
    }
    kvd_rope_apply(c, f->cosine, f->sine, f->position + first, rows, (size_t)c->n_heads, q);
    kvd_rope_apply(c, f->cosine, f->sine, f->position + first, rows, (size_t)c->n_kv_heads, k);

    /* An infinite key can vanish in the softmax, so what is handed out is checked itself. */
    const size_t bad = smaller(kvd_first_nonfinite_f32(q, rows * width_q) / width_q,
                               smaller(kvd_first_nonfinite_f32(k, rows * width_k) / width_k,
                                       kvd_first_nonfinite_f32(v, rows * width_k) / width_k));
    return bad < rows ? first + bad : SIZE_MAX;
}

/* x += o W_O^T, x += W_down(silu(gate) * up) for such rows; the same result. */
static size_t rest_of_layer(kvd_forward *f, const float *const w[N_PARTS], size_t first, size_t rows)
{
    const size_t d = f->d_model, ffn = f->d_ffn;
    float *normed = f->work + kvd_thread_index() * f->work_size, *gate = normed + f->block * d;
    float *up = gate + f->block * ffn, *x = f->x + first * d;

    kvd_linear(f->o + first * f->width_q, w[W_O], rows, f->width_q, d, x, 1);
    kvd_rms_norm(x, w[NORM_FFN], f->config.norm_eps, rows, d, normed);
    kvd_linear(normed, w[W_GATE], rows, d, ffn, gate, 0);
    kvd_linear(normed, w[W_UP], rows, d, ffn, up, 0);
    kvd_swiglu(gate, up, rows * ffn);
    kvd_linear(gate, w[W_DOWN], rows, ffn, d, x, 1);
    const size_t bad = kvd_first_nonfinite_f32(x, rows * d) / d;
    return bad < rows ? first + bad : SIZE_MAX;
}

static int run_door(kvd_forward *f, const kvd_batch *b, int layer, kvd_attention *door, const char *where,
                    kvd_err *err)
{
    const kvd_attention_in in = {.config = &f->config,
                                 .layer = layer,
                                 .n_sequences = b->n_sequences,
                                 .offset = b->offset,
                                 .first_sequence = b->first_sequence,
                                 .n_tokens = b->offset[b->n_sequences],
                                 .q = f->q,
                                 .k = f->k,
                                 .v = f->v,
                                 .q_pre = door->wants_pre ? f->q_pre : NULL,
                                 .k_pre = door->wants_pre ? f->k_pre : NULL};
    if (door->run(door, &in, f->o, err))
        return -1;
    return check_finite(f, b, where, f->o, f->width_q, err);
}

/* The part after attention is left out when `stop`: nobody reads what it would give. */
static int run_layer(kvd_forward *f, const kvd_batch *b, int layer, kvd_attention *door, int stop,
                     kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences];
    const int keep_pre = door->wants_pre;
    const float *w[N_PARTS];
    char where[32];
    (void)snprintf(where, sizeof where, "layer %d", layer);
    load_layer(f, layer, w);

    size_t bad = SIZE_MAX;
    int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic) reduction(min : bad)
    for (size_t first = 0; first < n; first += f->block)
        bad = smaller(bad, queries_keys_values(f, w, keep_pre, first, smaller(f->block, n - first)));
    kvd_blas_restore(saved);
    if (bad != SIZE_MAX)
        return not_finite(f, b, where, bad, err);
    if (run_door(f, b, layer, door, where, err))
        return -1;
    if (stop)
        return 0;

    saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic) reduction(min : bad)
    for (size_t first = 0; first < n; first += f->block)
        bad = smaller(bad, rest_of_layer(f, w, first, smaller(f->block, n - first)));
    kvd_blas_restore(saved);
    return bad != SIZE_MAX ? not_finite(f, b, where, bad, err) : 0;
}

/* What every run begins with: the batch is sound and there is room for it. */
static int prepare(kvd_forward *f, const kvd_batch *b, const kvd_attention *door, kvd_err *err)
{
    if (check_batch(f, b, err) || reserve_work(f, b->offset[b->n_sequences], err))
        return -1;
    return door->wants_pre ? reserve_pre(f, err) : 0;
}

static int embed(kvd_forward *f, const kvd_batch *b, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences];
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        convert(&f->embedding, (size_t)b->id[i] * f->d_model, f->d_model, f->x + i * f->d_model);
    return check_finite(f, b, "embedding", f->x, f->d_model, err);
}

/* Layers first .. last of what stands in x; the last one only through the door unless `whole`. */
static int run_layers(kvd_forward *f, const kvd_batch *b, kvd_attention *door, int first, int last, int whole,
                      kvd_err *err)
{
    for (int l = first; l <= last; l++)
        if (run_layer(f, b, l, door, l == last && !whole, err))
            return -1;
    return 0;
}

static int final_norm(kvd_forward *f, const kvd_batch *b, float *hidden, kvd_err *err)
{
    kvd_rms_norm(f->x, f->norm_gain, f->config.norm_eps, b->offset[b->n_sequences], f->d_model, hidden);
    return check_finite(f, b, "final norm", hidden, f->d_model, err);
}

int kvd_forward_run(kvd_forward *f, const kvd_batch *b, kvd_attention *door, int last_layer, float *hidden,
                    kvd_err *err)
{
    const kvd_config *c = &f->config;
    const int last = last_layer < 0 ? c->n_layers - 1 : last_layer;
    if (last >= c->n_layers || (hidden && last != c->n_layers - 1))
        return kvd_fail(err, "layers 0 .. %d asked for%s, the model has %d", last,
                        hidden ? " with the final state" : "", c->n_layers);
    if (prepare(f, b, door, err) || embed(f, b, err) || run_layers(f, b, door, 0, last, hidden != NULL, err))
        return -1;
    return hidden ? final_norm(f, b, hidden, err) : 0;
}

int kvd_forward_residual(kvd_forward *f, const kvd_batch *b, kvd_attention *door, int layer, float *residual,
                         kvd_err *err)
{
    if (layer < 0 || layer >= f->config.n_layers)
        return kvd_fail(err, "layer %d asked for, the model has %d", layer, f->config.n_layers);
    if (prepare(f, b, door, err) || embed(f, b, err) || run_layers(f, b, door, 0, layer - 1, 1, err))
        return -1;
    memcpy(residual, f->x, b->offset[b->n_sequences] * f->d_model * sizeof *residual);
    return 0;
}

int kvd_forward_run_from(kvd_forward *f, const kvd_batch *b, kvd_attention *door, int first_layer,
                         const float *residual, float *hidden, kvd_err *err)
{
    if (first_layer < 0 || first_layer >= f->config.n_layers)
        return kvd_fail(err, "layer %d asked for, the model has %d", first_layer, f->config.n_layers);
    if (prepare(f, b, door, err))
        return -1;
    memcpy(f->x, residual, b->offset[b->n_sequences] * f->d_model * sizeof *residual);
    if (run_layers(f, b, door, first_layer, f->config.n_layers - 1, 1, err))
        return -1;
    return final_norm(f, b, hidden, err);
}

/* ---- head -------------------------------------------------------------- */

int kvd_forward_logits(kvd_forward *f, const float *hidden, size_t n, float *logits, kvd_err *err)
{
    const size_t vocab = (size_t)f->config.vocab_size;
    if (n > INT_MAX)
        return kvd_fail(err, "logits of %zu rows at once, at most %d", n, INT_MAX);
    if (!f->slab) {
        kvd_linear(hidden, f->head.data, n, f->d_model, vocab, logits, 0);
    } else {
        for (size_t first = 0; first < vocab; first += f->slab_rows) {
            const size_t rows = vocab - first < f->slab_rows ? vocab - first : f->slab_rows;
            if (f->slab_first != first) { /* a head of one slab is converted once */
                convert(&f->head, first * f->d_model, rows * f->d_model, f->slab);
                f->slab_first = first;
            }
            kvd_linear_columns(hidden, f->slab, n, f->d_model, rows, logits + first, vocab, 0);
        }
    }
    const size_t at = kvd_first_nonfinite_f32(logits, n * vocab);
    if (at < n * vocab)
        return kvd_fail(err, "row %zu of the piece: logit of token %zu is not finite", at / vocab,
                        at % vocab);
    return 0;
}

/* ---- counts and slices --------------------------------------------------- */

double kvd_forward_flop_per_token(const kvd_config *c, double seq_len)
{
    const double q = (double)c->n_heads * c->d_head, kv = (double)c->n_kv_heads * c->d_head;
    const double linear = 2.0 * c->d_model * (2 * q + 2 * kv + 3.0 * c->d_ffn);
    const double attention = 2.0 * 2.0 * q * (seq_len + 1) / 2;
    return c->n_layers * (linear + attention);
}

double kvd_head_flop_per_token(const kvd_config *c)
{
    return 2.0 * c->d_model * c->vocab_size;
}

static int check_layer(const kvd_forward *f, int layer, kvd_err *err)
{
    if (layer < 0 || layer >= f->config.n_layers)
        return kvd_fail(err, "layer %d asked for, the model has %d", layer, f->config.n_layers);
    return 0;
}

int kvd_forward_weights_o(kvd_forward *f, int layer, float *w_o, kvd_err *err)
{
    if (check_layer(f, layer, err))
        return -1;
    const kvd_tensor *t = &f->part[(size_t)layer * N_PARTS + W_O];
    float *row = f->q; /* room for at least one row of heads */
    for (size_t m = 0; m < f->d_model; m++) {
        convert(t, m * f->width_q, f->width_q, row);
        for (size_t j = 0; j < f->width_q; j++)
            w_o[j * f->d_model + m] = row[j];
    }
    return 0;
}

int kvd_forward_weights_v(kvd_forward *f, int layer, float *w_v, kvd_err *err)
{
    if (check_layer(f, layer, err))
        return -1;
    /* A checkpoint stores W_V^T, whose rows are the columns of the paper's W_V. */
    const kvd_tensor *t = &f->part[(size_t)layer * N_PARTS + W_V];
    convert(t, 0, t->n, w_v);
    return 0;
}
