/* Random weights must be equal on GPU and CPU, bit for bit. */
#include "gpu_case.h"
#include "model/checkpoint/cuda/random.h"
#include "model/checkpoint/random.h"

static void make(kvd_dtype type, const kvd_random_tensor *t, size_t first, size_t stride,
                 size_t rows, size_t cols, unsigned char *out, size_t out_stride)
{
    float *row = need(cols * sizeof *row);
    for (size_t r = 0; r < rows; r++) {
        kvd_random_read(t, first + r * stride, cols, row);
        kvd_from_f32(type, row, out + r * out_stride * kvd_dtype_bytes(type), cols);
    }
    free(row);
}

/* Compares a random tensor made on the GPU with that made on the CPU. Memory around it must not
 * change. */
static void compare(const char *name, kvd_dtype type, const kvd_random_tensor *t, size_t first,
                    size_t stride, size_t rows, size_t cols, size_t out_stride, size_t shift)
{
    const size_t width = kvd_dtype_bytes(type), n = shift + rows * out_stride + cols + 8;
    unsigned char *want = need(n * width);
    memset(want, 0xe5, n * width);
    unsigned char *device = on_device(want, n * width);
    make(type, t, first, stride, rows, cols, want + shift * width, out_stride);
    if (rows == 1)
        check(kvd_gpu_random_fill(type, t, first, cols, device + shift * width, 0), name);
    else
        check(kvd_gpu_random_fill_rows(type, t, first, stride, rows, cols, device + shift * width,
                                       out_stride, 0),
              name);
    unsigned char *const got = from_device(device, n * width);
    size_t wrong = 0, at = 0;
    for (size_t i = n * width; i-- > 0;)
        if (got[i] != want[i]) {
            wrong++;
            at = i / width;
        }
    test_result(!wrong, name, "%s: %zu bytes differ, the first in element %zu",
                kvd_dtype_name(type), wrong, at);
    device_free(device);
    host_free(want, got);
}

static void compare_all(kvd_dtype type)
{
    const kvd_random_tensor a =
        kvd_random_tensor_of(1, "model.layers.3.mlp.up_proj.weight", 0.015625f, 0);
    const kvd_random_tensor b = kvd_random_tensor_of(UINT64_MAX, "lm_head.weight", 0.0117851f, 0);
    const kvd_random_tensor gain = kvd_random_tensor_of(1, "model.norm.weight", 0, 1);
    compare("a million elements", type, &a, 0, 0, 1, 1000003, 0, 0);
    compare("from an odd element", type, &a, 77, 0, 1, 4099, 0, 0);
    compare("behind element 2^33", type, &b, ((size_t)1 << 33) - 5, 0, 1, 3000, 0, 0);
    compare("an address that is not aligned", type, &b, 10, 0, 1, 3000, 0, 3);
    compare("one element", type, &b, 5, 0, 1, 1, 0, 0);
    compare("none", type, &b, 5, 0, 1, 0, 0, 0);
    compare("gains", type, &gain, 0, 0, 1, 4097, 0, 0);
    compare("a share's columns", type, &a, 3 * 5120 + 640, 5120, 300, 640, 640, 0);
    compare("rows apart", type, &a, 11, 4544, 71, 333, 400, 1);
    compare("more rows than blocks", type, &b, 2, 24, 70001, 9, 16, 0);
}

static void time_fill(kvd_dtype type)
{
    const size_t n = (size_t)1 << 30;
    const kvd_random_tensor t = kvd_random_tensor_of(1, "x", 0.01f, 0);
    void *out = NULL;
    double best = 1e30;
    if (cudaMalloc(&out, n * kvd_dtype_bytes(type)) != cudaSuccess) {
        (void)cudaGetLastError();
        printf("skip time of a fill, %s: no memory for it\n", kvd_dtype_name(type));
        return;
    }
    for (int i = 0; i < 5; i++) {
        timer_start(0);
        check(kvd_gpu_random_fill(type, &t, 0, n, out, 0), "fill");
        best = fmin(best, timer_ms(0));
    }
    printf("# %s: %.3g elements per second\n", kvd_dtype_name(type), (double)n / best * 1e3);
    device_free(out);
}

int main(int argc, char **argv)
{
    if (!gpu_devices("random weights on the device", 1))
        return 0;
    compare_all(KVD_F32);
    compare_all(KVD_BF16);
    const kvd_random_tensor t = kvd_random_tensor_of(1, "x", 1, 0);
    test_result(kvd_gpu_random_fill(KVD_F16, &t, 0, 8, NULL, 0) == cudaErrorInvalidValue &&
                    kvd_gpu_random_fill_rows(KVD_F32, &t, 0, 8, (size_t)1 << 30, (size_t)1 << 30,
                                             NULL, 8, 0) == cudaErrorInvalidValue,
                "what cannot be made", "refused");
    if (argc > 1 && strcmp(argv[1], "time") == 0) {
        time_fill(KVD_F32);
        time_fill(KVD_BF16);
    }
    return failures != 0;
}
