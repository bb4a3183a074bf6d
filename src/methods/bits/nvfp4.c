/*
 * Method nvfp4: blocks of 16 numbers in E2M1, scale s per block, scale t per tensor (NVIDIA,
 * "Pretraining Large Language Models with NVFP4", 2025, arXiv 2509.25149, appendix B):
 *   s = E4M3(max |x| / 6 / t), x^ = E2M1(x / (s t)) s t, t = 1 or (largest calibration magnitude) /
 *   (6 * 448)
 * The last block is zero-padded.
 */
#include <math.h>
#include <stdlib.h>

#include "methods/bits/bits.h"
#include "methods/bits/minifloat.h"

enum { SCALE, ROWS };
static const kvd_parameter parameters[] = {
    {"scale", 0, 0, 2, true,
     "scale of the tensor from --calibration: 0 none (1), 1 per layer and side, 2 per KV head and "
     "side"},
    {"rows", 4096, 64, 1 << 20, true, "number of calibration tokens read for scales"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_idle_key idle[] = {{"rows", "scale", 0, 0}, {NULL, NULL, 0, 0}};

enum { BLOCK = 16 };

static bool calibrated(const kvd_parameter_values *v)
{
    return v->value[SCALE] > 0;
}

static void close(void *self)
{
    kvd_scales *const scales = self;
    kvd_scales_release(scales);
    free(scales);
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    kvd_scales *const scales = calloc(1, sizeof *scales);
    if (!scales)
        return kvd_no_memory(err, "a method", sizeof *scales);
    if (kvd_scales_make(scales, (kvd_scale_of)v->value[SCALE], s, (size_t)v->value[ROWS],
                        kvd_e2m1.largest * kvd_e4m3.largest, err)) {
        close(scales);
        return -1;
    }
    *self = scales;
    return 0;
}

/* Quantises one block of n numbers. t: scale of the whole tensor. */
static void code_block(const float *x, size_t n, float t, float *y)
{
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    const float scale = kvd_minifloat_round(&kvd_e4m3, most / kvd_e2m1.largest / t) * t;
    for (size_t i = 0; i < n; i++)
        y[i] = scale > 0 ? kvd_minifloat_round(&kvd_e2m1, x[i] / scale) * scale : 0;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const float t = kvd_scales_at(self, b->side, b->layer, b->kv_head);
    const size_t blocks = (b->d + BLOCK - 1) / BLOCK;
    (void)err;
    for (size_t i = 0; i < b->n; i++)
        for (size_t at = 0; at < b->d; at += BLOCK)
            code_block(b->x + i * b->d + at, b->d - at < BLOCK ? b->d - at : BLOCK, t,
                       decoded + i * b->d + at);
    *count = (kvd_bits_count){4 * (double)(b->n * b->d),
                              (double)(b->n * (8 * blocks + 4 * (blocks * BLOCK - b->d)))};
    return 0;
}

const kvd_bits_method kvd_bits_nvfp4 = {
    .info = {.name = "nvfp4",
             .summary = "blocks of 16 E2M1 numbers with E4M3 scales (NVIDIA)",
             .parameter = parameters,
             .idle = idle,
             .gpu = &kvd_gpu_packed},
    .calibrated = calibrated,
    .open = open,
    .close = close,
    .code = code,
};
