/* Method fp8: keys and values in E4M3 or E5M2 (OCP 8-bit floating point, 2023). */
#include "methods/bits/bits.h"
#include "methods/bits/minifloat.h"

enum { MANTISSA, SCALE, ROWS };
static const kvd_parameter parameters[] = {
    {"mantissa", 3, 2, 3, true, "bits of the mantissa: 3 is E4M3, 2 is E5M2"},
    {"scale", 0, 0, 2, true,
     "scale from --calibration: 0 none (1), 1 per layer and side, 2 per KV head and side"},
    {"rows", 4096, 64, 1 << 20, true, "number of calibration tokens read for scales"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_idle_key idle[] = {{"rows", "scale", 0, 0}, {NULL, NULL, 0, 0}};

static const kvd_minifloat *format_of(const kvd_parameter_values *v)
{
    return v->value[MANTISSA] > 2 ? &kvd_e4m3 : &kvd_e5m2;
}

static bool calibrated(const kvd_parameter_values *v)
{
    return v->value[SCALE] > 0;
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    return kvd_scales_open(v, SCALE, s, format_of(v)->largest, self, err);
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const kvd_scales *const scales = self;
    const kvd_minifloat *const format = format_of(scales->v);
    const float scale = kvd_scales_at(scales, b->side, b->layer, b->kv_head);
    (void)err;
    for (size_t i = 0; i < b->n * b->d; i++)
        decoded[i] = kvd_minifloat_round(format, b->x[i] / scale) * scale;
    *count = (kvd_bits_count){format->bits * (double)(b->n * b->d), 0};
    return 0;
}

const kvd_bits_method kvd_bits_fp8 = {
    .info = {.name = "fp8",
             .summary = "floating-point numbers of 8 bits, E4M3 or E5M2, as serving engines have",
             .parameter = parameters,
             .idle = idle,
             .gpu = &kvd_gpu_packed},
    .calibrated = calibrated,
    .open = open,
    .close = kvd_scales_close,
    .code = code,
};
