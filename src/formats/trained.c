#include "formats/trained.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"

const kvd_schema kvd_schema_projections = {"projections", 1,
                                           "Matrices that shorten K and V and rebuild them"};
const kvd_schema kvd_schema_retaining_heads = {
    "retaining-heads", 1, "Networks that score cached tokens by their Q, K and V"};

static const char *const side_name[2] = {"k", "v"};

static int check_shared(const kvd_h5 *f, const kvd_projections *p, int side, kvd_err *err)
{
    const kvd_projections_side *const x = &p->side[side];
    const size_t n_kv = (size_t)p->model.n_kv_heads, heads = (size_t)p->heads,
                 n = (size_t)p->model.n_layers * n_kv,
                 size = heads * (size_t)p->model.d_head * x->n_components;
    for (size_t i = 0; i < n; i++) {
        const size_t first = i - i % n_kv % heads;
        if (x->rank[i] != x->rank[first] ||
            memcmp(x->down + i * size, x->down + first * size, size * sizeof *x->down))
            return kvd_fail(err,
                            "'%s': KV heads %zu and %zu of layer %zu share a latent of %s, but "
                            "their rank or their matrix down differs",
                            f->path, first % n_kv, i % n_kv, i / n_kv, side_name[side]);
    }
    return 0;
}

static int read_side(kvd_h5 *f, kvd_projections *p, int side, kvd_err *err)
{
    kvd_projections_side *const x = &p->side[side];
    const hsize_t layers = (hsize_t)p->model.n_layers, n_kv = (hsize_t)p->model.n_kv_heads,
                  d = (hsize_t)p->model.d_head, rows = (hsize_t)p->heads * d;
    hsize_t found[4];
    char path[3][16];
    static const char *const part[3] = {"rank", "down", "up"};
    for (int i = 0; i < 3; i++)
        snprintf(path[i], sizeof path[i], "/%s/%s", side_name[side], part[i]);
    if (kvd_h5_shape(f, path[1], 4, found, err))
        return -1;
    if (found[3] < 1 || found[3] > rows)
        return kvd_fail(err, "'%s': %s has %llu components, not 1 .. %llu", f->path, path[1],
                        (unsigned long long)found[3], (unsigned long long)rows);
    const hsize_t components = found[3], of_rank[2] = {layers, n_kv},
                  of_down[4] = {layers, n_kv, rows, components},
                  of_up[4] = {layers, n_kv, components, d};
    const size_t heads = (size_t)(layers * n_kv), n_down = heads * (size_t)(rows * components),
                 n_up = heads * (size_t)(components * d);
    if (kvd_field_shape(f, path[0], 2, of_rank, err) ||
        kvd_field_shape(f, path[1], 4, of_down, err) || kvd_field_shape(f, path[2], 4, of_up, err))
        return -1;
    x->n_components = (size_t)components;
    x->rank = malloc(heads * sizeof *x->rank);
    x->down = malloc(n_down * sizeof *x->down);
    x->up = malloc(n_up * sizeof *x->up);
    if (!x->rank || !x->down || !x->up)
        return kvd_no_memory(err, "projections", (n_down + n_up) * sizeof *x->down);
    if (kvd_h5_read(f, path[0], 2, of_rank, H5T_NATIVE_INT32, x->rank, err) ||
        kvd_h5_read_finite(f, path[1], 4, of_down, x->down, err) ||
        kvd_h5_read_finite(f, path[2], 4, of_up, x->up, err))
        return -1;
    for (size_t i = 0; i < heads; i++)
        if (x->rank[i] < 1 || (hsize_t)x->rank[i] > components)
            return kvd_fail(err, "'%s': %s[%zu][%zu] is %d, not in 1 .. %zu", f->path, path[0],
                            i / (size_t)n_kv, i % (size_t)n_kv, (int)x->rank[i], x->n_components);
    return check_shared(f, p, side, err);
}

