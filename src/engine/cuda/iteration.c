/* Checks the requests and tokens of an iteration, and lists them for the kernels. */
#include "engine/cuda/engine_parts.h"
#include "model/pass/cuda/layer.h"

size_t kvd_cuda_rows(const kvd_cuda_engine *e, const kvd_iteration *it, size_t i)
{
    return it->slice[i].n * (i < it->n_steps ? 1 : e->copies);
}

int kvd_cuda_check_whole(const kvd_cuda_engine *e, bool chunk, kvd_err *err)
{
    const kvd_gpu_method *const m = e->cache.method;
    return m && m->whole_prompts && chunk
               ? kvd_fail(err,
                          "method '%s' compresses a prompt in one piece: it goes without chunks",
                          kvd_gpu_method_name(m->plan))
               : 0;
}

static int check_copies(const kvd_cuda_engine *e, const kvd_slice *s, kvd_err *err)
{
    return e->copies > 1 && s->before + e->copies * s->n > e->positions
               ? kvd_fail(err,
                          "method '%s' reads every prompt twice: request %u has a prompt of %u "
                          "tokens, the model %zu positions",
                          e->cache.method->plan->tokens->info.name, s->request, s->n, e->positions)
               : 0;
}

int kvd_cuda_check_iteration(const kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                             kvd_err *err)
{
    const size_t rows = it->n_steps + e->copies * (it->n_tokens - it->n_steps);
    size_t n = 0;
    if (it->n_slices < 1 || it->n_slices > e->spec.limits.max_batch || rows > e->batch.max_tokens)
        return kvd_fail(
            err, "an iteration of %zu slices and %zu tokens%s, the engine was made for %zu and %zu",
            it->n_slices, rows, e->copies > 1 ? " with copies of prompts" : "",
            e->spec.limits.max_batch, e->batch.max_tokens);
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        if (s->n < 1 || (i < it->n_steps && s->n != 1) || s->slot >= e->spec.limits.max_batch ||
            (size_t)s->before + s->n > e->spec.max_len)
            return kvd_fail(
                err, "slice %zu: %u tokens after %u in slot %u; slots are %zu, of up to %zu tokens",
                i, s->n, s->before, s->slot, e->spec.limits.max_batch, e->spec.max_len);
        if (i >= it->n_steps &&
            (kvd_cuda_check_whole(e, s->before || !s->emits, err) || check_copies(e, s, err)))
            return -1;
        n += s->n;
    }
    if (n != it->n_tokens)
        return kvd_fail(err, "slices of %zu tokens in an iteration of %zu", n, it->n_tokens);
    for (size_t t = 0; t < n; t++)
        if (id[t] >= (uint32_t)e->w.config.vocab_size)
            return kvd_fail(err, "token %zu of the iteration has id %u, the vocabulary has %d", t,
                            id[t], e->w.config.vocab_size);
    return 0;
}

size_t kvd_cuda_entries(const kvd_cuda_engine *e, const kvd_slice *s)
{
    const kvd_gpu_method *const m = e->cache.method;
    return m && m->entries ? m->entries(m, s->slot, s->before) : s->before;
}

void kvd_cuda_list_slices(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id)
{
    kvd_step_batch *const b = &e->batch;
    size_t row = 0, from = 0, steps = it->n_steps;
    b->n_steps = steps;
    b->n_slices = it->n_slices;
    b->host.live[0] = (int32_t)steps;
    b->n_q8 = 0;
    b->no_gaps = 1;
    e->n_emit = 0;
    e->n_slices = it->n_slices;
    for (size_t i = 0; i < it->n_slices; from += it->slice[i++].n) {
        const kvd_slice *const s = &it->slice[i];
        const size_t rows = kvd_cuda_rows(e, it, i);
        b->host.kv_len[i] = (int32_t)(kvd_cuda_entries(e, s) + rows);
        b->host.seq_len[i] = (int32_t)(s->before + rows);
        b->host.slot[i] = (int32_t)s->slot;
        b->host.q_len[i] = (int32_t)rows;
        b->host.start[i] = (int32_t)(row - steps);
        b->host.q_start[i] = (int32_t)b->n_q8;
        e->emit[i] = -1;
        if (s->emits) {
            b->host.last[e->n_emit] = (int32_t)(row + s->n - 1);
            e->emit[i] = (int32_t)e->n_emit++;
        }
        for (size_t t = 0; t < rows; t++) {
            b->host.at[row + t] = (uint32_t)(s->before + t);
            b->host.id[row + t] = id[from + t % s->n];
        }
        if (i < steps) {
            b->host.step_id[i] = id[from];
            b->host.step_at[i] = s->before;
        } else {
            b->no_gaps = b->no_gaps && b->n_q8 == row - steps;
            b->n_q8 += (rows + 7) / 8 * 8;
        }
        row += rows;
    }
    b->n_tokens = row;
}

int kvd_cuda_only_steps(const kvd_cuda_engine *e, const kvd_iteration *it)
{
    return it->n_steps == it->n_slices && e->n_emit == it->n_slices;
}

int kvd_cuda_check_finite(const kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                          kvd_err *err)
{
    const unsigned stage = (unsigned)(bad >> 40);
    const unsigned few = kvd_config_norms_branches(&e->w.config)
                             ? kvd_gpu_stage_final(&e->w.config)
                             : kvd_gpu_stage_before(e->w.config.n_layers);
    size_t row = (size_t)(bad & ((1ULL << 40) - 1)), i = 0;
    char where[32];
    if (bad == ~0ULL)
        return 0;
    kvd_gpu_stage_name(&e->w.config, stage, where, sizeof where);
    if (stage >= few && row < e->n_emit && !kvd_cuda_only_steps(e, it))
        row = (size_t)e->batch.host.last[row];
    while (i + 1 < it->n_slices && row >= kvd_cuda_rows(e, it, i))
        row -= kvd_cuda_rows(e, it, i++);
    return kvd_fail(err, "'%s': %s: activation of request %u at position %zu is not finite",
                    e->w.config.path, where, it->slice[i].request,
                    (size_t)it->slice[i].before + row);
}
