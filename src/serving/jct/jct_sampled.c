/* Measures a batch of requests by computing only some of its decode steps. Scales the time of these
 * steps to all decode steps. */
#include "serving/jct/jct_loop.h"

#include <stdlib.h>
#include <string.h>

#include "common/run.h"

typedef struct {
    const kvd_jct_loop *loop;
    size_t batch, input, output, steps;
    double weight; /* decode steps of the job / computed decode steps */
    kvd_slice *slice;
    uint32_t *id;
} sampled;

/* Returns the number of cached tokens per request at the i-th decode step that is computed. The
 * computed steps are evenly spaced over all decode steps. */
static size_t place(const sampled *s, size_t i)
{
    return s->input + (size_t)(((double)i + 0.5) * s->weight);
}

static int one_step(sampled *s, size_t i, kvd_phase_times *times, kvd_err *err)
{
    kvd_engine *const e = s->loop->engine;
    for (uint32_t r = 0; r < s->batch; r++)
        s->slice[r] = (kvd_slice){.request = r,
                                  .slot = r,
                                  .before = (uint32_t)place(s, i),
                                  .n = 1,
                                  .whole = (uint32_t)(s->input + s->output),
                                  .emits = 1,
                                  .last = i + 1 == s->steps};
    const kvd_iteration it = {
        .n_slices = s->batch, .n_steps = s->batch, .slice = s->slice, .n_tokens = s->batch};
    const double begin = kvd_jct_now();
    if (kvd_interrupted())
        return kvd_fail_interrupted(err);
    if (e->step(e, &it, s->id, s->id + s->batch, times, err))
        return -1;
    const double whole = kvd_jct_now() - begin;
    times->part[KVD_PHASE_HOST] += whole - times->total;
    times->total = whole;
    memcpy(s->id, s->id + s->batch, s->batch * sizeof *s->id);
    return 0;
}

static int run_steps(sampled *s, kvd_jct_served *out, kvd_err *err)
{
    const kvd_engine *const e = s->loop->engine;
    kvd_jct_run *const r = &out->run;
    for (size_t b = 0; b < s->batch; b++)
        s->id[b] = kvd_jct_id(s->loop->seed, b, s->input, s->loop->vocab);
    for (size_t i = 0; i < s->steps; i++) {
        kvd_phase_times times;
        if (one_step(s, i, &times, err))
            return -1;
        for (size_t b = 0; b < s->batch; b++)
            out->gap[b * s->steps + i] = times.total;
        for (int p = 0; p < KVD_PHASES; p++)
            times.part[p] *= s->weight;
        times.total *= s->weight;
        kvd_phase_add(&r->decode, &times);
        r->iterations++;
    }
    r->running = s->batch;
    r->held_tokens = (double)(s->batch * (place(s, s->steps - 1) + 1));
    r->held_bytes = e->held ? e->held(e) : r->held_tokens * e->facts.bytes_per_token;
    r->jct += r->decode.total;
    for (size_t b = 0; b < s->batch; b++) {
        out->last[b] = r->jct;
        out->gap_at[b + 1] = (b + 1) * s->steps;
    }
    return 0;
}

int kvd_jct_serve_sampled(const kvd_jct_loop *l, size_t batch, size_t input, size_t output,
                          size_t steps, kvd_jct_served *out, kvd_err *err)
{
    kvd_requests prompts = {.n = batch, .request = calloc(batch, sizeof *prompts.request)};
    sampled s = {.loop = l,
                 .batch = batch,
                 .input = input,
                 .output = output,
                 .steps = steps,
                 .weight = (double)(output - 1) / (double)steps,
                 .slice = calloc(batch, sizeof *s.slice),
                 .id = calloc(2 * batch, sizeof *s.id)};
    memset(out, 0, sizeof *out);
    int status =
        prompts.request && s.slice && s.id
            ? 0
            : kvd_no_memory(err, "a job's steps", batch * (sizeof *s.slice + 2 * sizeof *s.id));
    for (size_t i = 0; !status && i < batch; i++)
        prompts.request[i] = (kvd_request){0, (uint32_t)input, 1};
    status = status || kvd_jct_serve(l, &prompts, out, err);
    if (!status) {
        double *const gap = realloc(out->gap, batch * steps * sizeof *gap);
        out->gap = gap ? gap : out->gap;
        status =
            gap ? run_steps(&s, out, err) : kvd_no_memory(err, "gaps", batch * steps * sizeof *gap);
    }
    free(prompts.request);
    free(s.slice);
    free(s.id);
    return status ? -1 : 0;
}
