#include "model/pass/forward_state.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "model/pass/blocks.h"
#include "model/pass/latent.h"

enum {
    /* number of bytes of the output head that are converted at a time */
    HEAD_SLAB = 16 * 1024 * 1024,
    /* largest number of tokens that a thread processes at a time; 32 would halve the speed */
    MOST_ROWS = 256,
    FEWEST_ROWS = 32,
};

const kvd_weight *kvd_forward_parts(const kvd_forward *f, int layer)
{
    return f->part + (size_t)layer * KVD_LAYER_WEIGHTS;
}

static const kvd_weight *matrix_of(const kvd_forward *f, int layer, kvd_part part)
{
    return kvd_forward_parts(f, layer) + 2 * part;
}

static int find_weights(kvd_forward *f, const kvd_checkpoint *c, kvd_err *err)
{
    for (int l = 0; l < f->config.n_layers; l++)
        if (kvd_layer_find(c, l, f->part + (size_t)l * KVD_LAYER_WEIGHTS, err))
            return -1;
    if (kvd_weight_find(c, KVD_PART_EMBEDDING, false, 0, &f->embedding, err) ||
        kvd_weight_find(c, KVD_PART_POSITIONS, false, 0, &f->positions, err) ||
        kvd_weight_find(c, f->config.tied_head ? KVD_PART_EMBEDDING : KVD_PART_HEAD, false, 0,
                        &f->head, err))
        return -1;
    return 0;
}

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

float *kvd_floats(const char *what, size_t a, size_t b, kvd_err *err)
{
    return allocate(what, a, b, sizeof(float), err);
}

static size_t block_rows(size_t n)
{
    const size_t threads = kvd_thread_count(), each = ((n + threads - 1) / threads + 15) / 16 * 16;
    return each < FEWEST_ROWS ? FEWEST_ROWS : each > MOST_ROWS ? MOST_ROWS : each;
}

static size_t work_width(const kvd_forward *f)
{
    const size_t wide = kvd_layer_scratch(&f->config);
    return wide > f->d_embed ? wide : f->d_embed;
}

/* Returns the length of a float32 buffer that can hold the converted weights of any one layer. */
static size_t layer_buffer_size(const kvd_forward *f)
{
    size_t most = 0;
    for (int l = 0; l < f->config.n_layers; l++) {
        const size_t n = kvd_layer_buffer_size(f->part + (size_t)l * KVD_LAYER_WEIGHTS);
        most = n > most ? n : most;
    }
    return most;
}

static int keep_once(kvd_forward *f, const kvd_checkpoint *c, kvd_part part, kvd_err *err)
{
    for (int bias = 0; bias < 2; bias++) {
        kvd_weight w;
        if (kvd_weight_find(c, part, bias, 0, &w, err))
            return -1;
        if (w.n == 0)
            continue;
        float *x = f->once[part - KVD_N_LAYER_PARTS][bias] =
            kvd_floats("weights outside the layers", w.n, 1, err);
        if (!x)
            return -1;
        kvd_weight_read(&w, 0, w.n, x);
        kvd_tensor_drop(&w.tensor);
    }
    return 0;
}

const float *kvd_forward_once(const kvd_forward *f, kvd_part part, int bias)
{
    return f->once[part - KVD_N_LAYER_PARTS][bias];
}

static bool rotates(const kvd_forward *f)
{
    return f->config.positions == KVD_POSITIONS_ROPE;
}

static int make_rope(kvd_forward *f, kvd_err *err)
{
    const size_t half = (size_t)f->config.d_head / 2,
                 rows = kvd_batch_rope_rows(&f->config, f->max_len);
    if (!rotates(f))
        return 0;
    if (!(f->cosine = kvd_floats("the rope table", rows, half, err)) ||
        !(f->sine = kvd_floats("the rope table", rows, half, err)))
        return -1;
    kvd_batch_rope(&f->config, f->max_len, f->cosine, f->sine);
    return 0;
}

