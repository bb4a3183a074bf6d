/* Computes scales for floating-point quantisation (fp8, nvfp4) from calibration data: for the whole
 * model, per layer or per KV head. */
#include "methods/bits/bits.h"

#include <math.h>
#include <stdlib.h>

#include "methods/bits/calibration.h"

static float *place(const kvd_scales *scales, int side, int layer, int kv_head)
{
    return scales->scale + ((size_t)layer * scales->n_kv_heads + (size_t)kv_head) * KVD_N_SIDES +
           (size_t)side;
}

static int set_layer(const kvd_scales *scales, kvd_scale_of of, kvd_calibration_rows *rows,
                     int side, int layer, float largest, kvd_err *err)
{
    const int heads = (int)scales->n_kv_heads;
    float most = 0;
    for (int g = 0; g < heads; g++) {
        size_t width;
        if (kvd_calibration_rows_read(rows, (kvd_side)side, layer, g, &width, err))
            return -1;
        if (of == KVD_SCALE_HEAD)
            most = 0;
        for (size_t i = 0; i < rows->n * width; i++)
            most = fmaxf(most, fabsf(rows->cut[i]));
        *place(scales, side, layer, g) = most > 0 ? most / largest : 1;
    }
    for (int g = 0; of == KVD_SCALE_LAYER && g < heads; g++)
        *place(scales, side, layer, g) = *place(scales, side, layer, heads - 1);
    return 0;
}

static int calibrate(kvd_scales *scales, kvd_scale_of of, const kvd_method_setup *s, double rows,
                     float largest, kvd_err *err)
{
    const kvd_config *const c = s->config;
    const bool pre = c->positions == KVD_POSITIONS_ROPE && s->dims && s->dims->rebuild;
    const size_t n = kvd_calibration_tokens(s, rows),
                 numbers = (size_t)c->n_layers * (size_t)c->n_kv_heads * KVD_N_SIDES;
    kvd_calibration_rows r;
    if (kvd_calibration_fits(s, pre, err))
        return -1;
    scales->n_kv_heads = (size_t)c->n_kv_heads;
    scales->scale = malloc(numbers * sizeof *scales->scale);
    int status = kvd_calibration_rows_open(&r, s, pre, n, err);
    if (!status && !scales->scale)
        status = kvd_no_memory(err, "scales", numbers * sizeof *scales->scale);
    for (int l = 0; !status && l < c->n_layers; l++)
        for (int side = 0; !status && side < KVD_N_SIDES; side++)
            status = set_layer(scales, of, &r, side, l, largest, err);
    kvd_calibration_rows_close(&r);
    return status;
}

int kvd_scales_open(const kvd_parameter_values *v, int key, const kvd_method_setup *s,
                    float largest, void **self, kvd_err *err)
{
    const kvd_scale_of of = (kvd_scale_of)v->value[key];
    kvd_scales *const scales = calloc(1, sizeof *scales);
    if (!scales)
        return kvd_no_memory(err, "a method", sizeof *scales);
    scales->v = v;
    if (of != KVD_SCALE_ONE && calibrate(scales, of, s, v->value[key + 1], largest, err)) {
        kvd_scales_close(scales);
        return -1;
    }
    *self = scales;
    return 0;
}

void kvd_scales_close(void *self)
{
    kvd_scales *const scales = self;
    free(scales->scale);
    free(scales);
}

float kvd_scales_at(const kvd_scales *scales, kvd_side side, int layer, int kv_head)
{
    return scales->scale ? *place(scales, (int)side, layer, kv_head) : 1;
}
