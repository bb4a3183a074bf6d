/* Adapts plugin methods to kvdim: methods that quantise K and V, project them, or share them
 * between layers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "methods/bits/calibration.h"
#include "methods/plugin/plugin_method.h"

enum { WINDOW_MOST = 1 << 24, BLOCK_MOST = 1 << 20 };

/* Asks the plugin how many newest tokens stay unquantised, and how many tokens form a block. If one
 * of the numbers is invalid, sets *newest to 0 and *block to 1, and returns false. */
static bool ask_window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    const kvdim_bits_method *const a = &kvd_plugin_of(v)->api.bits;
    *newest = 0;
    *block = 1;
    if (a->window)
        a->window(v->value, side == KVD_KEYS ? KVDIM_SIDE_KEYS : KVDIM_SIDE_VALUES, newest, block);
    if (*newest <= WINDOW_MOST && *block >= 1 && *block <= BLOCK_MOST)
        return true;
    *newest = 0;
    *block = 1;
    return false;
}

/* Sets how many newest tokens stay unquantised, and how many tokens form a block. If the plugin's
 * numbers are invalid, uses 0 and 1 and records an error. */
static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    if (!ask_window(v, side, newest, block))
        atomic_store(&kvd_plugin_flags(kvd_plugin_of(v))->bad_window, true);
}

static int wrong_window(const kvd_plugin_method *m, kvd_err *err)
{
    return kvd_plugin_wrong(m, "window", err,
                            "did not set a window of 0 .. %d and a block of 1 .. %d", WINDOW_MOST,
                            BLOCK_MOST);
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const kvd_plugin_method *const m = kvd_plugin_of(v);
    const kvdim_bits_method *const a = &m->api.bits;
    size_t newest, block;
    if (kvd_plugin_open(v, s, a->open, a->close, self, err))
        return -1;
    if (ask_window(v, KVD_KEYS, &newest, &block) && ask_window(v, KVD_VALUES, &newest, &block))
        return 0;
    kvd_plugin_close(*self);
    *self = NULL;
    return wrong_window(m, err);
}

static int check_code(const kvd_plugin_opened *o, const kvd_bits_block *b, const float *decoded,
                      const kvd_bits_count *count, kvd_err *err)
{
    const kvd_plugin_method *const m = o->method;
    if (!kvd_guard_holds(decoded, b->n * b->d * sizeof *decoded))
        return kvd_plugin_wrong(m, "code", err, "wrote beyond its %zu x %zu numbers", b->n, b->d);
    if (!isfinite(count->payload) || !isfinite(count->side) || count->payload < 0 ||
        count->side < 0)
        return kvd_plugin_wrong(m, "code", err,
                                "counted %g bits of payload and %g of side information: each must "
                                "be finite and at least 0",
                                count->payload, count->side);
    for (size_t i = 0; i < b->n * b->d; i++)
        if (!isfinite(decoded[i]))
            return kvd_plugin_wrong(m, "code", err,
                                    "decoded dimension %zu of the %s at position %u to %g",
                                    i % b->d, b->side == KVD_KEYS ? "key" : "value",
                                    (unsigned)b->position[i / b->d], (double)decoded[i]);
    return 0;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const kvd_plugin_opened *const o = self;
    const bool sums = o->method->api.method.needs & KVDIM_NEEDS_PROBABILITIES;
    const kvdim_block in = {.struct_size = sizeof in,
                            .side = b->side == KVD_KEYS ? KVDIM_SIDE_KEYS : KVDIM_SIDE_VALUES,
                            .layer = b->layer,
                            .kv_head = b->kv_head,
                            .prompt = b->prompt,
                            .n = b->n,
                            .d = b->d,
                            .x = b->x,
                            .position = b->position,
                            .mass = sums ? b->mass : NULL,
                            .seen = sums ? b->seen : NULL};
    const size_t bytes = b->n * b->d * sizeof *decoded;
    char error[KVDIM_ERROR_BYTES] = "";
    if (atomic_load(&o->method->bad_window))
        return wrong_window(o->method, err);
    float *const y = malloc(bytes + KVD_GUARD);
    if (!y)
        return kvd_no_memory(err, "a decoded block", bytes);
    /* Fills y with NaN (bytes 0xFF), to reveal elements that the plugin does not write. */
    memset(y, 0xFF, bytes);
    kvd_guard_set(y, bytes);
    *count = (kvd_bits_count){NAN, 0};
    const int status =
        o->method->api.bits.code(o->self, &in, y, &count->payload, &count->side, error)
            ? kvd_plugin_failed(o->method, "code", error, err)
            : check_code(o, b, y, count, err);
    if (!status)
        memcpy(decoded, y, bytes);
    free(y);
    return status;
}

