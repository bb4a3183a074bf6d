/*
 * Runs libkvdim-attention on a prompt and decode steps of one layer, whose KV heads keep different
 * numbers of dimensions.
 *
 * cc decode_loop.c $(pkg-config --cflags --libs kvdim-attention) -lm -o decode_loop
 *
 * ./decode_loop [PROMPT_TOKENS [STEPS]]
 *
 * On the GPU: add -DWITH_CUDA, -I and -L of the CUDA toolkit, and -lcudart.
 */
#include <kvdim/attention.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef WITH_CUDA
#include <cuda_runtime_api.h>
#endif

enum { HEADS = 8, KV_HEADS = 2, D_HEAD = 64, MOST = 100000 };

static void check(kvdim_status status)
{
    if (status) {
        fprintf(stderr, "decode_loop: %s\n", kvdim_last_error());
        exit(1);
    }
}

static void *not_null(void *p)
{
    if (!p) {
        fprintf(stderr, "decode_loop: out of memory\n");
        exit(1);
    }
    return p;
}

/* Copies to device memory, or fills it with zeros if `from` is NULL. */
static void *device_copy(const void *from, size_t bytes)
{
    void *p = NULL;
#ifdef WITH_CUDA
    if (cudaMalloc(&p, bytes) || cudaMemset(p, 0, bytes) ||
        (from && cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice)))
        p = NULL;
    not_null(p);
#else
    p = not_null(aligned_alloc(256, (bytes + 255) / 256 * 256));
    from ? memcpy(p, from, bytes) : memset(p, 0, bytes);
#endif
    return p;
}

int main(int argc, char **argv)
{
    const int32_t prompt = argc > 1 ? atoi(argv[1]) : 200, steps = argc > 2 ? atoi(argv[2]) : 50;
    if (prompt < 1 || steps < 1 || prompt > MOST || steps > MOST) {
        fprintf(stderr, "usage: %s [PROMPT_TOKENS [STEPS]], each from 1 to %d\n", argv[0], MOST);
        return 2;
    }
    const int32_t pages = (prompt + steps + KVDIM_PAGE_TOKENS - 1) / KVDIM_PAGE_TOKENS;
    const int32_t d_qk[KV_HEADS] = {48, 16}, d_v[KV_HEADS] = {32, 48};
    kvdim_heads heads = {sizeof heads, KVDIM_CPU, KVDIM_BF16, HEADS, KV_HEADS, D_HEAD, d_qk, d_v};
#ifdef WITH_CUDA
    heads.device = KVDIM_CUDA;
#endif
    kvdim_layer *layer;
    kvdim_layer_sizes sizes = {.struct_size = sizeof sizes};
    check(kvdim_layer_create(&heads, &layer));
    check(kvdim_layer_get_sizes(layer, &sizes));
    printf("a token takes %zu bytes instead of %d\n", sizes.page_bytes / KVDIM_PAGE_TOKENS,
           2 * 2 * KV_HEADS * D_HEAD);

    /* The only request owns the pages 0, 1, 2, ... of the pool. */
    int32_t *const table = not_null(malloc((size_t)pages * sizeof *table));
    for (int32_t i = 0; i < pages; i++)
        table[i] = i;
    void *const pool = device_copy(NULL, (size_t)pages * sizes.page_bytes);
    /* The number of tokens is rounded up to a multiple of 8, plus 8. */
    const size_t row = (size_t)sizes.x_columns, rows = (size_t)(prompt + 7) / 8 * 8 + 8;
    uint16_t *const random = not_null(malloc((size_t)(prompt + steps) * row * 2));
    for (size_t i = 0; i < (size_t)(prompt + steps) * row; i++)
        /* random bf16: magnitude from 0.125 to 2, either sign */
        random[i] = (uint16_t)(0x3e00 + rand() % 512 + (rand() % 2 << 15));
    uint16_t *const x = device_copy(random, (size_t)(prompt + steps) * row * 2);
    void *const q = device_copy(NULL, rows * (size_t)sizes.q_columns * 2);
    const size_t o_bytes = rows * (size_t)sizes.o_columns * 2;
    uint16_t *const o = device_copy(NULL, o_bytes), *const result = not_null(malloc(o_bytes));

    int32_t kv_len = prompt;
    kvdim_batch batch = {sizeof batch,
                         1,
                         pages,
                         pages,
                         &prompt,
                         &kv_len,
                         device_copy(table, (size_t)pages * sizeof *table)};
    kvdim_append_args append = {.struct_size = sizeof append, .x = x, .q = q, .pool = pool};
    const kvdim_attend_args attend = {.struct_size = sizeof attend, .q = q, .pool = pool, .o = o};
    kvdim_plan *plan = NULL;
    void *workspace = NULL;
    struct timespec a, b;
    for (int32_t step = 0; step <= steps; step++) {
        if (step == 1)
            timespec_get(&a, TIME_UTC);
        /* The prompt needs a plan (division of the work) of its own; all decode steps share one. */
        if (step < 2) {
            size_t bytes;
            batch.q_len = step ? NULL : &prompt;
            kv_len = prompt + step;
            kvdim_plan_destroy(plan);
            check(kvdim_workspace_bytes(layer, &batch, &bytes));
            workspace = bytes ? device_copy(NULL, bytes) : NULL;
            check(kvdim_plan_create(layer, &batch, workspace, bytes, NULL, &plan));
        } else {
            check(kvdim_plan_advance(plan, NULL));
        }
        append.x = x + (step ? (size_t)(prompt + step - 1) * row : 0);
        check(kvdim_append(plan, &append, NULL));
        check(kvdim_attend(plan, &attend, NULL));
    }
#ifdef WITH_CUDA
    if (cudaMemcpy(result, o, o_bytes, cudaMemcpyDeviceToHost))
        return 1;
#else
    memcpy(result, o, o_bytes);
#endif
    timespec_get(&b, TIME_UTC);
    unsigned long sum = 0;
    for (int32_t i = 0; i < sizes.o_columns; i++)
        sum = sum * 31 + result[i];
    printf("%d prompt tokens, %d steps: checksum %016lx, %.1f us per step\n", prompt, steps, sum,
           ((double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3) / steps);
    kvdim_plan_destroy(plan);
    kvdim_layer_destroy(layer);
    return 0;
}
