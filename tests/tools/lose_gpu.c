/* LD_PRELOAD library that simulates the loss of a GPU, by launching a kernel that traps.
 *
 * KVD_LOSE_GPU=N          number of the GPU
 * KVD_LOSE_WHEN=FILE      file to wait for
 * KVD_LOSE_AFTER=SECONDS  seconds to wait after the file appeared
 * KVD_LOSE_PROGRAM=NAME   only program to affect */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char trap[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry lose() { trap; }\n";

static void wait_for(double seconds)
{
    const struct timespec t = {.tv_sec = (time_t)seconds,
                               .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
    (void)nanosleep(&t, NULL);
}

static void *symbol(void *library, const char *name)
{
    void *const p = library ? dlsym(library, name) : NULL;
    if (!p) {
        fprintf(stderr, "lose_gpu: no %s\n", name);
        exit(99);
    }
    return p;
}

/* Declares a pointer to a function of the CUDA driver and looks it up by name. Copies the address,
 * because C cannot cast data pointers to function pointers. */
#define FUNCTION(name, symbol_name)                                                                \
    __typeof__(&name) name##_;                                                                     \
    *(void **)(&name##_) = symbol(library, symbol_name)

static int lose(int gpu)
{
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    FUNCTION(cuInit, "cuInit");
    FUNCTION(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    FUNCTION(cuCtxSetCurrent, "cuCtxSetCurrent");
    FUNCTION(cuModuleLoadData, "cuModuleLoadData");
    FUNCTION(cuModuleGetFunction, "cuModuleGetFunction");
    FUNCTION(cuStreamCreate, "cuStreamCreate");
    FUNCTION(cuLaunchKernel, "cuLaunchKernel");
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    return cuInit_(0) || cuDevicePrimaryCtxRetain_(&context, gpu) || cuCtxSetCurrent_(context) ||
           cuModuleLoadData_(&module, trap) || cuModuleGetFunction_(&kernel, module, "lose") ||
           cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING) ||
           cuLaunchKernel_(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void *lose_later(void *gpu)
{
    const char *const file = getenv("KVD_LOSE_WHEN"), *const after = getenv("KVD_LOSE_AFTER");
    while (file && access(file, F_OK))
        wait_for(0.01);
    wait_for(after ? atof(after) : 0);
    if (lose(atoi(gpu)))
        fprintf(stderr, "lose_gpu: GPU %s is still there\n", (const char *)gpu);
    return NULL;
}

__attribute__((constructor)) static void start(void)
{
    char *const gpu = getenv("KVD_LOSE_GPU"), *const name = getenv("KVD_LOSE_PROGRAM");
    pthread_t thread;
    if (gpu && (!name || !strcmp(name, program_invocation_short_name)) &&
        !pthread_create(&thread, NULL, lose_later, gpu))
        (void)pthread_detach(thread);
}
