#include "methods/account.h"

#include <assert.h>

void kvd_stepwise_account_add(kvd_stepwise_account *sum, const kvd_stepwise_account *a)
{
    sum->rows += a->rows;
    sum->payload += a->payload;
    sum->side += a->side;
    sum->entries += a->entries;
    sum->read += a->read;
    sum->unread += a->unread;
    sum->dense += a->dense;
    /* The peak memory of all heads is the sum of the heads' peaks, because they store tokens at the
     * same time. */
    sum->peak += a->peak;
    sum->dropped += a->dropped;
    sum->lowered += a->lowered;
    sum->coded += a->coded;
    sum->merged += a->merged;
    sum->pruned += a->pruned;
    for (int i = 0; i < KVD_STEPWISE_PARTS; i++)
        sum->seconds[i] += a->seconds[i];
}

int kvd_cache_check_steps(const kvd_stepwise_account *a, const kvd_plan *plan, size_t rows,
                          kvd_err *err)
{
    if (a->rows != rows)
        return kvd_fail(err, "the cache took %zu steps, not %zu", a->rows, rows);
    if (plan->levels && a->dropped == 0)
        return kvd_fail(err,
                        "'%s' dropped no entry: its budget, window or threshold keeps every entry, "
                        "or the sliding window of every layer is shorter than the sequences",
                        plan->tokens->info.name);
    if (plan->levels && a->lowered == 0)
        return kvd_fail(err, "'%s' lowered no entry", plan->levels->info.name);
    if (plan->tokens && plan->tokens->lowers && !kvd_plan_two_levels(plan) && a->dropped == 0)
        return kvd_fail(err, "'%s' dropped no entry, and entries that it lowers take no fewer bits",
                        plan->tokens->info.name);
    if (plan->tokens && plan->tokens->select && a->unread + a->dropped == 0)
        return kvd_fail(err, "'%s' read every entry at every step: its budget holds every sequence",
                        plan->tokens->info.name);
    if (plan->tokens && !plan->tokens->select && a->dropped + a->lowered == 0)
        return kvd_fail(err,
                        "'%s' dropped and lowered no entry: its budget, window or threshold keeps "
                        "every entry, or the sliding window of every layer is shorter than the "
                        "sequences",
                        plan->tokens->info.name);
    if (plan->tokens && plan->tokens->merge && a->merged == 0)
        return kvd_fail(err, "'%s' merged no entry", plan->tokens->info.name);
    if (plan->layers && a->merged == 0)
        return kvd_fail(err, "'%s' merged no entry", plan->layers->info.name);
    if (plan->channels && a->pruned == 0)
        return kvd_fail(err,
                        "'%s' shortened no entry: p removes less than one channel of a head, or no "
                        "prompt is longer than what it leaves whole",
                        plan->channels->info.name);
    if (plan->bits && a->coded == 0)
        return kvd_fail(err,
                        "'%s' coded no entry: no sequence is longer than what it leaves exact, the "
                        "first tokens (sink), the newest ones and unfinished blocks",
                        plan->bits->info.name);
    return 0;
}

int kvd_cache_check(const kvd_cache_account *a, const kvd_config *config, const kvd_plan *plan,
                    size_t n_sequences, size_t n_tokens, size_t n_steps, int first_layer,
                    kvd_err *err)
{
    const size_t layers = (size_t)(config->n_layers - first_layer),
                 n_kv = (size_t)config->n_kv_heads;
    const kvd_dims *const dims = plan->dims;
    size_t kept = 0;
    const size_t share = dims && dims->rebuild ? (size_t)dims->heads : 1;
    for (size_t i = (size_t)first_layer * n_kv; i < (size_t)config->n_layers * n_kv; i += share)
        kept += dims ? (size_t)dims->head[i].d_qk + (size_t)dims->head[i].d_v
                     : kvd_config_cached(config) / n_kv;
    if (a->calls != n_sequences * layers)
        return kvd_fail(err,
                        "the cache acted %zu times, not on each of %zu sequences in %zu layers",
                        a->calls, n_sequences, layers);
    if (a->tokens != n_tokens * layers)
        return kvd_fail(err, "the cache stored %zu rows, not each of %zu tokens in %zu layers",
                        a->tokens, n_tokens, layers);
    if (kvd_plan_stepwise(plan))
        return kvd_cache_check_steps(&a->steps, plan, n_steps * layers * n_kv, err);
    if (a->elements_kept != n_tokens * kept)
        return kvd_fail(err, "the cache stored %zu numbers, the widths make %zu", a->elements_kept,
                        n_tokens * kept);
    return 0;
}