static int read_all(kvd_h5 *f, kvd_projections *p, const kvd_model_info *model,
                    const char *model_path, kvd_err *err)
{
    char rope[16];
    int64_t heads;
    if (kvd_model_info_read(f, &p->model, err) ||
        kvd_model_info_same(model, model_path, &p->model, f->path, err) ||
        kvd_field_text(f, "/", "origin", p->origin, sizeof p->origin, err) ||
        kvd_field_text(f, "/", "rope", rope, sizeof rope, err) ||
        kvd_field_int(f, "/", "heads", 1, p->model.n_kv_heads, &heads, err))
        return -1;
    p->heads = (int)heads;
    p->before_rope = !strcmp(rope, kvd_model_info_rope(&p->model, true));
    if (!p->before_rope && strcmp(rope, kvd_model_info_rope(&p->model, false)))
        return kvd_fail(err, "'%s': rope is '%s', neither '%s' nor '%s' as its model has it",
                        f->path, rope, kvd_model_info_rope(&p->model, true),
                        kvd_model_info_rope(&p->model, false));
    if (p->model.n_kv_heads % p->heads)
        return kvd_fail(err, "'%s': heads is %d, which does not divide the %d KV heads", f->path,
                        p->heads, p->model.n_kv_heads);
    if (p->heads > 1 && !p->before_rope)
        return kvd_fail(err,
                        "'%s': heads is %d, but keys after RoPE are multiplied head by head: it "
                        "must be 1",
                        f->path, p->heads);
    return kvd_status(read_side(f, p, 0, err) || read_side(f, p, 1, err));
}

int kvd_projections_load(kvd_projections *p, const char *path, const kvd_model_info *model,
                         const char *model_path, kvd_err *err)
{
    kvd_h5 f;
    memset(p, 0, sizeof *p);
    if (kvd_h5_open(&f, path, &kvd_schema_projections, err))
        return -1;
    const int status = read_all(&f, p, model, model_path, err);
    kvd_h5_close(&f, false);
    if (status)
        kvd_projections_release(p);
    return status;
}

void kvd_projections_release(kvd_projections *p)
{
    for (int side = 0; side < 2; side++) {
        free(p->side[side].rank);
        free(p->side[side].down);
        free(p->side[side].up);
    }
    memset(p, 0, sizeof *p);
}

/* Reads a dataset of finite numbers. The caller frees *to. */
static int read_floats(kvd_h5 *f, const char *path, const hsize_t *dims, float **to, kvd_err *err)
{
    const size_t rows = (size_t)dims[1], columns = (size_t)dims[2],
                 n = (size_t)dims[0] * rows * columns;
    if (kvd_field_shape(f, path, 3, dims, err))
        return -1;
    if (!(*to = malloc(n * sizeof **to)))
        return kvd_no_memory(err, "retaining heads", n * sizeof **to);
    if (kvd_h5_read(f, path, 3, dims, H5T_NATIVE_FLOAT, *to, err))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (!isfinite((*to)[i]))
            return kvd_fail(err, "'%s': %s[%zu][%zu][%zu] is not finite as float32", f->path, path,
                            i / columns / rows, i / columns % rows, i % columns);
    return 0;
}

static int read_heads(kvd_h5 *f, kvd_retaining_heads *r, const kvd_model_info *model,
                      const char *model_path, kvd_err *err)
{
    enum { HIDDEN_MOST = 1 << 16 };
    kvd_model_info own;
    char origin[256];
    hsize_t found[3];
    if (kvd_model_info_read(f, &own, err) ||
        kvd_model_info_same(model, model_path, &own, f->path, err) ||
        kvd_field_text(f, "/", "origin", origin, sizeof origin, err) ||
        kvd_h5_shape(f, "/fc1", 3, found, err))
        return -1;
    if (found[1] < 1 || found[1] > HIDDEN_MOST)
        return kvd_fail(err, "'%s': /fc1 has %llu hidden units, not 1 .. %d", f->path,
                        (unsigned long long)found[1], HIDDEN_MOST);
    const hsize_t layers = (hsize_t)own.n_layers, kv = (hsize_t)own.n_kv_heads,
                  inputs = ((hsize_t)own.n_heads + 2 * kv) * (hsize_t)own.d_head,
                  of_fc1[3] = {layers, found[1], inputs}, of_fc2[3] = {layers, kv, found[1]};
    r->hidden = (size_t)found[1];
    return kvd_status(read_floats(f, "/fc1", of_fc1, &r->fc1, err) ||
                      read_floats(f, "/fc2", of_fc2, &r->fc2, err));
}

int kvd_retaining_heads_load(kvd_retaining_heads *r, const char *path, const kvd_model_info *model,
                             const char *model_path, kvd_err *err)
{
    kvd_h5 f;
    memset(r, 0, sizeof *r);
    if (kvd_h5_open(&f, path, &kvd_schema_retaining_heads, err))
        return -1;
    const int status = read_heads(&f, r, model, model_path, err);
    kvd_h5_close(&f, false);
    if (status)
        kvd_retaining_heads_release(r);
    return status;
}

void kvd_retaining_heads_release(kvd_retaining_heads *r)
{
    free(r->fc1);
    free(r->fc2);
    memset(r, 0, sizeof *r);
}
