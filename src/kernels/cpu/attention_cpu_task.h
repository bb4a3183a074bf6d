/*
 * Task that attention_cpu.c passes to the kernel of one instruction set: some query rows and keys
 * of one KV head. Private to attention_cpu*.c.
 *
 * The query heads of a KV head read the same K and V, so a task takes its rows from all of them:
 * row r of a request is token r / group of query head g * group + r % group. That row attends to
 * the keys at positions up to position + r / group.
 */
#ifndef KVD_KERNELS_CPU_ATTENTION_CPU_TASK_H
#define KVD_KERNELS_CPU_ATTENTION_CPU_TASK_H

#include <stddef.h>

typedef struct {
    const float *q; /* first query of the request in the KV head's first query head */
    /* Number of elements in q and in out from one query head to the next. */
    size_t q_head, out_head;
    const float *k, *v; /* [kv_len][d_qk] and [kv_len][d_v] keys and values of the request */
    float *out;         /* output, addressed as `q` is; used if `partial` is NULL */
    size_t d_qk, d_v, group;
    size_t position;  /* position of the request's first query: kv_len - q_len */
    size_t row, rows; /* the task's rows are row .. row + rows - 1; at most max_rows of them */
    /* The task's keys are key .. key_end - 1; keys after a row's own position are skipped. */
    size_t key, key_end;
    /*
     * Partial result of the task's rows, or NULL: [rows] maximum score (base-2 logarithm), then
     * [rows] sum of softmax weights, then [rows][d_v] sum of weights times V.
     */
    float *partial;
} kvd_cpu_task;

typedef struct {
    size_t max_rows; /* largest number of rows of a task */
    size_t row_unit; /* the work of a task grows with its rows rounded up to a multiple of this */
    /* Number of keys per block, counted from kvd_cpu_task.key. */
    size_t key_block;
    /*
     * Returns the number of floats of scratch memory that one thread needs. The caller aligns the
     * memory to 64 bytes.
     */
    size_t (*scratch)(size_t d_qk, size_t d_v);
    /* Computes one task. `scale` is log2(e) / sqrt(d_head). */
    void (*run)(const kvd_cpu_task *task, float scale, float *scratch);
} kvd_cpu_kernel;

extern const kvd_cpu_kernel kvd_cpu_kernel_portable;
#if defined(__x86_64__)
extern const kvd_cpu_kernel kvd_cpu_kernel_avx2, kvd_cpu_kernel_avx512;
#endif

#endif
