/* Memory and page layouts of method zdc, for important tokens (`high`) and less important tokens
 * (`low`). */
#include <math.h>
#include <stdlib.h>

#include "kernels/cuda/decode.h"
#include "methods/tokens/cuda/zdc_method.h"
#include "model/checkpoint/cuda/random.h"

static const char what[] = "two widths of tokens";

enum { OVERLAP = 2, MEAN /* indices in the parameter table of tokens/importance.c */ };

static int make_lists(kvd_zdc *z, kvd_err *err)
{
    const kvd_paged_cache *const c = z->method.cache;
    const size_t rows = c->batch->max_slices, all = kvd_zdc_layers(z) * rows * sizeof(int32_t),
                 table = rows * (c->pages->max_pages + 1) * sizeof *z->table;
    z->end = kvd_device_new(&z->memory, all, what, err);
    z->low_len = kvd_device_new(&z->memory, all, what, err);
    z->table = kvd_device_new(&z->memory, table, what, err);
    return z->memory.status;
}

int kvd_zdc_make_pool(kvd_zdc *z, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    const kvd_random_tensor normal = kvd_random_tensor_of(1, what, 1, 0);
    size_t n = 0;
    for (size_t l = 0; l < kvd_zdc_layers(z); l++) {
        z->layer[l].at = n;
        n += (pages + 1 + slots) * (size_t)z->layer[l].low.page_elements;
    }
    z->stream = stream;
    z->own = (int32_t)pages + 1;
    z->slot = kvd_device_host(&z->memory, slots * sizeof *z->slot, what, err);
    z->store = kvd_device_new(&z->memory, n * sizeof *z->store, "the cache", err);
    return kvd_status(
        kvd_zdc_levels_make_slots(&z->levels, &z->memory, z->method.cache, slots, err) ||
        make_lists(z, err) ||
        kvd_cuda_check(kvd_gpu_random_fill(KVD_BF16, &normal, 0, n, z->store, stream), what, err));
}

/* Makes a layout in which every KV head occurs twice: first the heads of `high`, then those of
 * `low`. Both kinds of heads use the same queries. */
static void join(const kvd_attn_map *high, const kvd_attn_map *low, kvd_attn_map *both)
{
    *both = *high;
    both->n_heads += low->n_heads;
    both->n_kv_heads += low->n_kv_heads;
    both->o_pitch += low->o_pitch;
    for (int g = 0; g < low->n_kv_heads; g++) {
        both->d_qk[high->n_kv_heads + g] = low->d_qk[g];
        both->d_v[high->n_kv_heads + g] = low->d_v[g];
        both->kv_offset[high->n_kv_heads + g] = low->kv_offset[g];
    }
    for (int h = 0; h < low->n_heads; h++) {
        both->q_offset[high->n_heads + h] = high->q_offset[h];
        both->o_offset[high->n_heads + h] = high->o_pitch + low->o_offset[h];
    }
}

/* Returns the projections of less important tokens in layer l, an index among the layers without a
 * sliding window. */
static const kvd_dims_head *low_heads(const kvd_zdc *z, int l)
{
    const kvd_dims *const dims = z->dims_low;
    const int layer = kvd_paged_full_layer(z->method.cache, (size_t)l);
    return &dims->head[layer * dims->n_kv_heads + z->method.cache->share->first_kv_head];
}

static const kvd_cache_layer *high_of(const kvd_zdc *z, int l)
{
    return &z->method.cache->layer[kvd_paged_full_layer(z->method.cache, (size_t)l)];
}

/* Makes the page layouts of a layer without a sliding window. Index l counts only such layers. */
static int resolve_layer(kvd_zdc *z, int l, kvd_err *err)
{
    kvd_paged_cache *const c = z->method.cache;
    const kvd_dims_head *const head = low_heads(z, l);
    const kvd_attn_map *const high = &high_of(z, l)->map;
    kvd_zdc_layer *const to = &z->layer[l];
    kvd_attn_heads low = {c->share->n_heads, c->share->n_kv_heads, c->config->d_head, {0}, {0}, 0};
    int most[2] = {0, 0};
    for (int g = 0; g < low.n_kv_heads; g++) {
        low.d_qk[g] = kvd_pad16(head[g].d_qk, low.d_head);
        low.d_v[g] = kvd_pad16(head[g].d_v, low.d_head);
        to->numbers[KVD_ZDC_LOW] += head[g].d_qk + head[g].d_v;
        most[0] = low.d_qk[g] > most[0] ? low.d_qk[g] : most[0];
        most[1] = low.d_v[g] > most[1] ? low.d_v[g] : most[1];
    }
    /* Gives all KV heads equal widths, as unmodified attention kernels require. */
    for (int g = 0; c->attention == KVD_ATTENTION_STOCK && g < low.n_kv_heads; g++) {
        low.d_qk[g] = most[0];
        low.d_v[g] = most[1];
    }
    if (kvd_attn_map_make(&low, &to->low))
        return kvd_fail(err, "layer %d: low widths that the kernels do not take",
                        kvd_paged_full_layer(c, (size_t)l));
    to->entry[KVD_ZDC_LOW] = (double)to->low.page_elements * sizeof(uint16_t) / KVD_PAGE_TOKENS;
    to->entry[KVD_ZDC_HIGH] = (double)high->page_elements * sizeof(uint16_t) / KVD_PAGE_TOKENS;
    to->numbers[KVD_ZDC_HIGH] = (double)high_of(z, l)->kept;
    to->low.page_elements = high->page_elements;
    join(high, &to->low, &to->both);
    return 0;
}