void kvd_cache_account_add(kvd_cache_account *sum, const kvd_cache_account *a)
{
    sum->calls += a->calls;
    sum->tokens += a->tokens;
    sum->tokens_held += a->tokens_held;
    sum->elements_kept += a->elements_kept;
    sum->elements_dense += a->elements_dense;
    sum->bytes_stored += a->bytes_stored;
    kvd_stepwise_account_add(&sum->steps, &a->steps);
}

size_t kvd_cache_tokens_held(const size_t *offset, size_t n_sequences, size_t window)
{
    size_t held = 0;
    for (size_t s = 0; s < n_sequences; s++) {
        const size_t n = offset[s + 1] - offset[s];
        held += window && window < n ? window : n;
    }
    return held;
}

double kvd_cache_window_share(const kvd_config *c, size_t n)
{
    const size_t offset[] = {0, n};
    double held = 0;
    for (int l = 0; l < c->n_layers; l++)
        held += (double)kvd_cache_tokens_held(offset, 1, kvd_config_window(c, l));
    return held / ((double)n * c->n_layers);
}

void kvd_cache_account_whole(const kvd_config *c, const kvd_plan *plan, const size_t *offset,
                             size_t n_sequences, kvd_cache_account *sum)
{
    assert(!plan->dims && !kvd_plan_stepwise(plan));
    const size_t layers = (size_t)c->n_layers, each = kvd_config_cached(c),
                 n_tokens = offset[n_sequences] - offset[0];
    for (int l = 0; l < c->n_layers; l++) {
        const size_t held = kvd_cache_tokens_held(offset, n_sequences, kvd_config_window(c, l));
        sum->tokens_held += held;
        sum->bytes_stored += held * each * kvd_dtype_bytes(plan->type);
    }
    sum->calls += n_sequences * layers;
    sum->tokens += n_tokens * layers;
    sum->elements_kept += n_tokens * layers * each;
    sum->elements_dense += n_tokens * layers * each;
}

void kvd_cache_count_bytes(const kvd_config *c, const kvd_dims *dims, size_t element_bytes,
                           kvd_cache_bytes *out)
{
    assert(!dims || (dims->n_layers == c->n_layers && dims->n_kv_heads == c->n_kv_heads));
    const double bytes = (double)element_bytes, d = c->d_head;
    const double all = (double)c->n_layers * (double)kvd_config_cached(c);
    double kept = 0, kept16 = 0, basis = 0;
    for (int i = 0; dims && i < c->n_layers * c->n_kv_heads; i++) {
        const kvd_dims_head *const h = &dims->head[i];
        kept += h->d_qk + h->d_v;
        kept16 += kvd_pad16(h->d_qk, c->d_head) + kvd_pad16(h->d_v, c->d_head);
        if (c->positions == KVD_POSITIONS_ROPE)
            basis += (h->a_q ? d * h->d_qk : 0) + (h->a_k && h->a_k != h->a_q ? d * h->d_qk : 0);
    }
    if (!dims)
        kept = kept16 = all;
    out->dense = all * bytes;
    out->nominal = kept * bytes;
    out->padded = kept16 * bytes;
    out->basis = basis * bytes;
    out->overall_p = 1 - kept / all;
    out->overall_p16 = 1 - kept16 / all;
}