int kvd_plugin_bits(kvd_plugin_method *m, kvd_err *err)
{
    const kvdim_bits_method *const a = &m->api.bits;
    if (!a->code)
        return kvd_fail(err, "it has no function 'code'");
    if (a->close && !a->open)
        return kvd_fail(err, "it has close, but no open");
    if (a->method.needs & KVDIM_NEEDS_CALIBRATION)
        return kvd_fail(err, "KVDIM_NEEDS_CALIBRATION is for methods of the dims axis");
    m->kind = KVD_PLUGIN_BITS;
    m->as.bits =
        (kvd_bits_method){.info.needs = kvd_plugin_needs(&a->method) |
                                        (a->keys_before_rope ? (unsigned)KVD_NEEDS_PRE_ROPE : 0),
                          .keys_before_rope = a->keys_before_rope != 0,
                          .window = a->window ? window : NULL,
                          .open = open,
                          .close = kvd_plugin_close,
                          .code = code};
    return 0;
}

enum { ROWS_MOST = 4096, MATRICES = 4 };

typedef struct {
    /* [group + 2][n][d] Q of `group` query heads, K and V of n tokens, followed by [n][d] of
     * scratch memory. */
    float *row;
    /* [d][d] Matrices from the plugin: projections of Q, K and V, and the back-projection of V. */
    float *matrix[MATRICES];
    size_t n, d, group;
} workspace;

static void release(workspace *w)
{
    free(w->row);
    for (int i = 0; i < MATRICES; i++)
        free(w->matrix[i]);
}

static int allocate(workspace *w, const kvd_config *c, size_t n, kvd_err *err)
{
    bool failed = false;
    *w = (workspace){.n = n, .d = (size_t)c->d_head, .group = (size_t)(c->n_heads / c->n_kv_heads)};
    const size_t rows = (w->group + 3) * n * w->d, matrix = w->d * w->d * sizeof(float);
    failed = !(w->row = malloc((rows + 1) * sizeof *w->row));
    for (int i = 0; i < MATRICES; i++)
        failed = !(w->matrix[i] = malloc(matrix + KVD_GUARD)) || failed;
    return failed ? kvd_no_memory(err, "projections", rows * sizeof(float) + MATRICES * matrix) : 0;
}

static int read_rows(workspace *w, kvd_activations *a, int layer, int g, kvd_err *err)
{
    const size_t one = w->n * w->d;
    float *const scratch = w->row + (w->group + 2) * one;
    for (size_t j = 0; j < w->group; j++)
        if (kvd_activations_rows(a, KVD_X_Q, layer, g * (int)w->group + (int)j, 0, w->n,
                                 w->row + j * one, scratch, err))
            return -1;
    return kvd_status(kvd_activations_rows(a, KVD_X_K, layer, g, 0, w->n, w->row + w->group * one,
                                           scratch, err) ||
                      kvd_activations_rows(a, KVD_X_V, layer, g, 0, w->n,
                                           w->row + (w->group + 1) * one, scratch, err));
}

static int check_matrices(const kvd_plugin_method *p, const workspace *w, const kvdim_matrices *m,
                          kvd_err *err)
{
    static const char *const name[MATRICES] = {"a_q", "a_k", "a_v", "b_v"};
    const int d = (int)w->d;
    if (m->d_qk < 1 || m->d_qk > d || m->d_v < 1 || m->d_v > d)
        return kvd_plugin_wrong(p, "project", err, "set the widths %d and %d, not 1 .. %d", m->d_qk,
                                m->d_v, d);
    for (int i = 0; i < MATRICES; i++) {
        const size_t n = w->d * (size_t)(i < 2 ? m->d_qk : m->d_v);
        if (!kvd_guard_holds(w->matrix[i], w->d * w->d * sizeof(float)))
            return kvd_plugin_wrong(p, "project", err, "wrote beyond the %zu x %zu numbers of %s",
                                    w->d, w->d, name[i]);
        for (size_t k = 0; k < n; k++)
            if (!isfinite(w->matrix[i][k]))
                return kvd_plugin_wrong(p, "project", err, "set number %zu of %s to %g", k, name[i],
                                        (double)w->matrix[i][k]);
    }
    return 0;
}

