/* Helpers of GPU tests. Any CUDA error ends the program as a failed test. */
#ifndef GPU_CASE_H
#define GPU_CASE_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

static inline void *need(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

static inline void check(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        printf("not ok %s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

/*
 * Fills device memory and waits for the end, because non-blocking streams do not wait for
 * cudaMemset.
 */
static inline void fill_bytes(void *p, int byte, size_t bytes)
{
    check(cudaMemset(p, byte, bytes), "fill");
    check(cudaStreamSynchronize(NULL), "fill");
}

/* Copies `from` to the device. If `from` is NULL, every byte is 0xff, which makes NaNs. */
static inline void *on_device(const void *from, size_t bytes)
{
    void *p = NULL;
    check(cudaMalloc(&p, bytes ? bytes : 16), "cudaMalloc");
    if (from) {
        check(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), "fill");
        check(cudaStreamSynchronize(NULL), "fill");
    } else {
        fill_bytes(p, 0xff, bytes);
    }
    return p;
}

#endif
