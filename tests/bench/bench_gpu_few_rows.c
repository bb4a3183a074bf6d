/* usage: bench_gpu_few_rows
 * Times the matrix products of a decode step of Llama 3.1 8B, by cuBLAS and by kvdim's kernel for
 * few rows. Launches use different matrices, so that L2 does not hold them. */

#include "common/cuda/libraries.h"
#include "engine/cuda/few_rows.h"
#include "gpu_case.h"
#include "kernels/cuda/ceilings.h"
#include "model/checkpoint/cuda/random.h"

enum { LAUNCHES = 24, WARM_UP = 4, ROWS = 64, WIDEST = 128256, LONGEST = 14336 };
static const size_t room = (size_t)3 << 30; /* bytes of all matrices together */

typedef struct {
    const char *name;
    kvd_few_kind kind;
    int norm;
    size_t in, out;
} shape;

static const shape shapes[] = {{"qkv", KVD_FEW_STORE, 1, 4096, 6144},
                               {"o", KVD_FEW_ADD, 0, 4096, 4096},
                               {"gate, up", KVD_FEW_SWIGLU, 1, 4096, 14336},
                               {"down", KVD_FEW_ADD, 0, 14336, 4096},
                               {"head", KVD_FEW_LOGITS, 1, 4096, WIDEST}};

static char *matrices;
static float *residual, *gain, *y;
static void *x;
static kvd_gpu_bad *bad;
static cudaStream_t stream;
static const kvd_cublas *lib;
static cublasHandle_t blas;

static size_t rows_of(const shape *s)
{
    return s->kind == KVD_FEW_SWIGLU ? 2 * s->out : s->out;
}

static void few(const shape *s, size_t n, const void *w)
{
    const kvd_few_rows p = {.kind = s->kind,
                            .n = n,
                            .in = s->in,
                            .out = s->out,
                            .w = w,
                            .x = s->norm ? NULL : x,
                            .residual = residual,
                            .gain = gain,
                            .eps = 1e-5,
                            .bad = bad,
                            .y = y};
    check(kvd_few_rows_run(&p, stream), "kvd_few_rows_run");
}

static void cublas(const shape *s, size_t n, const void *w)
{
    const float one = 1, beta = s->kind == KVD_FEW_ADD ? 1 : 0;
    const int wide = s->kind == KVD_FEW_ADD || s->kind == KVD_FEW_LOGITS;
    kvd_err err;
    if (kvd_cublas_check(lib->cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)rows_of(s), (int)n,
                                           (int)s->in, &one, w, CUDA_R_16BF, (int)s->in, x,
                                           CUDA_R_16BF, (int)s->in, &beta, y,
                                           wide ? CUDA_R_32F : CUDA_R_16BF, (int)rows_of(s),
                                           CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                         s->name, &err)) {
        printf("not ok %s\n", err.msg);
        exit(1);
    }
}

static double measure(const shape *s, size_t n, void (*run)(const shape *, size_t, const void *))
{
    const size_t bytes = rows_of(s) * s->in * 2, places = room / bytes;
    for (int i = -WARM_UP; i < LAUNCHES; i++) {
        if (i == 0)
            timer_start(stream);
        run(s, n, matrices + (size_t)(i + WARM_UP) % places * bytes);
    }
    return 1e-3 * timer_ms(stream) / LAUNCHES;
}

static void fill(kvd_dtype type, const char *name, float size, size_t n, void *to)
{
    const kvd_random_tensor t = kvd_random_tensor_of(1, name, size, 0);
    check(kvd_gpu_random_fill(type, &t, 0, n, to, stream), name);
}

int main(void)
{
    kvd_err err = {""};
    kvd_ceiling ceiling;
    if (!gpu_devices("few_rows", 1))
        return 0;
    if (kvd_ceiling_read(0, &ceiling, &err) || !(lib = kvd_cublas_load(&err)) ||
        !(blas = kvd_cublas_open("bench", &err))) {
        printf("not ok %s\n", err.msg);
        return 1;
    }
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    lib->cublasSetStream_v2(blas, stream);
    matrices = on_device(NULL, room);
    residual = on_device(NULL, ROWS * LONGEST * sizeof *residual);
    gain = on_device(NULL, LONGEST * sizeof *gain);
    x = on_device(NULL, ROWS * LONGEST * 2);
    y = on_device(NULL, (size_t)ROWS * WIDEST * sizeof *y);
    bad = on_device(NULL, sizeof *bad);
    fill(KVD_BF16, "w", 1.0F / 64, room / 2, matrices);
    fill(KVD_F32, "residual", 1, ROWS * LONGEST, residual);
    fill(KVD_F32, "gain", 1, LONGEST, gain);
    fill(KVD_BF16, "x", 1, ROWS * LONGEST, x);
    printf("read %.3f TB/s\n", ceiling.rate / 1e12);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t n = 1; n <= ROWS; n *= 2) {
            const shape *const s = &shapes[i];
            const double bytes = 2.0 * (double)(rows_of(s) * s->in), c = measure(s, n, cublas);
            printf("%-9s %2zu rows: cuBLAS %7.2f us %5.1f %%", s->name, n, 1e6 * c,
                   100 * bytes / c / ceiling.rate);
            if (kvd_few_rows_take(s->kind, n, s->in)) {
                const double f = measure(s, n, few);
                printf(", few_rows %7.2f us %5.1f %%", 1e6 * f, 100 * bytes / f / ceiling.rate);
            }
            printf("\n");
        }
    return 0;
}
