/*
 * Adapts plugins of the dims axis (include/kvdim/plugin_dims.h) to kvd_dims_maker and
 * kvd_channels_method.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "methods/plugin/plugin_method.h"

enum { ROWS_MOST = 4096, MATRICES = 4 };

/* ---- matrices -------------------------------------------------------------------------------- */

/* Room for the rows and the matrices of one KV head. */
typedef struct {
    float *row;              /* Q of the group, K and V: [group + 2][n][d], then scratch [n][d] */
    float *matrix[MATRICES]; /* a_q, a_k, a_v, b_v: [d][d] each, and a guard */
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
    return kvd_activations_rows(a, KVD_X_K, layer, g, 0, w->n, w->row + w->group * one, scratch,
                                err) ||
                   kvd_activations_rows(a, KVD_X_V, layer, g, 0, w->n,
                                        w->row + (w->group + 1) * one, scratch, err)
               ? -1
               : 0;
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

/* Returns a copy of the first n numbers of x; NULL: no memory. */
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
        /* numbers that the plugin does not write are found as not finite */
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
    /* one matrix for both sides is stored and counted once */
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
    if (reads && (a->first_layer != 0 || a->n_layers != c->n_layers))
        return kvd_fail(err, "the calibration holds layers %d to %d, the model has %d",
                        a->first_layer, a->first_layer + a->n_layers - 1, c->n_layers);
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

/* ---- channels -------------------------------------------------------------------------------- */

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

/* ---- the vtables ----------------------------------------------------------------------------- */

int kvd_plugin_dims(kvd_plugin_method *m, kvd_err *err)
{
    const kvdim_dims_method *const a = &m->api.dims;
    const bool reads = a->method.needs & KVDIM_NEEDS_CALIBRATION;
    if (!a->project == !a->prune)
        return kvd_fail(err, "it has %s of project and prune: it needs one",
                        a->project ? "both" : "none");
    if (a->method.needs & KVDIM_NEEDS_PROBABILITIES)
        return kvd_fail(err, "KVDIM_NEEDS_PROBABILITIES is for the tokens and bits axes");
    if (reads && !a->project)
        return kvd_fail(err, "KVDIM_NEEDS_CALIBRATION is for methods with project");
    if (a->project) {
        m->kind = KVD_PLUGIN_MAKER;
        m->as.maker = (kvd_dims_maker){.info.needs = reads ? (unsigned)KVD_NEEDS_ACTIVATIONS : 0,
                                       .make = make};
    } else {
        m->kind = KVD_PLUGIN_CHANNELS;
        m->as.channels = (kvd_channels_method){.info.needs = KVD_NEEDS_PROMPT, .prune = prune};
    }
    return 0;
}
