#include "common/device.h"

#include <stdio.h>
#include <string.h>

#ifdef KVD_CUDA
#include <cuda_runtime_api.h>
#endif

int kvd_cuda_here(char *name, size_t size, kvd_err *err)
{
#ifdef KVD_CUDA
    int n = 0, device, driver = 0;
    struct cudaDeviceProp properties;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e || n == 0) {
        (void)cudaGetLastError();
        if (!cudaDriverGetVersion(&driver) && driver == 0)
            return kvd_fail(err, "no CUDA device: this machine has no driver");
        return kvd_fail(err, "no CUDA device: %s", e ? cudaGetErrorString(e) : "none is visible");
    }
    if (cudaGetDevice(&device) || cudaGetDeviceProperties(&properties, device))
        return kvd_fail(err, "no CUDA device: %s", cudaGetErrorString(cudaGetLastError()));
    if (!kvd_cuda_has_code(properties.major, properties.minor))
        return kvd_fail(err, "%s has compute capability %d.%d, the kernels need 8.x or 9.0",
                        properties.name, properties.major, properties.minor);
    snprintf(name, size, "%s", properties.name);
    return 0;
#else
    (void)name;
    (void)size;
    return kvd_fail(err, "no CUDA: it " KVD_LEFT_OUT);
#endif
}

/* Writes the version of the NVIDIA driver, such as "580.95.05", to `text`, or "unknown". */
void kvd_cuda_driver(char *text, size_t size)
{
    char line[512] = "";
    FILE *const f = fopen("/proc/driver/nvidia/version", "r");
    (void)snprintf(text, size, "unknown");
    if (!f)
        return;
    if (fgets(line, sizeof line, f)) {
        char *rest = NULL;
        for (char *word = strtok_r(line, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest))
            if (strchr(word, '.') && word[strspn(word, "0123456789.")] == '\0') {
                (void)snprintf(text, size, "%s", word);
                break;
            }
    }
    (void)fclose(f);
}

int kvd_device_resolve(kvd_common_options *opt, char *name, size_t size, kvd_err *err)
{
    kvd_err why = {""};
    const bool here = opt->device != KVD_DEVICE_CPU && !kvd_cuda_here(name, size, &why);
    if (opt->device == KVD_DEVICE_CUDA && !here)
        return kvd_fail(err, "--device cuda: %s", why.msg);
    opt->device = here ? KVD_DEVICE_CUDA : KVD_DEVICE_CPU;
    if (!here)
        *name = '\0';
    return 0;
}

int kvd_device_cpu_only(kvd_common_options *opt, kvd_err *err)
{
    if (opt->device == KVD_DEVICE_CUDA)
        return kvd_fail(err,
                        "--device: this program runs on the CPU only, 'cuda' is not available");
    opt->device = KVD_DEVICE_CPU;
    return 0;
}

int kvd_cuda_count(void)
{
#ifdef KVD_CUDA
    int n = 0;
    if (!cudaGetDeviceCount(&n))
        return n;
    (void)cudaGetLastError();
#endif
    return 0;
}

void kvd_device_note(const char *name, kvd_run *run)
{
    snprintf(run->gpu, sizeof run->gpu, "%s", name);
    run->driver[0] = '\0';
    if (*name)
        kvd_cuda_driver(run->driver, sizeof run->driver);
}
