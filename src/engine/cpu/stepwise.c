#include "engine/cpu/stepwise.h"

#include <stdlib.h>
#include <string.h>

static int check_plan(const kvd_plan *plan, size_t chunk, kvd_err *err)
{
    const void *unused;
    if (kvd_plan_first_pass(plan))
        return kvd_fail(
            err,
            "method '%s' wants a first pass over the prompts through all layers, which the CPU "
            "engine does not make",
            plan->layers ? plan->layers->info.name : kvd_plan_ranker(plan, &unused)->info.name);
    const char *const name = plan->tokens     ? plan->tokens->info.name
                             : plan->maker    ? plan->maker->info.name
                             : plan->channels ? plan->channels->info.name
                                              : plan->bits->info.name;
    return chunk ? kvd_fail(err,
                            "method '%s' compresses a prompt in one piece: it goes without chunks",
                            name)
                 : 0;
}

int kvd_cpu_stepwise_init(kvd_cpu_stepwise *s, const kvd_config *c, const kvd_plan *plan,
                          size_t slots, size_t tokens, size_t chunk, kvd_err *err)
{
    memset(s, 0, sizeof *s);
    if (check_plan(plan, chunk, err) || kvd_sequence_cache_init(&s->running, c, plan, slots, err))
        return -1;
    s->n = slots;
    s->offset = calloc(4 * slots + 1, sizeof *s->offset);
    if (!s->offset)
        return kvd_no_memory(err, "a batch", (4 * slots + 1) * sizeof *s->offset);
    s->start = s->offset + slots + 1;
    s->whole = s->start + slots;
    s->slot = s->whole + slots;
    s->tokens = tokens;
    s->running.slot = s->slot;
    return 0;
}

void kvd_cpu_stepwise_release(kvd_cpu_stepwise *s)
{
    kvd_sequence_cache_release(&s->running);
    free(s->offset);
    memset(s, 0, sizeof *s);
}

/* Divides the time since the last clock reading among the phases of attention. A phase's share is
 * proportional to its seconds in *after minus its seconds in *before. */
static void divide(const kvd_stepwise_account *before, const kvd_stepwise_account *after,
                   kvd_phase attention, kvd_cpu_clock *clock)
{
    const kvd_phase phase[KVD_STEPWISE_PARTS] = {KVD_PHASE_ROTATE, KVD_PHASE_APPEND, attention,
                                                 KVD_PHASE_COMPRESS};
    double all = 0;
    if (!clock->times || !clock->parts)
        return;
    const double at = kvd_clock_s(), wall = at - clock->last;
    for (int i = 0; i < KVD_STEPWISE_PARTS; i++)
        all += after->seconds[i] - before->seconds[i];
    for (int i = 0; all > 0 && i < KVD_STEPWISE_PARTS; i++)
        clock->times->part[phase[i]] += wall * ((after->seconds[i] - before->seconds[i]) / all);
    clock->last = at;
}

int kvd_cpu_stepwise_run(kvd_cpu_stepwise *s, int layer, const kvd_iteration *it,
                         kvd_cpu_rows *rows, kvd_cpu_clock *clock, kvd_err *err)
{
    const kvd_config *const c = s->running.config;
    const kvd_stepwise_account before = s->running.account;
    for (size_t i = 0; i < it->n_slices; i++) {
        s->offset[i + 1] = s->offset[i] + it->slice[i].n;
        s->start[i] = it->slice[i].before;
        s->slot[i] = it->slice[i].slot;
        s->whole[i] = it->slice[i].whole ? it->slice[i].whole : s->tokens;
        if (layer == 0 && !it->slice[i].before)
            kvd_sequence_cache_end(&s->running, s->slot[i]);
    }
    const kvd_attention_in in = {.config = c,
                                 .layer = layer,
                                 .n_sequences = it->n_slices,
                                 .offset = s->offset,
                                 .n_tokens = it->n_tokens,
                                 .q = rows->q,
                                 .k = rows->k,
                                 .v = rows->v,
                                 .k_pre =
                                     c->positions == KVD_POSITIONS_ROPE ? rows->k_pre : rows->k,
                                 .input = rows->needs & KVD_NEEDS_INPUT ? rows->input : NULL,
                                 .start = s->start,
                                 .whole = s->whole,
                                 .window = kvd_config_window(c, layer)};
    if (s->running.hook.run(&s->running.hook, &in, rows->o, err))
        return -1;
    divide(&before, &s->running.account, it->n_steps ? KVD_PHASE_DECODE : KVD_PHASE_PREFILL, clock);
    return 0;
}

void kvd_cpu_stepwise_end(kvd_cpu_stepwise *s, const kvd_iteration *it)
{
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            kvd_sequence_cache_end(&s->running, it->slice[i].slot);
}

double kvd_cpu_stepwise_bytes(const kvd_cpu_stepwise *s)
{
    double bits = 0;
    for (size_t i = 0; i < s->n; i++)
        bits += kvd_sequence_cache_bits(&s->running, i);
    return bits / 8;
}
