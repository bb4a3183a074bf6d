#include "model/checkpoint/streaming.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    const unsigned char *first;
    /* size in bytes of all memory pages that contain a tensor; 0 if the tensor is not in a mapped
     * file */
    size_t bytes;
} pages;

/* Returns start and size of the memory pages that contain the n bytes at `data`. */
static pages pages_around(const void *data, size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t before = (uintptr_t)data % page, bytes = before + n;
    return (pages){(const unsigned char *)data - before, (bytes + page - 1) / page * page};
}

static pages pages_of(const kvd_tensor *t)
{
    return t->mapped ? pages_around(t->data, kvd_tensor_bytes(t, t->n)) : (pages){NULL, 0};
}

void kvd_tensor_drop(const kvd_tensor *t)
{
    const kvd_block_layout *const layout = kvd_block_layout_of(t->packing);
    if (t->mapped)
        kvd_mapped_drop(t->data, kvd_tensor_bytes(t, t->n));
    if (t->mapped && t->scales)
        kvd_mapped_drop(t->scales, t->n / layout->elements);
}

void kvd_mapped_drop(const void *data, size_t bytes)
{
    const pages p = pages_around(data, bytes);
    if (p.bytes > 0)
        (void)madvise((void *)(uintptr_t)p.first, p.bytes, MADV_DONTNEED);
}

/* Reads one byte of each memory page, because madvise does not read the whole range ahead. */
static void *touch(void *of)
{
    const kvd_prefetch *p = of;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < p->n; i++) {
        const pages at = pages_of(&p->part[i].tensor);
        const volatile unsigned char *byte = at.first;
        for (size_t k = 0; k < at.bytes; k += page)
            (void)byte[k];
    }
    return NULL;
}

void kvd_prefetch_start(kvd_prefetch *p, const kvd_weight *part, size_t n)
{
    p->part = part;
    p->n = n;
    p->running = pthread_create(&p->thread, NULL, touch, p) == 0;
}

void kvd_prefetch_wait(kvd_prefetch *p)
{
    if (p->running)
        (void)pthread_join(p->thread, NULL);
    p->running = false;
}
