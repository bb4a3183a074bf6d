/* Loads cuBLAS, cuSOLVER and NCCL on first use. Thread-safe. */
#ifndef KVD_COMMON_CUDA_LIBRARIES_H
#define KVD_COMMON_CUDA_LIBRARIES_H

#include <cublas_v2.h>
#include <cusolverDn.h>

#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef __cplusplus /* for C only: C++ overloads some of these functions */

#define KVD_CUBLAS(X)                                                                              \
    X(cublasCreate_v2)                                                                             \
    X(cublasDestroy_v2)                                                                            \
    X(cublasSetStream_v2)                                                                          \
    X(cublasSetMathMode)                                                                           \
    X(cublasSetWorkspace_v2)                                                                       \
    X(cublasGetVersion_v2)                                                                         \
    X(cublasGemmEx)                                                                                \
    X(cublasGemmBatchedEx)                                                                         \
    X(cublasGemmStridedBatchedEx)                                                                  \
    X(cublasDgemmStridedBatched)                                                                   \
    X(cublasGetStatusString)

#define KVD_CUSOLVER(X)                                                                            \
    X(cusolverDnCreate)                                                                            \
    X(cusolverDnDestroy)                                                                           \
    X(cusolverDnSetStream)                                                                         \
    X(cusolverDnCreateParams)                                                                      \
    X(cusolverDnDestroyParams)                                                                     \
    X(cusolverDnXsyevBatched_bufferSize)                                                           \
    X(cusolverDnXsyevBatched)                                                                      \
    X(cusolverGetVersion)

#define KVD_FUNCTION(name) __typeof__(&name) name;

typedef struct {
    KVD_CUBLAS(KVD_FUNCTION)
} kvd_cublas;

typedef struct {
    KVD_CUSOLVER(KVD_FUNCTION)
} kvd_cusolver;

const kvd_cublas *kvd_cublas_load(kvd_err *err);
const kvd_cusolver *kvd_cusolver_load(kvd_err *err);

#if defined(__has_include)
#if __has_include(<nccl.h>)
#define KVD_NCCL_HERE 1
#include <nccl.h>

#define KVD_NCCL(X)                                                                                \
    X(ncclGetVersion)                                                                              \
    X(ncclCommInitAll)                                                                             \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommAbort)                                                                               \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)                                                                                \
    X(ncclAllReduce)                                                                               \
    X(ncclBroadcast)                                                                               \
    X(ncclSend)                                                                                    \
    X(ncclRecv)                                                                                    \
    X(ncclGetErrorString)

typedef struct {
    KVD_NCCL(KVD_FUNCTION)
} kvd_nccl;

const kvd_nccl *kvd_nccl_load(kvd_err *err);
#endif
#endif

#undef KVD_FUNCTION

#endif

/* Returns 0 if s is CUBLAS_STATUS_SUCCESS. Else returns -1 and fills *err with "WHAT: cuBLAS:
 * ...". */
int kvd_cublas_check(cublasStatus_t s, const char *what, kvd_err *err);

/* Wrappers of cuBLAS functions, for CUDA C++ code. kvd_cublas_gemm multiplies matrices of the
 * 16-bit number type `type`, and adds the products in float32. */
cublasHandle_t kvd_cublas_open(const char *what, kvd_err *err);
void kvd_cublas_close(cublasHandle_t h);
cublasStatus_t kvd_cublas_gemm(cublasHandle_t h, cublasOperation_t op_a, cublasOperation_t op_b,
                               int m, int n, int k, cudaDataType type, const void *a, int lda,
                               const void *b, int ldb, void *c, int ldc);

#ifdef __cplusplus
}
#endif
#endif
