/*
 * What attention_cpu.c hands to the kernels of one instruction set. Private to attention_cpu*.c.
 *
 * The query heads of a group read the same K and V, so a task takes its rows from all of them: row r of a request is
 * token r / group of query head g * group + r % group. It sees the keys up to position + r / group.
 */
#ifndef KVD_KERNELS_ATTENTION_CPU_TASK_H
#define KVD_KERNELS_ATTENTION_CPU_TASK_H

#include <stddef.h>

typedef struct {
    const float *q;          /* first query of the request in the group's first head            */
    size_t q_head, out_head; /* elements from one query head of the group to the next           */
    const float *k, *v;      /* [..][d_qk], [..][d_v], first key of the request                 */
    float *out;              /* as q; used when partial is NULL                                 */
    size_t d_qk, d_v, group;
    size_t position;     /* of the request's first query: kv_len - q_len                        */
    size_t row, rows;    /* rows row .. row + rows - 1, at most kvd_cpu_kernel.max_rows          */
    size_t key, key_end; /* keys key .. key_end - 1; those that a row does not see are left out */
    float *partial;      /* or: [rows] maximum (log2), [rows] sum, [rows][d_v] sum of weights times V */
} kvd_cpu_task;

typedef struct {
    size_t max_rows;                            /* of a task */
    size_t row_unit;                            /* work grows with rows rounded up to this */
    size_t key_block;                           /* keys are taken so many at a time, counted from task.key */
    size_t (*scratch)(size_t d_qk, size_t d_v); /* floats, for one thread, aligned to 64 bytes */
    /* scale is log2(e) / sqrt(d_head). */
    void (*run)(const kvd_cpu_task *task, float scale, float *scratch);
} kvd_cpu_kernel;

extern const kvd_cpu_kernel kvd_cpu_kernel_portable;
#if defined(__x86_64__)
extern const kvd_cpu_kernel kvd_cpu_kernel_avx2, kvd_cpu_kernel_avx512;
#endif

#endif
