/* Tests of the public library (include/kvdim) on a GPU, compared with reference results. */
#include <cuda_runtime_api.h>
#include <stdio.h>

#include "library_case.h"

static void check(cudaError_t e)
{
    if (!e)
        return;
    printf("not ok library: %s\n", cudaGetErrorString(e));
    exit(1);
}

static void *take(size_t bytes)
{
    void *p = NULL;
    check(cudaMalloc(&p, bytes));
    return p;
}

static void release(void *p)
{
    check(cudaFree(p));
}

static void put(void *to, const void *from, size_t bytes)
{
    check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}

static void get(void *to, const void *from, size_t bytes)
{
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

int main(void)
{
    static const case_memory gpu = {KVDIM_CUDA, take, release, put, get};
    int n = 0, failed = 0;
    if (cudaGetDeviceCount(&n) || !n) {
        printf("skip library: no CUDA device\n");
        return 0;
    }
    for (size_t i = 0; i < sizeof library_cases / sizeof *library_cases; i++) {
        double lse;
        const double worst = library_case_run(&library_cases[i], &gpu, &lse);
        const bool ok = worst >= 0 && lse < 1e-2 &&
                        worst < (library_cases[i].dtype == KVDIM_BF16 ? 1e-2 : 2e-3);
        printf("%s library case %zu: error %.2g, lse %.2g\n", ok ? "ok" : "not ok", i, worst, lse);
        failed += !ok;
    }
    return failed > 0;
}
