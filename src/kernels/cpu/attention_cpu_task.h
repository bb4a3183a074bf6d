/* Work item of CPU attention: some query rows and some keys of one KV head. The rows are ordered by
 * token, and for each token by query head. */
#ifndef KVD_KERNELS_CPU_ATTENTION_CPU_TASK_H
#define KVD_KERNELS_CPU_ATTENTION_CPU_TASK_H

#include <stddef.h>

typedef struct {
    const float *q;
    size_t q_head, out_head; /* elements from one query head to the next */
    const float *k, *v;      /* keys [kv_len][d_qk] and values [kv_len][d_v] of the request */
    float *out;              /* output, written if `partial` is NULL */
    size_t d_qk, d_v, group;
    size_t position; /* position of the request's first query: kv_len - q_len */
    size_t row, rows;
    size_t key, key_end; /* A row ignores keys after its own position. */
    /* Result of a task that has only part of the keys: maxima [rows], softmax sums [rows], outputs
     * [rows][d_v] not yet divided by the sums. NULL if the task has all keys. */
    float *partial;
} kvd_cpu_task;

typedef struct {
    size_t max_rows;
    size_t row_unit;  /* number of rows computed at a time; a task's time grows in these steps */
    size_t key_block; /* Keys per block, counted from kvd_cpu_task.key. */
    /* Returns how many floats of scratch memory each thread needs. The memory must be aligned to 64
     * bytes. */
    size_t (*scratch)(size_t d_qk, size_t d_v);
    /* Computes the output of a task. `scale` is log2(e) / sqrt(d_head). */
    void (*run)(const kvd_cpu_task *task, float scale, float *scratch);
} kvd_cpu_kernel;

extern const kvd_cpu_kernel kvd_cpu_kernel_portable;
#if defined(__x86_64__)
extern const kvd_cpu_kernel kvd_cpu_kernel_avx2, kvd_cpu_kernel_avx512;
#endif

#endif