static int allocate_buffers(kvd_forward *f, kvd_err *err)
{
    const size_t n = f->max_tokens;
    if (!(f->layer = kvd_floats("weights of a layer", layer_buffer_size(f), 1, err)) ||
        !(f->x = kvd_floats("activations", n, f->d_model, err)) ||
        !(f->q = kvd_floats("queries", n, f->width_q, err)) ||
        !(f->k = kvd_floats("keys", n, f->width_k, err)) ||
        !(f->v = kvd_floats("values", n, f->width_k, err)) ||
        !(f->o = kvd_floats("attention output", n, f->width_q, err)) ||
        !(f->position = allocate("positions", n, 1, sizeof *f->position, err)) ||
        !(f->rope_row = allocate("positions", n, 1, sizeof *f->rope_row, err)))
        return -1;
    if (!kvd_weight_in_place(&f->head) &&
        !(f->slab = kvd_floats("the output head", f->slab_rows, f->d_embed, err)))
        return -1;
    return 0;
}

static kvd_forward *describe(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                             kvd_err *err)
{
    const kvd_config *config = kvd_checkpoint_config(c);
    const size_t vocab = (size_t)config->vocab_size;
    if (kvd_batch_limits(c, max_tokens, max_len, err))
        return NULL;
    kvd_forward *f = kvd_new(1, sizeof *f, "the forward pass", err);
    if (!f)
        return NULL;
    f->config = *config;
    f->pass = "";
    f->d_model = (size_t)config->d_model;
    f->d_ffn = (size_t)config->d_ffn;
    f->d_embed = (size_t)kvd_config_d_embed(config);
    f->width_q = (size_t)config->n_heads * (size_t)config->d_head;
    f->width_k = (size_t)config->n_kv_heads * (size_t)config->d_head;
    f->max_tokens = max_tokens;
    f->max_len = max_len;
    f->slab_rows = HEAD_SLAB / sizeof(float) / f->d_embed;
    f->slab_rows = f->slab_rows < 1 ? 1 : f->slab_rows > vocab ? vocab : f->slab_rows;
    f->slab_first = SIZE_MAX;
    f->part = allocate("the list of tensors", (size_t)config->n_layers, KVD_LAYER_WEIGHTS,
                       sizeof *f->part, err);
    if (!f->part || find_weights(f, c, err)) {
        kvd_forward_free(f);
        return NULL;
    }
    return f;
}

kvd_forward *kvd_forward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                             kvd_err *err)
{
    kvd_forward *const f = describe(c, max_tokens, max_len, err);
    if (f &&
        (keep_once(f, c, KVD_PART_NORM_FINAL, err) || keep_once(f, c, KVD_PART_PROJECT_IN, err) ||
         keep_once(f, c, KVD_PART_PROJECT_OUT, err) || allocate_buffers(f, err) ||
         make_rope(f, err) || kvd_experts_new(c, max_tokens, &f->experts, err))) {
        kvd_forward_free(f);
        return NULL;
    }
    return f;
}

int kvd_forward_bytes(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, bool pre,
                      double *weights, double *activations, kvd_err *err)
{
    kvd_forward *const f = describe(c, max_tokens, max_len, err);
    if (!f)
        return -1;
    const size_t row = f->d_model + (pre ? 3 : 2) * (f->width_q + f->width_k);
    const double of_thread =
        (double)block_rows(max_tokens) * (double)work_width(f) + KVD_ATTEND_ROWS * (double)max_len;
    *weights = (double)layer_buffer_size(f) * sizeof(float);
    if (!kvd_weight_in_place(&f->head))
        *weights += (double)(f->slab_rows * f->d_embed) * sizeof(float);
    double experts, of_experts;
    kvd_experts_bytes(&f->config, max_tokens, &experts, &of_experts);
    *weights += experts;
    *activations = ((double)max_tokens * (double)row + (double)kvd_thread_count() * of_thread) *
                       sizeof(float) +
                   of_experts;
    kvd_forward_free(f);
    return 0;
}

void kvd_forward_free(kvd_forward *f)
{
    if (!f)
        return;
    float *const buffers[] = {f->layer, f->slab,  f->x,     f->q,      f->k,    f->v,    f->o,
                              f->q_pre, f->k_pre, f->input, f->cosine, f->sine, f->work, f->narrow};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        free(buffers[i]);
    for (size_t i = 0; i < KVD_N_ONCE; i++) {
        free(f->once[i][0]);
        free(f->once[i][1]);
    }
    kvd_experts_free(f->experts);
    free(f->rope_row);
    free(f->position);
    free(f->part);
    free(f);
}

int kvd_batch_check_finite(const kvd_config *c, const kvd_batch *b, const char *where,
                           const float *x, size_t width, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences] * width, at = kvd_first_nonfinite_f32(x, n);
    return at < n ? kvd_batch_not_finite(c, b, where, at / width, err) : 0;
}