static float *copy(const float *x, size_t n)
{
    float *const y = malloc(n * sizeof *y);
    return y ? memcpy(y, x, n * sizeof *y) : NULL;
}

static int make_head(const kvd_plugin_method *p, const kvd_parameter_values *v,
                     const kvd_method_setup *s, workspace *w, int layer, int g, kvd_dims_head *h,
                     kvd_err *err)
{
    const kvdim_model model = kvd_plugin_model(s->config, s->seed);
    const size_t one = w->n * w->d, bytes = w->d * w->d * sizeof(float);
    char error[KVDIM_ERROR_BYTES] = "";
    if (w->n && read_rows(w, s->calibration, layer, g, err))
        return -1;
    for (int i = 0; i < MATRICES; i++) {
        memset(w->matrix[i], 0xFF, bytes);
        kvd_guard_set(w->matrix[i], bytes);
    }
    const kvdim_rows rows = {.struct_size = sizeof rows,
                             .layer = layer,
                             .kv_head = g,
                             .group = (int32_t)w->group,
                             .n = w->n,
                             .d = w->d,
                             .q = w->n ? w->row : NULL,
                             .k = w->n ? w->row + w->group * one : NULL,
                             .v = w->n ? w->row + (w->group + 1) * one : NULL};
    kvdim_matrices m = {.struct_size = sizeof m,
                        .d_qk = (int32_t)w->d,
                        .d_v = (int32_t)w->d,
                        .a_q = w->matrix[0],
                        .a_k = w->matrix[1],
                        .a_v = w->matrix[2],
                        .b_v = w->matrix[3]};
    if (p->api.dims.project(v->value, &model, &rows, &m, error))
        return kvd_plugin_failed(p, "project", error, err);
    if (check_matrices(p, w, &m, err))
        return -1;
    const size_t n_k = w->d * (size_t)m.d_qk, n_v = w->d * (size_t)m.d_v;
    /* True if Q and K have the same projection matrix, which is then stored only once. */
    const bool shared = !memcmp(w->matrix[0], w->matrix[1], n_k * sizeof(float));
    *h = (kvd_dims_head){.d_qk = m.d_qk, .d_v = m.d_v};
    h->a_k = copy(w->matrix[1], n_k);
    h->a_q = shared ? h->a_k : copy(w->matrix[0], n_k);
    h->a_v = copy(w->matrix[2], n_v);
    h->b_v = copy(w->matrix[3], n_v);
    return h->a_k && h->a_q && h->a_v && h->b_v
               ? 0
               : kvd_no_memory(err, "projections", 2 * (n_k + n_v) * sizeof(float));
}

static int make(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_dims *d, kvd_err *err)
{
    const kvd_plugin_method *const p = kvd_plugin_of(v);
    const kvd_config *const c = s->config;
    const bool reads = p->api.method.needs & KVDIM_NEEDS_CALIBRATION;
    const kvd_activations *const a = s->calibration;
    const size_t heads = (size_t)c->n_layers * (size_t)c->n_kv_heads;
    workspace w;
    if (reads && !a)
        return kvd_fail(err, "it needs rows of calibration text: give --calibration");
    if (reads && kvd_calibration_fits(s, false, err))
        return -1;
    const size_t n = !reads ? 0 : a->n_tokens < ROWS_MOST ? a->n_tokens : ROWS_MOST;
    *d = (kvd_dims){.n_layers = c->n_layers,
                    .n_kv_heads = c->n_kv_heads,
                    .d_head = c->d_head,
                    .heads = 1,
                    .head = calloc(heads, sizeof *d->head)};
    snprintf(d->method, sizeof d->method, "%s", p->api.method.name);
    int status = allocate(&w, c, n, err);
    if (!status && !d->head)
        status = kvd_no_memory(err, "projections", heads * sizeof *d->head);
    for (size_t i = 0; !status && i < heads; i++) {
        const int layer = (int)i / c->n_kv_heads, g = (int)i % c->n_kv_heads;
        if ((status = make_head(p, v, s, &w, layer, g, &d->head[i], err)))
            kvd_in(err, "layer %d, KV head %d", layer, g);
    }
    release(&w);
    return status ? -1 : 0;
}

