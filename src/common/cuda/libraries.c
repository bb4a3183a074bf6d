#include "common/cuda/libraries.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define STRING_(x) #x
#define STRING(x)  STRING_(x)

/* a CUDA library that is loaded at run time */
typedef struct {
    const char *title, *file;
    /* [n] names of the functions to look up in the loaded library */
    const char *const *name;
    size_t n;
    void **table;
    int state; /* 0: not tried yet, 1: loaded, -1: failed, with the reason in `why` */
    char why[256];
} library;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void open_library(library *l)
{
    void *so = dlopen(l->file, RTLD_NOW | RTLD_LOCAL);
    l->state = -1;
    if (!so) {
        (void)snprintf(l->why, sizeof l->why, "%s: %s", l->title, dlerror());
        return;
    }
    for (size_t i = 0; i < l->n; i++)
        if (!(l->table[i] = dlsym(so, l->name[i]))) {
            (void)snprintf(l->why, sizeof l->why, "%s: %s has no %s", l->title, l->file,
                           l->name[i]);
            return;
        }
    l->state = 1;
}

static const void *load(library *l, kvd_err *err)
{
    (void)pthread_mutex_lock(&lock);
    if (!l->state)
        open_library(l);
    (void)pthread_mutex_unlock(&lock);
    if (l->state > 0)
        return l->table;
    kvd_fail(err, "%s", l->why);
    return NULL;
}

#define NAME(name) #name,
#define LIBRARY(TITLE, FILE, LIST, TYPE)                                                           \
    static TYPE functions;                                                                         \
    static const char *const names[] = {LIST(NAME)};                                               \
    static library l = {.title = TITLE,                                                            \
                        .file = FILE,                                                              \
                        .name = names,                                                             \
                        .n = sizeof names / sizeof *names,                                         \
                        .table = (void **)&functions};                                             \
    _Static_assert(sizeof functions == sizeof(void *) * (sizeof names / sizeof *names),            \
                   "a table of pointers");                                                         \
    return load(&l, err)

const kvd_cublas *kvd_cublas_load(kvd_err *err)
{
    LIBRARY("cuBLAS", "libcublas.so." STRING(CUBLAS_VER_MAJOR), KVD_CUBLAS, kvd_cublas);
}

const kvd_cusolver *kvd_cusolver_load(kvd_err *err)
{
    LIBRARY("cuSOLVER", "libcusolver.so." STRING(CUSOLVER_VER_MAJOR), KVD_CUSOLVER, kvd_cusolver);
}

#ifdef KVD_NCCL_HERE
const kvd_nccl *kvd_nccl_load(kvd_err *err)
{
    LIBRARY("NCCL", "libnccl.so." STRING(NCCL_MAJOR), KVD_NCCL, kvd_nccl);
}
#endif

int kvd_cublas_check(cublasStatus_t s, const char *what, kvd_err *err)
{
    if (s == CUBLAS_STATUS_SUCCESS)
        return 0;
    const kvd_cublas *blas = kvd_cublas_load(err);
    return kvd_fail(err, "%s: cuBLAS: %s", what,
                    blas ? blas->cublasGetStatusString(s) : "not there");
}

cublasHandle_t kvd_cublas_open(const char *what, kvd_err *err)
{
    const kvd_cublas *blas = kvd_cublas_load(err);
    cublasHandle_t h = NULL;
    return blas && !kvd_cublas_check(blas->cublasCreate_v2(&h), what, err) ? h : NULL;
}

void kvd_cublas_close(cublasHandle_t h)
{
    kvd_err ignored;
    if (h)
        kvd_cublas_load(&ignored)->cublasDestroy_v2(h);
}

cublasStatus_t kvd_cublas_gemm(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b,
                               int m, int n, int k, cudaDataType type, const void *a, int lda,
                               const void *b, int ldb, void *c, int ldc)
{
    const float one = 1, zero = 0;
    kvd_err ignored;
    return kvd_cublas_load(&ignored)->cublasGemmEx(h, op_a, op_b, m, n, k, &one, a, type, lda, b,
                                                   type, ldb, &zero, c, type, ldc,
                                                   CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