static int reserve_pre(kvd_forward *f, kvd_err *err)
{
    if (!f->q_pre &&
        !(f->q_pre = kvd_floats("queries before rope", f->max_tokens, f->width_q, err)))
        return -1;
    if (!f->k_pre && !(f->k_pre = kvd_floats("keys before rope", f->max_tokens, f->width_k, err)))
        return -1;
    return 0;
}

static int reserve_input(kvd_forward *f, kvd_err *err)
{
    return f->input || (f->input = kvd_floats("inputs of layers", f->max_tokens, f->d_model, err))
               ? 0
               : -1;
}

static int reserve_work(kvd_forward *f, size_t n, kvd_err *err)
{
    const size_t threads = kvd_thread_count();
    f->block = block_rows(n);
    f->work_size = f->block * work_width(f);
    if (f->work && threads <= f->work_n / f->work_size)
        return 0;
    free(f->work);
    f->work = kvd_floats("activations of a block", threads, f->work_size, err);
    f->work_n = f->work ? threads * f->work_size : 0;
    return f->work ? 0 : -1;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Computes Q, K and V of a layer. Returns the first token with a NaN or infinity, or SIZE_MAX. */
static size_t queries_keys_values(kvd_forward *f, int layer, const kvd_layer_weights *w,
                                  const kvd_attention *hook, size_t first, size_t rows)
{
    const size_t tables =
        kvd_batch_rope_layer(&f->config, f->max_len, layer) * (size_t)f->config.d_head / 2;
    const size_t width_q = f->width_q, width_k = f->width_k;
    const bool copy = hook->wants_pre && rotates(f);
    const kvd_layer_qkv out = {.q = f->q + first * width_q,
                               .k = f->k + first * width_k,
                               .v = f->v + first * width_k,
                               .q_pre = copy ? f->q_pre + first * width_q : NULL,
                               .k_pre = copy ? f->k_pre + first * width_k : NULL,
                               .input = hook->wants_input ? f->input + first * f->d_model : NULL,
                               .cosine = rotates(f) ? f->cosine + tables : NULL,
                               .sine = rotates(f) ? f->sine + tables : NULL,
                               .rope_row = f->rope_row + first};
    kvd_layer_before_attention(&f->config, w, f->x + first * f->d_model, rows,
                               f->work + kvd_thread_index() * f->work_size, &out);

    /* Checks Q, K and V, because the softmax could hide an infinite key. */
    const size_t bad = smaller(kvd_first_nonfinite_f32(out.q, rows * width_q) / width_q,
                               smaller(kvd_first_nonfinite_f32(out.k, rows * width_k) / width_k,
                                       kvd_first_nonfinite_f32(out.v, rows * width_k) / width_k));
    return bad < rows ? first + bad : SIZE_MAX;
}

/* Computes the rest of a layer after attention: output projection and MLP. Returns the index of the
 * first token with a NaN or infinity, or SIZE_MAX. */
static size_t rest_of_layer(kvd_forward *f, const kvd_layer_weights *w, size_t first, size_t rows)
{
    float *x = f->x + first * f->d_model;
    kvd_layer_behind_attention(&f->config, w, f->o + first * f->width_q, rows,
                               f->work + kvd_thread_index() * f->work_size, x);
    const size_t bad = kvd_first_nonfinite_f32(x, rows * f->d_model) / f->d_model;
    return bad < rows ? first + bad : SIZE_MAX;
}

static int run_hook(kvd_forward *f, const kvd_batch *b, int layer, const kvd_layer_weights *w,
                    kvd_attention *hook, const char *where, kvd_err *err)
{
    const kvd_attention_in in = {.config = &f->config,
                                 .layer = layer,
                                 .n_sequences = b->n_sequences,
                                 .offset = b->offset,
                                 .first_sequence = b->first_sequence,
                                 .n_tokens = b->offset[b->n_sequences],
                                 .start = b->start,
                                 .whole = b->whole,
                                 .q = f->q,
                                 .k = f->k,
                                 .v = f->v,
                                 .q_pre = !hook->wants_pre ? NULL
                                          : rotates(f)     ? f->q_pre
                                                           : f->q,
                                 .k_pre = !hook->wants_pre ? NULL
                                          : rotates(f)     ? f->k_pre
                                                           : f->k,
                                 .input = hook->wants_input ? f->input : NULL,
                                 .window = kvd_config_window(&f->config, layer),
                                 .sinks = w->w[KVD_PART_SINKS]};
    if (hook->run(hook, &in, f->o, err))
        return -1;
    return kvd_batch_check_finite(&f->config, b, where, f->o, f->width_q, err);
}

int kvd_forward_layer(kvd_forward *f, const kvd_batch *b, int layer, const kvd_layer_weights *w,
                      kvd_attention *hook, int stop, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences];
    char where[48];
    (void)snprintf(where, sizeof where, "%slayer %d", f->pass, layer);

    size_t bad = SIZE_MAX;
    int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic) reduction(min : bad)
    for (size_t first = 0; first < n; first += f->block)
        bad = smaller(bad,
                      queries_keys_values(f, layer, w, hook, first, smaller(f->block, n - first)));
    kvd_blas_restore(saved);
    if (bad != SIZE_MAX)
        return kvd_batch_not_finite(&f->config, b, where, bad, err);
    if (run_hook(f, b, layer, w, hook, where, err))
        return -1;
    if (stop)
        return 0;

    if (kvd_config_routed(&f->config, layer)) {
        kvd_experts_behind_attention(f->experts, w, layer, f->o, n, f->x);
        return kvd_batch_check_finite(&f->config, b, where, f->x, f->d_model, err);
    }
    saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic) reduction(min : bad)
    for (size_t first = 0; first < n; first += f->block)
        bad = smaller(bad, rest_of_layer(f, w, first, smaller(f->block, n - first)));
    kvd_blas_restore(saved);
    return bad != SIZE_MAX ? kvd_batch_not_finite(&f->config, b, where, bad, err) : 0;
}

