#include "methods/cuda/phase_clock.h"

static const char what[] = "clock";

int kvd_clock_init(kvd_clock *c, bool on, size_t capacity, kvd_err *err)
{
    const size_t bytes = capacity * sizeof *c->device;
    *c = (kvd_clock){.on = on, .capacity = capacity};
    if (!on)
        return 0;
    c->phase = kvd_device_host(&c->memory, capacity, what, err);
    c->device = kvd_device_new(&c->memory, bytes, what, err);
    c->host = kvd_device_pinned(&c->memory, bytes, what, err);
    return c->memory.status;
}

void kvd_clock_release(kvd_clock *c)
{
    kvd_device_release(&c->memory);
    *c = (kvd_clock){0};
}

int kvd_clock_start(kvd_clock *c, cudaStream_t stream, kvd_err *err)
{
    if (!c->on)
        return 0;
    c->n = 0;
    return kvd_status(
        kvd_cuda_check(cudaMemsetAsync(c->device, 0, c->capacity * sizeof *c->device, stream), what,
                       err) ||
        kvd_cuda_check(kvd_stamp(c->device, stream), what, err));
}

unsigned long long *kvd_clock_end_by(kvd_clock *c, kvd_phase p)
{
    if (!c->on)
        return NULL;
    c->n++;
    if (c->n >= c->capacity)
        return NULL;
    c->phase[c->n] = (uint8_t)p;
    return c->device + c->n;
}

int kvd_clock_end(kvd_clock *c, kvd_phase p, cudaStream_t stream, kvd_err *err)
{
    unsigned long long *const to = kvd_clock_end_by(c, p);
    return to ? kvd_cuda_check(kvd_stamp(to, stream), what, err) : 0;
}

int kvd_clock_fetch(kvd_clock *c, cudaStream_t stream, kvd_err *err)
{
    if (!c->on)
        return 0;
    if (c->n >= c->capacity)
        return kvd_fail(err, "an iteration with %zu phases, room for %zu", c->n, c->capacity - 1);
    return kvd_queue_get(c->host, c->device, (c->n + 1) * sizeof *c->device, stream, what, err);
}

void kvd_clock_read(const kvd_clock *c, double total, kvd_phase_times *t)
{
    *t = (kvd_phase_times){.total = total};
    if (!c->on)
        return;
    for (size_t i = 1; i <= c->n; i++)
        t->part[c->phase[i]] += 1e-9 * ((double)c->host[i] - (double)c->host[i - 1]);
    t->part[KVD_PHASE_HOST] = total - 1e-9 * (double)(c->host[c->n] - c->host[0]);
}