static void describe_head(const kvd_zdc *z, int l, int g, kvd_zdc_head *to)
{
    const kvd_dims_head *const low = &low_heads(z, l)[g];
    const kvd_attn_map *const map[KVD_ZDC_STORES] = {
        [KVD_ZDC_HIGH] = &high_of(z, l)->map, [KVD_ZDC_LOW] = &z->layer[l].low};
    to->kept[0] = (int16_t)low->d_qk;
    to->kept[1] = (int16_t)low->d_v;
    for (int s = 0; s < KVD_ZDC_STORES; s++) {
        to->width[s][0] = map[s]->d_qk[g];
        to->width[s][1] = map[s]->d_v[g];
        to->in_page[s][0] = map[s]->kv_offset[g];
        to->in_page[s][1] = map[s]->kv_offset[g] + KVD_PAGE_TOKENS * map[s]->d_qk[g];
        /* The layout `both` lists all heads for important tokens, then all heads for less important
         * tokens. */
        to->in_row[s] = z->layer[l].both.o_offset[s * map[s]->n_heads + g * map[s]->group];
    }
}

static int make_heads(kvd_zdc *z, kvd_err *err)
{
    const kvd_paged_cache *const c = z->method.cache;
    const size_t kv = (size_t)c->share->n_kv_heads, n = kvd_zdc_layers(z) * kv;
    kvd_zdc_head *const host = calloc(n, sizeof *host);
    if (!host)
        return kvd_no_memory(err, what, n * sizeof *host);
    int status = 0;
    for (size_t l = 0; !status && l < kvd_zdc_layers(z); l++) {
        status = resolve_layer(z, (int)l, err);
        for (size_t g = 0; !status && g < kv; g++)
            describe_head(z, (int)l, (int)g, host + l * kv + g);
    }
    if (!status)
        z->head = kvd_device_from(&z->memory, host, n * sizeof *host, what, err);
    free(host);
    return z->head ? 0 : -1;
}

/* Allocates the workspaces of all layers as parts of one array. Each is aligned to 256 bytes. */
static int make_workspaces(kvd_zdc *z, kvd_err *err)
{
    const kvd_paged_cache *const c = z->method.cache;
    char *all = NULL;
    for (int pass = 0; pass < 2; pass++) {
        size_t bytes = 0;
        for (size_t l = 0; l < kvd_zdc_layers(z); l++) {
            const size_t one = kvd_decode_workspace_bytes(
                &z->layer[l].both, (int)c->batch->max_slices, (int)c->max_len, c->n_sms);
            z->layer[l].workspace = all ? all + bytes : NULL;
            bytes += (one + 255) / 256 * 256;
        }
        if (!all)
            all = kvd_device_filled(&z->memory, bytes, 0, "work lists of attention", err);
    }
    return z->memory.status;
}

int kvd_zdc_levels_make(kvd_zdc_levels *v, kvd_device_memory *m, const kvd_paged_cache *c,
                        kvd_err *err)
{
    const size_t rows = c->batch->max_tokens + 8 * c->batch->max_slices,
                 heads = (size_t)c->share->n_heads, gpus = (size_t)c->share->count;
    v->lse = kvd_device_new(m, heads * rows * sizeof *v->lse, what, err);
    v->value = kvd_device_new(m, rows * sizeof *v->value, what, err);
    v->level = kvd_device_new(m, rows, what, err);
    v->place = kvd_device_new(m, rows * sizeof *v->place, what, err);
    v->sum = gpus > 1 ? kvd_device_new(m, gpus * rows * sizeof *v->sum, what, err) : NULL;
    return m->status;
}

static size_t counts_bytes(const kvd_zdc_levels *v, const kvd_paged_cache *c)
{
    return v->n_slots * (size_t)c->n_full * sizeof *v->n_low;
}

int kvd_zdc_levels_make_slots(kvd_zdc_levels *v, kvd_device_memory *m, const kvd_paged_cache *c,
                              size_t slots, kvd_err *err)
{
    v->n_slots = slots;
    v->n_low = kvd_device_filled(m, counts_bytes(v, c), 0, what, err);
    v->host_low = kvd_device_pinned(m, counts_bytes(v, c), what, err);
    return m->status;
}

int kvd_zdc_levels_put(const kvd_zdc_levels *v, const kvd_paged_cache *c, cudaStream_t stream,
                       kvd_err *err)
{
    return kvd_queue_put(v->n_low, v->host_low, counts_bytes(v, c), stream, what, err);
}