/* Runs one layer. Meanwhile another thread reads the weights of layer `next`, unless it is -1. */
static int run_layer(kvd_forward *f, const kvd_batch *b, int layer, int next, kvd_attention *hook,
                     int stop, kvd_err *err)
{
    kvd_layer_weights w;
    kvd_prefetch_wait(&f->prefetch);
    kvd_layer_load(kvd_forward_parts(f, layer), f->layer, &w);
    kvd_layer_drop(kvd_forward_parts(f, layer), false);
    if (next >= 0)
        kvd_prefetch_start(&f->prefetch, kvd_forward_parts(f, next), KVD_LAYER_WEIGHTS);
    const int status = kvd_forward_layer(f, b, layer, &w, hook, stop, err);
    kvd_layer_drop(kvd_forward_parts(f, layer), true);
    return status;
}

static int prepare(kvd_forward *f, const kvd_batch *b, const kvd_attention *hook, kvd_err *err)
{
    if (kvd_batch_check(&f->config, b, f->max_tokens, f->max_len, f->position, f->rope_row, err) ||
        reserve_work(f, b->offset[b->n_sequences], err))
        return -1;
    if (hook->wants_input && reserve_input(f, err))
        return -1;
    return hook->wants_pre && rotates(f) ? reserve_pre(f, err) : 0;
}

/* Adds learned positions. The vector of position t is row t + 2 of the table, as in OPT. */
static void add_positions(kvd_forward *f, size_t first, size_t rows)
{
    float *row = f->work + kvd_thread_index() * f->work_size;
    for (size_t i = first; i < first + rows; i++) {
        kvd_weight_read(&f->positions, ((size_t)f->position[i] + 2) * f->d_model, f->d_model, row);
        kvd_add_bias(f->x + i * f->d_model, row, 1, f->d_model);
    }
}

/* Computes f->x = scale * W_in e(id) + p, with the token's embedding e(id) and its learned position
 * vector p. */
static int embed(kvd_forward *f, const kvd_batch *b, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences];
    const float *project_in = kvd_forward_once(f, KVD_PART_PROJECT_IN, 0);
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < n; first += f->block) {
        const size_t rows = smaller(f->block, n - first), width = f->d_embed;
        float *x = f->x + first * f->d_model;
        float *to = project_in ? f->work + kvd_thread_index() * f->work_size : x;
        for (size_t i = 0; i < rows; i++)
            kvd_weight_read(&f->embedding, (size_t)b->id[first + i] * width, width, to + i * width);
        if (project_in)
            kvd_linear(to, project_in, rows, width, f->d_model, x, 0);
        if (f->config.embed_scale > 0)
            kvd_scale(x, rows * f->d_model, (float)f->config.embed_scale);
        if (f->positions.n)
            add_positions(f, first, rows);
    }
    kvd_blas_restore(saved);
    kvd_tensor_drop(&f->embedding.tensor);
    kvd_tensor_drop(&f->positions.tensor);
    return kvd_batch_check_finite(&f->config, b, "embedding", f->x, f->d_model, err);
}

