/* Allocates tables and scratch memory of quantisation methods on the GPU. */
#include "methods/bits/cuda/packed.h"
#include <stdlib.h>

#include "methods/bits/bits.h"
#include "methods/bits/levels.h"
#include "methods/tokens/cuda/evict.h"

static const char what[] = "coded cache";

static int copy_tables(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                       kvd_device_memory *memory, kvd_err *err)
{
    const kvd_config *const config = c->config;
    const size_t layers = (size_t)config->n_layers, heads = (size_t)config->n_kv_heads;
    kvd_kvquant_tables t;
    kvd_kvquant_tables_of(plan->bits_self, &t);
    const size_t first = (size_t)c->share->first_kv_head * t.range_width * 2;
    const size_t n_levels = (size_t)4 << layer[0].form.bits, n_range = heads * t.range_width * 2;
    const float *const level =
        kvd_device_from(memory, t.levels, layers * n_levels * sizeof *level, what, err);
    const float *const range =
        kvd_device_from(memory, t.range, layers * n_range * sizeof *range, what, err);
    if (memory->status)
        return -1;
    for (size_t l = 0; l < layers; l++) {
        layer[l].level = level + l * n_levels;
        layer[l].range = range + l * n_range + first;
        layer[l].range_width = (int32_t)t.range_width;
    }
    return 0;
}

static int copy_scales(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                       kvd_device_memory *memory, kvd_err *err)
{
    const kvd_scales *const scales = plan->bits == &kvd_bits_mxfp4 ? NULL : plan->bits_self;
    const int layers = c->config->n_layers, heads = c->config->n_kv_heads;
    if (!scales || !scales->scale)
        return 0;
    const size_t each = (size_t)heads * KVD_N_SIDES, bytes = (size_t)layers * each * sizeof(float);
    const float *const scale = kvd_device_from(memory, scales->scale, bytes, what, err);
    if (!scale)
        return -1;
    for (int l = 0; l < layers; l++)
        layer[l].scale = scale + (size_t)l * each + (size_t)c->share->first_kv_head * KVD_N_SIDES;
    return 0;
}

static int copy_turned(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                       kvd_device_memory *memory, kvd_err *err)
{
    kvd_packed_turned t;
    const float *level = NULL, *range = NULL, *matrix[4] = {NULL};
    const size_t each = sizeof *level;
    int status = kvd_gpu_packed_turned_make(plan, layer, &t, err);
    if (!status) {
        const float *const from[] = {t.turn_rows, t.turn_outputs, t.sketch_rows, t.sketch_back};
        level = kvd_device_from(memory, t.level, t.n_level * each, what, err);
        range = kvd_device_from(memory, t.range, t.n_range * each, what, err);
        for (int i = 0; i < 4 && from[i]; i++)
            matrix[i] = kvd_device_from(memory, from[i], t.n_matrix * each, what, err);
        status = memory->status;
    }
    kvd_gpu_packed_turned_free(&t);
    for (int l = 0; !status && l < c->config->n_layers; l++) {
        layer[l].level = level;
        layer[l].range = range;
        layer[l].turn_rows = matrix[0];
        layer[l].turn_outputs = matrix[1];
        layer[l].sketch_rows = matrix[2];
        layer[l].sketch_back = matrix[3];
    }
    return status;
}

static int copy_allot(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                      kvd_device_memory *memory, kvd_err *err)
{
    kvd_allot_tables t;
    kvd_allot_tables_of(plan->bits_self, &t);
    const size_t layers = (size_t)c->config->n_layers, first = (size_t)c->share->first_kv_head,
                 mine = (size_t)c->share->n_kv_heads * KVD_N_SIDES * t.wide,
                 each = t.n_kv_heads * KVD_N_SIDES * t.wide, skip = first * KVD_N_SIDES * t.wide,
                 levels = (size_t)KVD_N_SIDES * (KVD_ALLOT_BITS + 1) << KVD_ALLOT_BITS;
    uint16_t *const word = malloc(layers * mine * sizeof *word);
    if (!word)
        return kvd_no_memory(err, what, layers * mine * sizeof *word);
    for (size_t l = 0; l < layers; l++)
        kvd_gpu_packed_allot(plan, (int)l, (int)first, &layer[l], word + l * mine);
    const uint8_t *const bits = kvd_device_from(memory, t.given, layers * each, what, err);
    const float *const scale =
        kvd_device_from(memory, t.scale, 2 * layers * each * sizeof *scale, what, err);
    const float *const level =
        kvd_device_from(memory, t.levels, layers * levels * sizeof *level, what, err);
    const uint16_t *const at =
        kvd_device_from(memory, word, layers * mine * sizeof *word, what, err);
    for (size_t l = 0; !memory->status && l < layers; l++)
        layer[l].allot = (kvd_packed_allot){.wide = (int32_t)t.wide,
                                            .bits = bits + l * each + skip,
                                            .word = at + l * mine,
                                            .scale = scale + 2 * (l * each + skip),
                                            .level = level + l * levels};
    free(word);
    return memory->status;
}

static int copy_orders(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                       kvd_device_memory *memory, kvd_err *err)
{
    kvd_rotatekv_tables t;
    kvd_rotatekv_tables_of(plan->bits_self, &t);
    const size_t layers = (size_t)c->config->n_layers;
    const uint32_t *const order =
        kvd_device_from(memory, t.order, layers * t.wide * sizeof *order, what, err);
    if (!order)
        return -1;
    for (size_t l = 0; l < layers; l++) {
        layer[l].row.order = order + l * t.wide;
        layer[l].row.turned = (int32_t)t.heads;
        layer[l].row.clip = t.clip;
    }
    return 0;
}

