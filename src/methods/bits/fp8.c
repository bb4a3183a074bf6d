/*
 * Method fp8: keys and values in E4M3 or E5M2 (OCP 8-bit Floating Point Specification 1.0, 2023;
 * Micikevicius et al. 2022, arXiv 2209.05433).
 */
#include <stdlib.h>

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

typedef struct {
    kvd_scales scales;
    const kvd_minifloat *format;
} fp8;

static bool calibrated(const kvd_parameter_values *v)
{
    return v->value[SCALE] > 0;
}

static void close(void *self)
{
    fp8 *const f = self;
    kvd_scales_release(&f->scales);
    free(f);
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    fp8 *const f = calloc(1, sizeof *f);
    if (!f)
        return kvd_no_memory(err, "a method", sizeof *f);
    f->format = v->value[MANTISSA] > 2 ? &kvd_e4m3 : &kvd_e5m2;
    if (kvd_scales_make(&f->scales, (kvd_scale_of)v->value[SCALE], s, (size_t)v->value[ROWS],
                        f->format->largest, err)) {
        close(f);
        return -1;
    }
    *self = f;
    return 0;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const fp8 *const f = self;
    const float scale = kvd_scales_at(&f->scales, b->side, b->layer, b->kv_head);
    (void)err;
    for (size_t i = 0; i < b->n * b->d; i++)
        decoded[i] = kvd_minifloat_round(f->format, b->x[i] / scale) * scale;
    *count = (kvd_bits_count){f->format->bits * (double)(b->n * b->d), 0};
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
    .close = close,
    .code = code,
};