static int prune(const kvd_parameter_values *v, const kvd_channels_in *in, uint8_t *keep,
                 size_t *newest, kvd_err *err)
{
    const kvd_plugin_method *const p = kvd_plugin_of(v);
    const kvdim_channels c = {.struct_size = sizeof c,
                              .layer = in->layer,
                              .kv_head = in->kv_head,
                              .group = (int32_t)in->group,
                              .d = in->d,
                              .n_q = in->n_q,
                              .q = in->q,
                              .q_stride = in->ldq,
                              .n_k = in->n_k,
                              .k = in->k};
    char error[KVDIM_ERROR_BYTES] = "";
    size_t n_keep = 0;
    int status = 0;
    uint8_t *const chosen = malloc(in->d + KVD_GUARD);
    if (!chosen)
        return kvd_no_memory(err, "channels", in->d);
    memset(chosen, 0xFF, in->d);
    kvd_guard_set(chosen, in->d);
    *newest = 0;
    if (p->api.dims.prune(v->value, &c, chosen, newest, error))
        status = kvd_plugin_failed(p, "prune", error, err);
    else if (!kvd_guard_holds(chosen, in->d))
        status = kvd_plugin_wrong(p, "prune", err, "wrote beyond its %zu channels", in->d);
    else if (*newest > in->n_q)
        status = kvd_plugin_wrong(p, "prune", err, "spares the newest %zu of %zu tokens", *newest,
                                  in->n_q);
    for (size_t i = 0; !status && i < in->d; i++) {
        n_keep += chosen[i];
        if (chosen[i] > 1)
            status = kvd_plugin_wrong(p, "prune", err, "set channel %zu to %u, not 0 or 1", i,
                                      (unsigned)chosen[i]);
    }
    if (!status && n_keep == 0)
        status = kvd_plugin_wrong(p, "prune", err, "keeps none of %zu channels", in->d);
    if (!status)
        memcpy(keep, chosen, in->d);
    free(chosen);
    return status;
}

int kvd_plugin_dims(kvd_plugin_method *m, kvd_err *err)
{
    const kvdim_dims_method *const a = &m->api.dims;
    if (!a->project == !a->prune)
        return kvd_fail(err, "it has %s of project and prune: it needs one",
                        a->project ? "both" : "none");
    if (a->method.needs & KVDIM_NEEDS_PROBABILITIES)
        return kvd_fail(err, "KVDIM_NEEDS_PROBABILITIES is for the tokens and bits axes");
    if (a->method.needs && !a->project)
        return kvd_fail(err, "needs is not 0: a method with prune needs only a prompt");
    if (a->project) {
        m->kind = KVD_PLUGIN_MAKER;
        m->as.maker = (kvd_dims_maker){.info.needs = kvd_plugin_needs(&a->method), .make = make};
    } else {
        m->kind = KVD_PLUGIN_CHANNELS;
        m->as.channels = (kvd_channels_method){.info.needs = KVD_NEEDS_PROMPT, .prune = prune};
    }
    return 0;
}

/* Asks the plugin how many layers it merges together from `layer` on. Returns false if the plugin's
 * answer is invalid. */
static bool ask_group(const kvd_parameter_values *v, const kvd_config *c, int layer, int *n)
{
    const kvdim_model model = kvd_plugin_model(c, v->seed);
    *n = kvd_plugin_of(v)->api.layers.group(v->value, &model, layer);
    return *n >= 1 && *n <= c->n_layers - layer && *n <= KVD_CONFIG_WINDOW_LAYERS;
}

static int wrong_group(const kvd_plugin_method *m, kvd_err *err)
{
    return kvd_plugin_wrong(m, "group", err, "gave another answer for the same layer");
}

/* Returns how many layers the plugin merges together from `layer` on. If the plugin's answer is
 * invalid, returns 1, and the next call of `merge` fails. */
