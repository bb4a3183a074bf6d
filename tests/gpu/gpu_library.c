/* Tests the public library (include/kvdim) on a GPU. */
#include "gpu_case.h"
#include "library_case.h"

static void *take(size_t bytes)
{
    return on_device(NULL, bytes);
}

static void release(void *p)
{
    device_free(p);
}

static void put(void *to, const void *from, size_t bytes)
{
    to_device(to, from, bytes);
}

static void get(void *to, const void *from, size_t bytes)
{
    check(cudaDeviceSynchronize(), "run");
    to_host(to, from, bytes);
}

/* Returns true if the library refuses arrays at misaligned addresses. */
static bool refuses_misaligned(void)
{
    static const int32_t width[] = {32}, length[] = {5};
    const kvdim_heads heads = {sizeof heads, KVDIM_CUDA, KVDIM_BF16, 2, 1, 32, width, width};
    char *const memory = take(1 << 20);
    const kvdim_batch batch = {sizeof batch, 1, 1, 1, length, length, (const int32_t *)memory};
    kvdim_layer *layer = NULL;
    kvdim_plan *plan = NULL;
    size_t bytes = 0;
    bool good =
        !kvdim_layer_create(&heads, &layer) && !kvdim_workspace_bytes(layer, &batch, &bytes);
    char *const workspace = take(bytes + 1);
    good = good && !kvdim_plan_create(layer, &batch, workspace, bytes, NULL, &plan);
    const kvdim_append_args append = {
        .struct_size = sizeof append, .x = memory + 8, .q = memory, .pool = memory};
    const kvdim_attend_args attend = {sizeof attend, memory, memory, memory + 2, 0, NULL};
    good = good && kvdim_append(plan, &append, NULL) == KVDIM_ERROR_ARGUMENT &&
           strstr(kvdim_last_error(), "which is not aligned to 16 bytes") &&
           kvdim_attend(plan, &attend, NULL) == KVDIM_ERROR_ARGUMENT &&
           strstr(kvdim_last_error(), "o is at address ");
    if (!good)
        printf("# %s\n", kvdim_last_error());
    kvdim_plan_destroy(plan);
    kvdim_layer_destroy(layer);
    release(workspace);
    release(memory);
    return good;
}

int main(void)
{
    static const case_memory gpu = {KVDIM_CUDA, take, release, put, get};
    if (!gpu_devices("library", 1))
        return 0;
    for (size_t i = 0; i < sizeof library_cases / sizeof *library_cases; i++) {
        double lse;
        const double worst = library_case_run(&library_cases[i], &gpu, &lse);
        test_result(worst >= 0 && lse < 1e-2 &&
                        worst < (library_cases[i].dtype == KVDIM_BF16 ? 1e-2 : 2e-3),
                    "case", "%zu, error %.2g, lse %.2g", i, worst, lse);
    }
    test_result(refuses_misaligned(), "misaligned arrays", "refused");
    return failures != 0;
}
