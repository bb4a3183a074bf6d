/* Plugin for tests/methods/test_plugin.sh that removes dimensions, or returns bad matrices. */
#include <kvdim/plugin_dims.h>
#include <math.h>
#include <string.h>

static const kvdim_key keys[] = {
    {"width", 64, 1, 4096, 1, "dimensions of keys and values that are stored"},
    {"how", 0, 0, 100, 1, "rule that is broken"},
};

static int project(const double *value, const kvdim_model *model, const kvdim_rows *rows,
                   kvdim_matrices *m, char *error)
{
    const size_t d = rows->d, width = (size_t)value[0] < d ? (size_t)value[0] : d;
    const int how = (int)value[1];
    (void)error;
    if ((size_t)model->d_head != d || m->d_qk != model->d_head)
        return -1;
    memset(m->a_q, 0, d * width * sizeof *m->a_q);
    memset(m->b_v, 0, d * width * sizeof *m->b_v);
    for (size_t i = 0; i < width; i++)
        m->a_q[i * width + i] = m->b_v[i * d + i] = 1;
    memcpy(m->a_k, m->a_q, d * width * sizeof *m->a_q);
    memcpy(m->a_v, m->a_q, d * width * sizeof *m->a_q);
    m->d_qk = m->d_v = (int32_t)width;
    if (how == 1)
        m->d_qk = 0;
    if (how == 2)
        m->d_v = INT32_MAX;
    if (how == 3)
        m->a_k[width] = NAN;
    if (how == 4)
        m->b_v[d * d] = 0;
    return how == 5;
}

/* Makes projection matrices of Q, K and V for one head. Fails unless there are 1024 calibration
 * vectors and Q, K and V differ. */
static int fitted(const double *value, const kvdim_model *model, const kvdim_rows *rows,
                  kvdim_matrices *m, char *error)
{
    if (rows->n != 1024 || !memcmp(rows->q, rows->k, rows->d * sizeof *rows->q) ||
        !memcmp(rows->k, rows->v, rows->d * sizeof *rows->k))
        return -1;
    return project(value, model, rows, m, error);
}

static int prune(const double *value, const kvdim_channels *c, uint8_t *keep, size_t *newest,
                 char *error)
{
    const int how = (int)value[1];
    (void)error;
    for (size_t i = 0; i < c->d; i++)
        keep[i] = how == 6 ? 0 : how == 7 ? 9 : i % 2 == 0;
    *newest = how == 8 ? SIZE_MAX : 0;
    if (how == 9)
        keep[c->d] = 1;
    return how == 10;
}

#define METHOD(title)                                                                              \
    .struct_size = sizeof(kvdim_dims_method), .axis = KVDIM_AXIS_DIMS, .name = title,              \
    .summary = "a part of every head", .key = keys, .n_keys = 2, .sweep_key = "width",             \
    .sweep_most = 60, .sweep_least = 20

static const kvdim_dims_method first = {.method = {METHOD("firstdims")}, .project = project};
static const kvdim_dims_method rows = {
    .method = {METHOD("fitteddims"), .needs = KVDIM_NEEDS_CALIBRATION}, .project = fitted};
static const kvdim_dims_method seeded = {
    .method = {METHOD("seededdims"), .needs = KVDIM_NEEDS_SEED}, .project = project};
static const kvdim_dims_method even = {.method = {METHOD("evenchannels")}, .prune = prune};
KVDIM_PLUGIN("1.0", &first.method, &rows.method, &seeded.method, &even.method)
