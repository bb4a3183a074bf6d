/* Methods mxfp4 and nvfp4: blocks of 4-bit floating-point numbers (E2M1) with a scale per block.
 *
 * mxfp4 follows the OCP Microscaling Formats Specification 1.0 (2023); nvfp4 follows NVIDIA, arXiv
 * 2509.25149, appendix B. */
#include <math.h>

#include "methods/bits/bits.h"
#include "methods/bits/minifloat.h"

/* Quantises blocks of `size` numbers. scale_of returns a block's scale from the block's largest
 * magnitude. */
static void code_blocks(const kvd_bits_block *b, size_t size,
                        float (*scale_of)(float most, float t), float t, float *decoded,
                        kvd_bits_count *count)
{
    const size_t blocks = (b->d + size - 1) / size;
    for (size_t i = 0; i < b->n; i++)
        for (size_t at = 0; at < b->d; at += size) {
            const size_t n = b->d - at < size ? b->d - at : size;
            const float *const x = b->x + i * b->d + at;
            float *const y = decoded + i * b->d + at, most = 0;
            for (size_t j = 0; j < n; j++)
                most = fmaxf(most, fabsf(x[j]));
            const float scale = scale_of(most, t);
            for (size_t j = 0; j < n; j++)
                y[j] = scale > 0 ? kvd_minifloat_round(&kvd_e2m1, x[j] / scale) * scale : 0;
        }
    *count = (kvd_bits_count){4 * (double)(b->n * b->d),
                              (double)(b->n * (8 * blocks + 4 * (blocks * size - b->d)))};
}

static const kvd_parameter mxfp4_parameters[] = {
    {NULL, 0, 0, 0, false, NULL},
};

static float power_of_two(float most, float t)
{
    enum { LARGEST_EXPONENT = 2, EXPONENTS = 127 };
    int exponent;
    (void)t;
    if (!(most > 0))
        return 1;
    (void)frexpf(most, &exponent); /* `most` is in [2^(exponent - 1), 2^exponent) */
    exponent -= 1 + LARGEST_EXPONENT;
    exponent = exponent < -EXPONENTS ? -EXPONENTS : exponent > EXPONENTS ? EXPONENTS : exponent;
    return ldexpf(1, exponent);
}

static int mxfp4_code(const void *self, const kvd_bits_block *b, float *decoded,
                      kvd_bits_count *count, kvd_err *err)
{
    (void)self, (void)err;
    code_blocks(b, 32, power_of_two, 1, decoded, count);
    return 0;
}

const kvd_bits_method kvd_bits_mxfp4 = {
    .info = {.name = "mxfp4",
             .summary = "blocks of 32 E2M1 numbers with a power of two as scale (OCP MX)",
             .parameter = mxfp4_parameters,
             .gpu = &kvd_gpu_packed},
    .code = mxfp4_code,
};

enum { SCALE, ROWS };
static const kvd_parameter nvfp4_parameters[] = {
    {"scale", 0, 0, 2, true,
     "scale of the tensor from --calibration: 0 none (1), 1 per layer and side, 2 per KV head and "
     "side"},
    {"rows", 4096, 64, 1 << 20, true, "number of calibration tokens read for scales"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_idle_key idle[] = {{"rows", "scale", 0, 0}, {NULL, NULL, 0, 0}};

static bool calibrated(const kvd_parameter_values *v)
{
    return v->value[SCALE] > 0;
}

static int nvfp4_open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                      kvd_err *err)
{
    return kvd_scales_open(v, SCALE, s, kvd_e2m1.largest * kvd_e4m3.largest, self, err);
}

static float e4m3_scale(float most, float t)
{
    return kvd_minifloat_round(&kvd_e4m3, most / kvd_e2m1.largest / t) * t;
}

static int nvfp4_code(const void *self, const kvd_bits_block *b, float *decoded,
                      kvd_bits_count *count, kvd_err *err)
{
    (void)err;
    code_blocks(b, 16, e4m3_scale, kvd_scales_at(self, b->side, b->layer, b->kv_head), decoded,
                count);
    return 0;
}

const kvd_bits_method kvd_bits_nvfp4 = {
    .info = {.name = "nvfp4",
             .summary = "blocks of 16 E2M1 numbers with E4M3 scales (NVIDIA)",
             .parameter = nvfp4_parameters,
             .idle = idle,
             .gpu = &kvd_gpu_packed},
    .calibrated = calibrated,
    .open = nvfp4_open,
    .close = kvd_scales_close,
    .code = nvfp4_code,
};
