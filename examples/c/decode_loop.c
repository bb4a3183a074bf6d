/* Runs libkvdim-attention on a prompt and decode steps of one layer, whose KV heads keep different
 * numbers of dimensions.
 * Build: cc decode_loop.c $(pkg-config --cflags --libs kvdim-attention)
 * For the GPU, add -DWITH_CUDA, -I and -L of the CUDA toolkit, and -lcudart. */
#include <kvdim/attention.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef WITH_CUDA
#include <cuda_runtime_api.h>
enum { DEVICE = KVDIM_CUDA };
#else
enum { DEVICE = KVDIM_CPU };
#endif
enum { PROMPT = 200, STEPS = 50, HEADS = 8, KV_HEADS = 2, D_HEAD = 64 };
enum { PAGES = (PROMPT + STEPS + KVDIM_PAGE_TOKENS - 1) / KVDIM_PAGE_TOKENS };

static void check(int failed)
{
    if (failed) {
        fprintf(stderr, "decode_loop: %s\n",
                *kvdim_last_error() ? kvdim_last_error() : "no memory");
        exit(1);
    }
}

/* Returns memory that the host and the layer's device can access, aligned to 256 bytes. */
static void *allocate(size_t bytes)
{
    void *p = NULL;
#ifdef WITH_CUDA
    cudaMallocManaged(&p, bytes, cudaMemAttachGlobal);
#else
    p = aligned_alloc(256, (bytes + 255) / 256 * 256);
#endif
    check(!p);
    return p;
}

int main(void)
{
    const int32_t d_qk[KV_HEADS] = {48, 16}, d_v[KV_HEADS] = {32, 48}, prompt = PROMPT;
    kvdim_heads heads = {sizeof heads, DEVICE, KVDIM_BF16, HEADS, KV_HEADS, D_HEAD, d_qk, d_v};
    kvdim_layer *layer;
    kvdim_layer_sizes size = {.struct_size = sizeof size};
    check(kvdim_layer_create(&heads, &layer) || kvdim_layer_get_sizes(layer, &size));
    printf("%zu of %d bytes per token\n", size.page_bytes / KVDIM_PAGE_TOKENS,
           4 * KV_HEADS * D_HEAD);
    /* The batch has one request, which owns the pages 0, 1, 2, ... of the pool. */
    int32_t kv_len = PROMPT, *const table = allocate(PAGES * sizeof *table);
    for (int32_t i = 0; i < PAGES; i++)
        table[i] = i;
    const size_t columns = (size_t)size.x_columns;
    uint16_t *const x = allocate((PROMPT + STEPS) * columns * sizeof *x);
    for (size_t i = 0; i < (PROMPT + STEPS) * columns; i++) /* random numbers, 0.125 to 2 */
        x[i] = (uint16_t)(0x3e00 + rand() % 512 + (rand() % 2 << 15));
    void *const pool = allocate(PAGES * size.page_bytes);
    void *const q = allocate((PROMPT + 8) * 2 * (size_t)size.q_columns);
    uint16_t *const o = allocate((PROMPT + 8) * sizeof *o * (size_t)size.o_columns);
    kvdim_batch batch = {sizeof batch, 1, PAGES, PAGES, &prompt, &kv_len, table};
    kvdim_append_args append = {.struct_size = sizeof append, .x = x, .q = q, .pool = pool};
    const kvdim_attend_args attend = {.struct_size = sizeof attend, .q = q, .pool = pool, .o = o};
    kvdim_plan *plan = NULL; /* divides the work of a step among processors */
    for (int32_t step = 0; step <= STEPS; step++) {
        if (step < 2) { /* The prompt has a plan of its own; all decode steps share one. */
            size_t bytes;
            kvdim_plan_destroy(plan);
            check(kvdim_workspace_bytes(layer, &batch, &bytes));
            check(kvdim_plan_create(layer, &batch, allocate(bytes + 1), bytes, NULL, &plan));
        } else
            check(kvdim_plan_advance(plan, NULL));
        check(kvdim_append(plan, &append, NULL) || kvdim_attend(plan, &attend, NULL));
        append.x = x + (size_t)kv_len++ * columns; /* the next token */
        batch.q_len = NULL;                        /* one new token */
    }
#ifdef WITH_CUDA
    check(cudaDeviceSynchronize());
#endif
    printf("%d prompt tokens, %d steps: the output begins with bf16 %04x %04x %04x\n", PROMPT,
           STEPS, o[0], o[1], o[2]);
}