static int group(const kvd_parameter_values *v, const kvd_config *c, int layer)
{
    int n;
    if (ask_group(v, c, layer, &n))
        return n;
    atomic_store(&kvd_plugin_flags(kvd_plugin_of(v))->bad_group, true);
    return 1;
}

static int check(const kvd_parameter_values *v, const kvd_config *c, kvd_err *err)
{
    for (int layer = 0, n; layer < c->n_layers; layer += n)
        if (!ask_group(v, c, layer, &n))
            return kvd_plugin_wrong(kvd_plugin_of(v), "group", err,
                                    "returned %d layers from layer %d on, of %d layers", n, layer,
                                    c->n_layers);
    return 0;
}

static int check_merged(const kvd_plugin_method *m, const kvd_layers_block *b, float *const *x,
                        const kvd_layers_count *count, kvd_err *err)
{
    const size_t n = b->n * b->heads * b->d;
    if (!isfinite(count->numbers) || !isfinite(count->bits) || count->numbers < 0 ||
        count->bits < 0)
        return kvd_plugin_wrong(m, "merge", err,
                                "counted %g numbers and %g bits: each must be finite and at least "
                                "0",
                                count->numbers, count->bits);
    for (int l = 0; l < b->n_layers; l++) {
        if (!kvd_guard_holds(x[l], n * sizeof(float)))
            return kvd_plugin_wrong(m, "merge", err, "wrote beyond the rows of layer %d",
                                    b->first_layer + l);
        for (size_t i = 0; i < n; i++)
            if (!isfinite(x[l][i]))
                return kvd_plugin_wrong(m, "merge", err, "set number %zu of layer %d to %g", i,
                                        b->first_layer + l, (double)x[l][i]);
    }
    return 0;
}

static int merge(const kvd_parameter_values *v, const kvd_layers_block *b, kvd_layers_count *count,
                 kvd_err *err)
{
    const kvd_plugin_method *const m = kvd_plugin_of(v);
    const size_t bytes = b->n * b->heads * b->d * sizeof(float);
    float *x[KVD_CONFIG_WINDOW_LAYERS] = {NULL};
    char error[KVDIM_ERROR_BYTES] = "";
    int status = atomic_load(&m->bad_group) ? wrong_group(m, err) : 0;
    for (int l = 0; !status && l < b->n_layers; l++) {
        if (!(x[l] = malloc(bytes + KVD_GUARD))) {
            status = kvd_no_memory(err, "rows of a group of layers", bytes);
            break;
        }
        memcpy(x[l], b->x[l], bytes);
        kvd_guard_set(x[l], bytes);
    }
    const kvdim_layers in = {.struct_size = sizeof in,
                             .side = b->side == KVD_KEYS ? KVDIM_SIDE_KEYS : KVDIM_SIDE_VALUES,
                             .first_layer = b->first_layer,
                             .n_layers = b->n_layers,
                             .n = b->n,
                             .heads = b->heads,
                             .d = b->d,
                             .x = x};
    *count = (kvd_layers_count){NAN, 0};
    if (!status && m->api.layers.merge(v->value, &in, &count->numbers, &count->bits, error))
        status = kvd_plugin_failed(m, "merge", error, err);
    status = status || check_merged(m, b, x, count, err);
    for (int l = 0; l < b->n_layers; l++) {
        if (!status)
            memcpy(b->x[l], x[l], bytes);
        free(x[l]);
    }
    return status ? -1 : 0;
}

int kvd_plugin_layers(kvd_plugin_method *m, kvd_err *err)
{
    const kvdim_layers_method *const a = &m->api.layers;
    if (!a->group || !a->merge)
        return kvd_fail(err, "it has no function '%s'", a->group ? "merge" : "group");
    if (a->method.needs & ~(uint32_t)KVDIM_NEEDS_SEED)
        return kvd_fail(err, "needs: a method of the layers axis can ask only for a seed");
    m->kind = KVD_PLUGIN_LAYERS;
    m->as.layers = (kvd_layers_method){
        .info.needs = kvd_plugin_needs(&a->method) | (unsigned)KVD_NEEDS_PROMPT |
                      (a->keys_before_rope ? (unsigned)KVD_NEEDS_PRE_ROPE : 0),
        .keys_before_rope = a->keys_before_rope != 0,
        .check = check,
        .group = group,
        .merge = merge};
    return 0;
}
