/* Copies the tables of quantisation methods (kvquant, fp8, nvfp4, turboquant) to the device. */
#include "methods/bits/cuda/packed.h"
#include "methods/bits/cuda/packed_decode.h"
#include "methods/bits/kvquant.h"
#include "methods/bits/scales.h"

static const char what[] = "coded cache";

static int copy_tables(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                       kvd_device_memory *memory, kvd_err *err)
{
    const kvd_config *const config = c->config;
    const size_t layers = (size_t)config->n_layers, heads = (size_t)config->n_kv_heads;
    kvd_kvquant_tables t;
    kvd_kvquant_tables_of(plan->bits_self, &t);
    const size_t first = (size_t)c->share->first_kv_head * t.range_width * 2;
    const size_t n_levels = (size_t)4 << layer[0].form.bits, n_range = heads * t.range_width * 2;
    const float *const level =
        kvd_device_copy(memory, t.levels, layers * n_levels * sizeof *level, what, NULL, err);
    const float *const range =
        level ? kvd_device_copy(memory, t.range, layers * n_range * sizeof *range, what, NULL, err)
              : NULL;
    if (!range || kvd_cuda_check(cudaStreamSynchronize(NULL), what, err))
        return -1;
    for (size_t l = 0; l < layers; l++) {
        layer[l].level = level + l * n_levels;
        layer[l].range = range + l * n_range + first;
        layer[l].range_width = (int32_t)t.range_width;
    }
    return 0;
}

/* Copies the calibrated scales of fp8 and nvfp4 to the device. Does nothing if there are none. */
static int copy_scales(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                       kvd_device_memory *memory, kvd_err *err)
{
    const kvd_scales *const scales = plan->bits == &kvd_bits_mxfp4 ? NULL : plan->bits_self;
    const int layers = c->config->n_layers, heads = c->config->n_kv_heads;
    if (!scales || !scales->scale)
        return 0;
    const size_t each = (size_t)heads * KVD_N_SIDES, bytes = (size_t)layers * each * sizeof(float);
    const float *const scale = kvd_device_copy(memory, scales->scale, bytes, what, NULL, err);
    if (!scale || kvd_cuda_check(cudaStreamSynchronize(NULL), what, err))
        return -1;
    for (int l = 0; l < layers; l++)
        layer[l].scale = scale + (size_t)l * each + (size_t)c->share->first_kv_head * KVD_N_SIDES;
    return 0;
}

static int copy_turned(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                       kvd_device_memory *memory, kvd_err *err)
{
    kvd_packed_turned t;
    const float *level = NULL, *range = NULL, *matrix[4] = {NULL};
    const size_t each = sizeof *level;
    int copied = !kvd_gpu_packed_turned_make(plan, layer, &t, err) &&
                 (level = kvd_device_copy(memory, t.level, t.n_level * each, what, NULL, err)) &&
                 (range = kvd_device_copy(memory, t.range, t.n_range * each, what, NULL, err));
    const float *const from[] = {t.turn_rows, t.turn_outputs, t.sketch_rows, t.sketch_back};
    for (int i = 0; copied && i < 4 && from[i]; i++)
        copied = (matrix[i] =
                      kvd_device_copy(memory, from[i], t.n_matrix * each, what, NULL, err)) != NULL;
    copied = copied && !kvd_cuda_check(cudaStreamSynchronize(NULL), what, err);
    kvd_gpu_packed_turned_free(&t);
    for (int l = 0; copied && l < c->config->n_layers; l++) {
        layer[l].level = level;
        layer[l].range = range;
        layer[l].turn_rows = matrix[0];
        layer[l].turn_outputs = matrix[1];
        layer[l].sketch_rows = matrix[2];
        layer[l].sketch_back = matrix[3];
    }
    return copied ? 0 : -1;
}

/*
 * Computes the table of RoPE rotations, which all layers use. Does nothing unless keys were
 * quantised before RoPE.
 */
static int make_rope_table(const kvd_paged_cache *c, kvd_packed_args *layer,
                           kvd_device_memory *memory, kvd_err *err)
{
    const int d = c->config->d_head;
    if (!layer[0].before_rope || d % 32)
        return 0;
    uint32_t *const turn = kvd_device_new(memory, kvd_packed_rope_table_bytes(d), what, err);
    if (!turn ||
        kvd_cuda_check(kvd_packed_rope_table(c->cosine, c->sine, d, turn, NULL), what, err) ||
        kvd_cuda_check(cudaStreamSynchronize(NULL), what, err))
        return -1;
    for (int l = 0; l < c->config->n_layers; l++)
        layer[l].turn = turn;
    return 0;
}

int kvd_gpu_packed_tables(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                          kvd_device_memory *memory, kvd_err *err)
{
    return (kvd_gpu_packed_has_levels(plan) &&
            (copy_tables(plan, c, layer, memory, err) || make_rope_table(c, layer, memory, err))) ||
                   (kvd_gpu_packed_has_floats(plan) && copy_scales(plan, c, layer, memory, err)) ||
                   (kvd_gpu_packed_is_turned(plan) && copy_turned(plan, c, layer, memory, err))
               ? -1
               : 0;
}