int kvd_zdc_levels_get(const kvd_zdc_levels *v, const kvd_paged_cache *c, cudaStream_t stream,
                       kvd_err *err)
{
    return kvd_queue_get(v->host_low, v->n_low, counts_bytes(v, c), stream, what, err);
}

int kvd_zdc_first_of(const kvd_plan *p, int layer)
{
    const int together = kvd_tokens_layers(&p->tokens_values);
    return together ? layer - layer % together : layer;
}

void kvd_zdc_levels_suppose(const kvd_zdc_levels *v, const kvd_plan *p, int n_layers, size_t slot,
                            size_t prompt)
{
    for (int l = 0; l < n_layers; l++) {
        const double share =
            kvd_tokens_important(&p->tokens_values, kvd_zdc_first_of(p, l), n_layers);
        v->host_low[slot * (size_t)n_layers + (size_t)l] =
            (int32_t)(prompt - (size_t)lround(share * (double)prompt));
    }
}

kvd_zdc_choose_args kvd_zdc_levels_args(const kvd_zdc_levels *v, const kvd_paged_cache *c,
                                        const kvd_plan *p, const kvd_paged_rows *r)
{
    const kvd_parameter_values *const value = &p->tokens_values;
    const int layers = c->n_full, layer = c->kind_index[r->layer],
              together = kvd_tokens_layers(value), left = layers - layer;
    return (kvd_zdc_choose_args){.batch = (int32_t)r->prompts,
                                 .n_heads = c->share->n_heads,
                                 .n_q8 = (int32_t)c->batch->n_q8,
                                 .longest = kvd_paged_longest(r, c->batch->host.q_len),
                                 .q_start = c->batch->device.q_start + r->steps,
                                 .q_len = c->batch->device.q_len + r->steps,
                                 .lse = v->lse,
                                 .mean = value->value[MEAN] > 0,
                                 .share = kvd_tokens_important(value, layer, layers),
                                 .span = !together         ? 1
                                         : together < left ? together
                                                           : left,
                                 .overlap = together ? 2 : value->value[OVERLAP],
                                 .value = v->value,
                                 .level = v->level,
                                 .place = v->place};
}

int kvd_zdc_choose_by_all(const kvd_paged_cache *c, const kvd_zdc_choose_args *args,
                          const kvd_zdc_levels *v, cudaStream_t stream, kvd_err *err)
{
    const kvd_gpu_worker *const w = c->worker;
    kvd_zdc_choose_args a = *args;
    float *const sum = v->sum;
    if (sum) {
        const int own = c->share->index;
        const size_t each = (size_t)a.n_q8, n = (size_t)c->share->count * each;
        /* Zeroes the elements that other GPUs compute, because the arrays of all GPUs will be
         * added. */
        if (kvd_cuda_check(cudaMemsetAsync(sum, 0, n * sizeof *sum, stream), what, err) ||
            kvd_cuda_check(kvd_zdc_value(&a, sum + (size_t)own * each, stream), what, err) ||
            kvd_clock_end(c->clock, KVD_PHASE_COMPRESS, stream, err) ||
            kvd_gpu_sum_add(w->sum, own, sum, n, stream, err) ||
            kvd_clock_end(c->clock, KVD_PHASE_COMM, stream, err))
            return -1;
        a.lse = sum;
        a.n_heads = c->share->count;
    }
    return kvd_cuda_check(kvd_zdc_choose(&a, stream), "importance of tokens", err);
}

static int make_rows(kvd_zdc *z, kvd_err *err)
{
    const kvd_paged_cache *const c = z->method.cache;
    const size_t slices = c->batch->max_slices, rows = c->batch->max_tokens + 8 * slices,
                 heads = (size_t)c->share->n_heads;
    size_t o = 0;
    for (size_t l = 0; l < kvd_zdc_layers(z); l++)
        o = kvd_larger(o, (size_t)z->layer[l].both.o_pitch);
    kvd_device_memory *const m = &z->memory;
    z->works = kvd_device_host(m, (slices + 1) * sizeof *z->works, what, err);
    z->host_works =
        kvd_device_host(m, kvd_zdc_layers(z) * kvd_decode_plan_layer_bytes(), what, err);
    if (z->method.plan->tokens == &kvd_tokens_received)
        z->mass = kvd_device_new(m, heads * rows * sizeof *z->mass, what, err);
    z->lse_steps = kvd_device_filled(m, 2 * slices * heads * sizeof *z->lse_steps, 0, what, err);
    z->o = kvd_device_filled(m, slices * o * sizeof(uint16_t), 0, what, err);
    return kvd_zdc_levels_make(&z->levels, m, c, err);
}

int kvd_zdc_make(kvd_zdc *z, kvd_err *err)
{
    return make_heads(z, err) || make_workspaces(z, err) || make_rows(z, err) ? -1 : 0;
}
