/* Plugin for tests/methods/test_plugin.sh that replaces two layers by their mean, or breaks a rule
 * of the plugin interface, selected by parameter `how`. */
#include <kvdim/plugin_layers.h>
#include <math.h>

static const kvdim_key keys[] = {{"how", 0, 0, 100, 1, "rule that is broken"}};

static int32_t group(const double *value, const kvdim_model *model, int32_t layer)
{
    const int how = (int)value[0];
    if (how == 1)
        return 0;
    if (how == 2)
        return model->n_layers + 1;
    if (how == 3)
        return INT32_MIN;
    return layer % 2 == 0 && layer + 1 < model->n_layers ? 2 : 1;
}

static int merge(const double *value, const kvdim_layers *b, double *numbers, double *bits,
                 char *error)
{
    const int how = (int)value[0];
    const size_t n = b->n * b->heads * b->d;
    (void)error;
    for (size_t i = 0; i < n; i++)
        b->x[0][i] = b->x[1][i] = (b->x[0][i] + b->x[1][i]) / 2;
    *numbers = how == 4 ? -1 : how == 5 ? NAN : (double)n;
    *bits = how == 6 ? INFINITY : 0;
    if (how == 7)
        b->x[1][3] = INFINITY;
    if (how == 8)
        b->x[1][n] = 0;
    return how == 9;
}

static const kvdim_layers_method mean = {.method = {.struct_size = sizeof mean,
                                                    .axis = KVDIM_AXIS_LAYERS,
                                                    .name = "meanlayers",
                                                    .summary = "pairs of layers as their mean",
                                                    .key = keys,
                                                    .n_keys = 1},
                                         .group = group,
                                         .merge = merge};

/* Merges one pair of layers, which the seed chooses. */
static int32_t group_drawn(const double *value, const kvdim_model *model, int32_t layer)
{
    (void)value;
    return layer == 2 * (int32_t)(model->seed % 2) && layer + 1 < model->n_layers ? 2 : 1;
}

static const kvdim_layers_method drawn = {.method = {.struct_size = sizeof drawn,
                                                     .axis = KVDIM_AXIS_LAYERS,
                                                     .name = "drawnlayers",
                                                     .summary = "a pair of layers as their mean",
                                                     .key = keys,
                                                     .n_keys = 1,
                                                     .needs = KVDIM_NEEDS_SEED},
                                          .group = group_drawn,
                                          .merge = merge};
KVDIM_PLUGIN("1.0", &mean.method, &drawn.method)