int kvd_forward_begin(kvd_forward *f, const kvd_batch *b, const kvd_attention *hook, kvd_err *err)
{
    return prepare(f, b, hook, err) || embed(f, b, err) ? -1 : 0;
}

/* Runs layers first .. last. If `whole` is 0, the last layer ends after its attention. */
static int run_layers(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int first, int last,
                      int whole, kvd_err *err)
{
    int status = 0;
    for (int l = first; l <= last && !status; l++)
        status = run_layer(f, b, l, l < last ? l + 1 : -1, hook, l == last && !whole, err);
    /* Waits for the reading thread, because the caller may close the checkpoint. */
    kvd_prefetch_wait(&f->prefetch);
    return status;
}

static int final_norm(kvd_forward *f, const kvd_batch *b, float *hidden, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences];
    const float *gain = kvd_forward_once(f, KVD_PART_NORM_FINAL, 0),
                *bias = kvd_forward_once(f, KVD_PART_NORM_FINAL, 1);
    if (gain)
        kvd_layer_normalise(&f->config, f->x, gain, bias, n, hidden);
    else
        memcpy(hidden, f->x, n * f->d_model * sizeof *hidden);
    return kvd_batch_check_finite(&f->config, b, "final norm", hidden, f->d_model, err);
}

int kvd_forward_run(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int last_layer,
                    float *hidden, kvd_err *err)
{
    const kvd_config *c = &f->config;
    const int last = last_layer < 0 ? c->n_layers - 1 : last_layer;
    if (last >= c->n_layers || (hidden && last != c->n_layers - 1))
        return kvd_fail(err, "layers 0 .. %d asked for%s, the model has %d", last,
                        hidden ? " with the final state" : "", c->n_layers);
    if (kvd_forward_begin(f, b, hook, err) || run_layers(f, b, hook, 0, last, hidden != NULL, err))
        return -1;
    return hidden ? final_norm(f, b, hidden, err) : 0;
}

int kvd_forward_residual(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int layer,
                         float *residual, kvd_err *err)
{
    if (kvd_layer_check(&f->config, layer, err) || kvd_forward_begin(f, b, hook, err) ||
        run_layers(f, b, hook, 0, layer - 1, 1, err))
        return -1;
    memcpy(residual, f->x, b->offset[b->n_sequences] * f->d_model * sizeof *residual);
    return 0;
}

int kvd_forward_run_from(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int first_layer,
                         const float *residual, float *hidden, kvd_err *err)
{
    if (kvd_layer_check(&f->config, first_layer, err) || prepare(f, b, hook, err))
        return -1;
    memcpy(f->x, residual, b->offset[b->n_sequences] * f->d_model * sizeof *residual);
    if (run_layers(f, b, hook, first_layer, f->config.n_layers - 1, 1, err))
        return -1;
    return final_norm(f, b, hidden, err);
}

/* Returns `hidden`, or its projection to d_embed dimensions if the model has such a projection. */
static const float *head_input(kvd_forward *f, const float *hidden, size_t n, kvd_err *err)
{
    const float *project_out = kvd_forward_once(f, KVD_PART_PROJECT_OUT, 0);
    if (!project_out)
        return hidden;
    if (f->narrow_n < n * f->d_embed) {
        free(f->narrow);
        f->narrow = kvd_floats("the head's input", n, f->d_embed, err);
        f->narrow_n = f->narrow ? n * f->d_embed : 0;
    }
    if (f->narrow)
        kvd_linear(hidden, project_out, n, f->d_model, f->d_embed, f->narrow, 0);
    return f->narrow;
}

const float *kvd_forward_head(kvd_forward *f, size_t first, size_t *rows)
{
    const size_t vocab = (size_t)f->config.vocab_size;
    const float *const in_place = kvd_weight_in_place(&f->head);
    *rows = smaller(in_place ? vocab : f->slab_rows, vocab - first);
    if (in_place)
        return in_place + first * f->d_embed;
    if (f->slab_first != first)
        kvd_weight_read(&f->head, first * f->d_embed, *rows * f->d_embed, f->slab);
    f->slab_first = first;
    return f->slab;
}