static int make_rope_table(const kvd_paged_cache *c, kvd_packed_args *layer,
                           kvd_device_memory *memory, kvd_err *err)
{
    const int d = c->config->d_head;
    if (!layer[0].before_rope || d % 32)
        return 0;
    uint32_t *const turn = kvd_device_new(memory, kvd_packed_rope_table_bytes(d), what, err);
    if (!turn ||
        kvd_cuda_check(kvd_packed_rope_table(c->cosine, c->sine, d, turn, NULL), what, err) ||
        kvd_cuda_check(cudaStreamSynchronize(NULL), what, err))
        return -1;
    for (int l = 0; l < c->config->n_layers; l++)
        layer[l].turn = turn;
    return 0;
}

static int copy_parts(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                      kvd_device_memory *memory, kvd_err *err)
{
    kvd_packed_split_codes *const s = &layer[0].split;
    const int d = c->config->d_head, chosen = kvd_packed_chosen(&s->of, KVD_KEYS, d);
    for (int part = 0; part < 2; part++) {
        const size_t m = (size_t)(part ? d - chosen : chosen), bytes = m * m * sizeof(float);
        kvd_turboquant_tables t;
        if (!m)
            continue;
        if (kvd_turboquant_tables_of(plan->bits_self, m, &t, err))
            return -1;
        s->level[part] = kvd_device_from(memory, t.levels, 3 * 256 * sizeof *t.levels, what, err);
        s->rotation[part] = kvd_device_from(memory, t.rotation, bytes, what, err);
        if (t.sketch)
            s->sketch[part] = kvd_device_from(memory, t.sketch, bytes, what, err);
    }
    for (int l = 1; l < c->config->n_layers; l++)
        layer[l].split = *s;
    return memory->status;
}

/* Fills kvd_packed_split_codes.wave in device memory: cosines and sines of the Fourier transforms
 * of method vidkv. */
static int make_waves(const kvd_paged_cache *c, kvd_packed_args *layer, kvd_device_memory *memory,
                      kvd_err *err)
{
    const size_t n = KVD_WIDTH_MAX * (KVD_WIDTH_MAX + 1);
    double *const wave = malloc(n * sizeof *wave);
    if (!wave)
        return kvd_no_memory(err, "tables of a Fourier transform", n * sizeof *wave);
    kvd_gpu_packed_waves(wave);
    const double *const there = kvd_device_from(memory, wave, n * sizeof *wave, what, err);
    free(wave);
    for (int l = 0; l < c->config->n_layers; l++)
        layer[l].split.wave = there;
    return memory->status;
}

int kvd_gpu_packed_tables(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                          kvd_device_memory *memory, kvd_err *err)
{
    return kvd_status(
        (kvd_gpu_packed_has_levels(plan) &&
         (copy_tables(plan, c, layer, memory, err) || make_rope_table(c, layer, memory, err))) ||
        (kvd_gpu_packed_has_floats(plan) && copy_scales(plan, c, layer, memory, err)) ||
        (kvd_gpu_packed_is_turned(plan) && copy_turned(plan, c, layer, memory, err)) ||
        (plan->bits == &kvd_bits_vidkv && make_waves(c, layer, memory, err)) ||
        (kvd_gpu_packed_is_parted(plan) && copy_parts(plan, c, layer, memory, err)) ||
        (plan->bits == &kvd_bits_allot && copy_allot(plan, c, layer, memory, err)) ||
        (plan->bits == &kvd_bits_rotatekv && copy_orders(plan, c, layer, memory, err)));
}

int kvd_gpu_packed_salience_make(kvd_gpu_method *m, kvd_packed_salience *s,
                                 kvd_device_memory *memory, kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    const size_t slices = c->batch->max_slices, rows = c->batch->max_tokens + 8 * slices,
                 heads = (size_t)c->share->n_heads, kv = (size_t)c->share->n_kv_heads;
    s->mass = kvd_device_new(memory, heads * rows * sizeof *s->mass, what, err);
    s->score = kvd_device_new(memory, kv * rows * sizeof *s->score, what, err);
    m->lse = kvd_device_new(memory, heads * rows * sizeof *m->lse, what, err);
    m->lse_steps = kvd_device_new(memory, slices * heads * sizeof *m->lse, what, err);
    return memory->status;
}

int kvd_gpu_packed_weigh_prompts(const kvd_gpu_method *m, const kvd_packed_salience *s,
                                 const kvd_paged_rows *r, kvd_packed_args *a, kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    const kvd_step_batch *const b = c->batch;
    /* Attention scores need all dimensions of the keys, even if the cache stores fewer
     * dimensions. */
    kvd_evict_prompts_args of = {.map = c->whole ? c->whole[r->layer].map : a->map,
                                 .rule = {.ranking = KVD_EVICT_ATTENTION, .smooth = 1},
                                 .hopper = c->hopper,
                                 .layer = r->layer,
                                 .batch = a->n,
                                 .n_q8 = (int32_t)b->n_q8,
                                 .max_pages = a->max_pages,
                                 .q_start = b->device.q_start + r->steps,
                                 .q_len = a->q_len,
                                 .slot = a->slot,
                                 .page_table = a->page_table,
                                 .q = c->q_prompts,
                                 .pool = c->whole ? c->whole_pool : a->rows,
                                 .lse = m->lse,
                                 .mass = s->mass};
    for (size_t i = r->steps; i < r->steps + r->prompts; i++)
        of.longest = b->host.q_len[i] > of.longest ? b->host.q_len[i] : of.longest;
    a->classes.mass = s->mass;
    a->classes.score = s->score;
    a->classes.q_start = of.q_start;
    a->classes.n_q8 = of.n_q8;
    return kvd_cuda_check(kvd_evict_score_any(&of, r->stream), "saliences of tokens", err);
}