int kvd_forward_logits(kvd_forward *f, const float *hidden, size_t n, float *logits, kvd_err *err)
{
    const size_t vocab = (size_t)f->config.vocab_size;
    if (n > INT_MAX)
        return kvd_fail(err, "logits of %zu rows at once, at most %d", n, INT_MAX);
    const float *in = head_input(f, hidden, n, err);
    if (!in)
        return -1;
    for (size_t first = 0, rows; first < vocab; first += rows) {
        const float *const head = kvd_forward_head(f, first, &rows);
        kvd_linear_columns(in, head, n, f->d_embed, rows, logits + first, vocab, 0);
    }
    kvd_tensor_drop(&f->head.tensor);
    const size_t at = kvd_first_nonfinite_f32(logits, n * vocab);
    if (at < n * vocab)
        return kvd_fail(err, "'%s': logit of token %zu is not finite, in row %zu of the batch",
                        f->config.path, at % vocab, at / vocab);
    if (f->config.logit_softcap > 0)
        kvd_softcap(logits, n * vocab, 1.0f, (float)f->config.logit_softcap);
    return 0;
}

/* Returns the mean number of keys that a query of a sequence sees. A window of 0 means no sliding
 * window. */
static double mean_keys(double seq_len, double window)
{
    if (window <= 0 || window >= seq_len)
        return (seq_len + 1) / 2;
    return (window * (window + 1) / 2 + (seq_len - window) * window) / seq_len;
}

double kvd_forward_flop_per_token(const kvd_config *c, double seq_len)
{
    const double q = (double)c->n_heads * c->d_head, kv = (double)c->n_kv_heads * c->d_head;
    const double matrices = kvd_config_gated(c) ? 3.0 : 2.0;
    const double routed =
        c->n_experts + matrices * ((double)c->n_chosen * c->d_expert + c->d_shared);
    const double projections =
        c->latent ? kvd_latent_multiplications(c) : c->d_model * (2 * q + 2 * kv);
    double sum = 0;
    for (int l = 0; l < c->n_layers; l++)
        sum += 2.0 * (projections +
                      c->d_model * (kvd_config_routed(c, l) ? routed : matrices * c->d_ffn)) +
               2.0 * 2.0 * q * mean_keys(seq_len, (double)kvd_config_window(c, l));
    return sum;
}

double kvd_head_flop_per_token(const kvd_config *c)
{
    const double d_embed = kvd_config_d_embed(c), d_model = c->d_model;
    return 2.0 * d_embed * c->vocab_size +
           (d_embed < d_model || d_embed > d_model ? 2.0 * d_embed * d_model : 0);
}

int kvd_forward_weights_o(kvd_forward *f, int layer, float *w_o, kvd_err *err)
{
    /* number of floats in a cache line; each cache line of the result is written once */
    enum { TILE = 16 };
    if (kvd_layer_check(&f->config, layer, err))
        return -1;
    if (f->config.latent)
        return kvd_latent_weights(&f->config, kvd_forward_parts(f, layer), w_o, NULL, err);
    const kvd_weight *w = matrix_of(f, layer, KVD_PART_O);
    const size_t width = f->width_q, d_model = f->d_model;
    float *tiles = kvd_floats("rows of a matrix", kvd_thread_count() * TILE, width, err);
    if (!tiles)
        return -1;
#pragma omp parallel for schedule(static)
    for (size_t m = 0; m < d_model; m += TILE) {
        const size_t rows = smaller(TILE, d_model - m);
        float *tile = tiles + kvd_thread_index() * TILE * width;
        kvd_weight_read(w, m * width, rows * width, tile);
        for (size_t j = 0; j < width; j++)
            for (size_t i = 0; i < rows; i++)
                w_o[j * d_model + m + i] = tile[i * width + j];
    }
    free(tiles);
    kvd_tensor_drop(&w->tensor);
    return 0;
}

int kvd_forward_weights_v(kvd_forward *f, int layer, float *w_v, kvd_err *err)
{
    if (kvd_layer_check(&f->config, layer, err))
        return -1;
    if (f->config.latent)
        return kvd_latent_weights(&f->config, kvd_forward_parts(f, layer), NULL, w_v, err);
    const kvd_weight *w = matrix_of(f, layer, KVD_PART_V);
    kvd_weight_read(w, 0, w->n, w_v);
    kvd_tensor_drop(&w->tensor);
    return 0;
}
