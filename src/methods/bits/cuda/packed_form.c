/* Decides which quantisation methods store quantised pages on the GPU, and computes the layout of
 * the pages. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/bits/bits.h"
#include "methods/bits/cuda/packed.h"
#include "methods/bits/levels.h"
#include "methods/method.h"

double kvd_gpu_packed_value(const kvd_plan *plan, const char *key)
{
    for (size_t i = 0; plan->bits->info.parameter[i].key; i++)
        if (!strcmp(plan->bits->info.parameter[i].key, key))
            return plan->bits_values.value[i];
    return 0;
}

bool kvd_gpu_packed_has_levels(const kvd_plan *plan)
{
    return plan->bits == &kvd_bits_kvquant;
}

bool kvd_gpu_packed_has_floats(const kvd_plan *plan)
{
    return plan->bits == &kvd_bits_fp8 || plan->bits == &kvd_bits_mxfp4 ||
           plan->bits == &kvd_bits_nvfp4;
}

bool kvd_gpu_packed_takes_wide(const kvd_plan *plan)
{
    return kvd_gpu_packed_has_floats(plan) || plan->bits == &kvd_bits_kivi ||
           plan->bits == &kvd_bits_comet || plan->bits == &kvd_bits_vidkv ||
           plan->bits == &kvd_bits_zipcache || kvd_gpu_packed_is_parted(plan);
}

bool kvd_gpu_packed_is_turned(const kvd_plan *plan)
{
    return plan->bits == &kvd_bits_turboquant && !kvd_gpu_packed_is_parted(plan);
}

bool kvd_gpu_packed_is_parted(const kvd_plan *plan)
{
    const double bits = kvd_gpu_packed_value(plan, "bits");
    return plan->bits == &kvd_bits_turboquant && bits > floor(bits);
}

double kvd_gpu_packed_outliers(const kvd_plan *plan, const kvd_config *c)
{
    return kvd_gpu_packed_value(plan, "outliers") * KVD_PAGE_TOKENS * c->d_head;
}

static size_t coded(size_t m, size_t window, size_t block)
{
    return m > window ? (m - window) / block * block : 0;
}

static size_t beyond(size_t end, size_t from)
{
    return end > from ? end - from : 0;
}

/* Returns the bits that a vector takes in addition to the codes of its elements: its norm (method
 * turboquant), or its scales and its padding. */
static double block_bits(const kvd_packed_form *f, int d)
{
    if (f->norms)
        return 16;
    const int blocks = kvd_packed_blocks(f, d);
    return 8.0 * blocks + (double)(blocks ? blocks * f->block - d : 0) * f->bits;
}

/* Returns the number of bits of K or V of a token in KV head g. If the keys of all heads are
 * quantised together, returns all bits of K for head 0, and 0 for the other heads. */
static double row_bits(const kvd_packed_args *a, int side, int g)
{
    const kvd_packed_rows *const r = &a->row.of;
    const bool joint = r->joint && side == KVD_KEYS;
    const int n = joint ? g ? 0 : a->map.n_kv_heads * a->d_head : a->width[side][g];
    return n ? (double)n * r->bits[side] + 32.0 * kvd_packed_row_groups(r, side, n) : 0;
}

double kvd_gpu_packed_bits(const kvd_packed_args *a, int g, size_t from, size_t m)
{
    const kvd_packed_form *const f = &a->form;
    const int d_qk = a->width[KVD_KEYS][g], d_v = a->width[KVD_VALUES][g];
    const double k_side = block_bits(f, d_qk) + (f->sketch ? 16 : 0),
                 v_side = f->v_channels             ? 0
                          : f->exponent || f->norms ? block_bits(f, d_v)
                                                    : 32.0 * kvd_packed_groups(f, d_v);
    const double keys = (double)beyond(coded(m, 0, (size_t)a->k_block), from),
                 values =
                     f->v_channels ? keys : (double)beyond(coded(m, (size_t)a->v_newest, 1), from);
    const double groups = f->k_group ? keys / a->span : 0, scale = f->symmetric ? 16 : 32;
    const size_t n_sink = (size_t)a->n_sink;
    const double sink = (double)beyond(m < n_sink ? m : n_sink, from), plain = (double)(m - from);
    const double k_bits = f->rows       ? row_bits(a, KVD_KEYS, g)
                          : f->allotted ? a->allotted[KVD_KEYS][g]
                                        : d_qk * f->bits + k_side,
                 v_bits = f->rows       ? row_bits(a, KVD_VALUES, g)
                          : f->allotted ? a->allotted[KVD_VALUES][g]
                                        : d_v * f->bits + v_side + 32 * a->v_apart[g];
    return (keys - sink) * k_bits + groups * scale * (d_qk + (f->v_channels ? d_v : 0)) +
           (plain - keys + sink) * d_qk * 16 + (values - sink) * v_bits +
           (plain - values + sink) * d_v * 16;
}

static double gear_block_bits(const kvd_gear *s, int d_qk, int d_v, int n, bool prompt)
{
    return (double)n * (d_qk + d_v) * s->bits + kvd_gear_side_bits(s, true, n, d_qk, prompt) +
           kvd_gear_side_bits(s, false, n, d_v, prompt);
}

static double parted_block_bits(const kvd_packed_split *s, int side, int d, int n)
{
    const int chosen = kvd_packed_chosen(s, side, d), parts = (chosen > 0) + (chosen < d);
    return (double)n * (chosen * (s->bits + 1) + (d - chosen) * s->bits) + d +
           (s->sketch && !side ? 32.0 : 16.0) * parts * n;
}

static double split_block_bits(const kvd_packed_split *s, int d_qk, int d_v, int n)
{
    if (s->bits)
        return parted_block_bits(s, KVD_KEYS, d_qk, n) + parted_block_bits(s, KVD_VALUES, d_v, n);
    const kvd_packed_split_record r = kvd_packed_split_record_of(s, d_qk, d_v);
    const int chosen = r.channels[KVD_KEYS][0], others = r.channels[KVD_KEYS][1];
    const double groups = (double)n / s->group, numbers = (double)n * d_v;
    return (double)n * (2 * chosen + others) + groups * (32 * chosen + 16 * others) + d_qk +
           (s->ternary ? 8 * floor((numbers + 4) / 5) : 2 * numbers) +
           groups * (s->ternary ? 16 : 32) * d_v;
}

static double class_block_bits(const kvd_packed_classes *c, int d_qk, int d_v, int n)
{
    const int salient = kvd_packed_salient(c, n), others = n - salient;
    return (double)(d_qk + d_v) * (salient * c->bits[1] + others * c->bits[0]) + 2.0 * n +
           32.0 * d_qk * ((salient > 0) + (others > 0)) + 16.0 * d_v + 32.0 * n;
}

/* Returns the number of bits of a block of n tokens, quantised together, in KV head g. */
static double block_of_bits(const kvd_packed_args *a, int g, size_t n, bool prompt)
{
    const int d_qk = a->width[KVD_KEYS][g], d_v = a->width[KVD_VALUES][g];
    return !n                ? 0
           : a->form.classes ? class_block_bits(&a->classes.of, d_qk, d_v, (int)n)
           : a->form.split   ? split_block_bits(&a->split.of, d_qk, d_v, (int)n)
                             : gear_block_bits(&a->gear.of, d_qk, d_v, (int)n, prompt);
}

double kvd_gpu_packed_block_bits(const kvd_packed_args *a, int g, size_t from, size_t m,
                                 size_t prompt)
{
    const size_t block = (size_t)a->k_block, window = (size_t)a->map.window,
                 end = coded(prompt, 0, block), first = window ? coded(prompt, window, block) : 0,
                 last = coded(m, 0, block), later = from > end ? from : end,
                 plain = from > last ? from : last;
    double bits =
        (double)beyond(m, plain) * (a->width[KVD_KEYS][g] + a->width[KVD_VALUES][g]) * 16 +
        (double)beyond(last, later) / (double)block * block_of_bits(a, g, block, false);
    if (end > first)
        bits += block_of_bits(a, g, end - first, true) *
                ((double)beyond(end, from > first ? from : first) / (double)(end - first));
    return bits;
}

/* Computes how many tokens with fewer bits, and how many tokens with more bits, a page can hold
 * (method zipcache). */
static void set_class_room(kvd_packed_classes *c)
{
    const double of_block = (double)kvd_packed_salient(c, c->block) / c->block,
                 most = fmax(c->share, of_block), least = fmin(c->share, of_block);
    c->room[1] = (int32_t)ceil(KVD_PAGE_TOKENS * most);
    c->room[0] = (int32_t)ceil(KVD_PAGE_TOKENS * (1 - least));
    for (int k = 0; k < 2; k++)
        c->room[k] += c->room[k] == 0;
}

/* Computes how many outliers per key channel a page can hold (method gear). */
static void set_room(kvd_packed_gear *a)
{
    for (int n = a->of.buffer; n <= KVD_GEAR_TOKENS; n += a->of.buffer) {
        const int pages = kvd_gear_pieces(n, KVD_PAGE_TOKENS),
                  each = kvd_gear_pieces(2 * kvd_gear_apart(&a->of, n), pages);
        a->k_room = each > a->k_room ? each : a->k_room;
    }
}

static int32_t area_bytes(const kvd_gear *s, const kvd_gear_page *p)
{
    int32_t most = p->prompt + (s->buffer < KVD_PAGE_TOKENS ? 0 : p->record);
    for (int page = 0; page < s->buffer && page < KVD_PAGE_TOKENS; page++) {
        const int t = KVD_PAGE_TOKENS * page, skipped = kvd_gear_pieces(t, s->buffer),
                  blocks = kvd_gear_pieces(t + KVD_PAGE_TOKENS, s->buffer) - skipped,
                  mixed = blocks - (blocks && skipped * s->buffer == t);
        if (most < blocks * p->record)
            most = blocks * p->record;
        if (most < p->prompt + mixed * p->record)
            most = p->prompt + mixed * p->record;
    }
    return most;
}

static int32_t head_bytes(const kvd_packed_args *a, int g)
{
    const int d_qk = a->map.d_qk[g], d_v = a->map.d_v[g];
    const kvd_packed_rows *const r = &a->row.of;
    if (a->form.rows)
        return KVD_PAGE_TOKENS * 4 *
               ((r->joint ? 0 : kvd_packed_row_words(r, KVD_KEYS, d_qk)) +
                kvd_packed_row_words(r, KVD_VALUES, d_v));
    if (a->form.split)
        return KVD_PAGE_TOKENS / a->split.of.group *
               kvd_packed_split_record_of(&a->split.of, a->width[KVD_KEYS][g],
                                          a->width[KVD_VALUES][g])
                   .bytes;
    if (a->form.classes)
        return kvd_packed_class_page_of(&a->classes.of, d_qk, d_v).bytes;
    if (!a->form.low_rank)
        return kvd_packed_parts_of(&a->form, d_qk, d_v).bytes;
    const kvd_gear_page p = kvd_gear_page_of(&a->gear.of, a->gear.k_room, d_qk, d_v);
    return p.area + area_bytes(&a->gear.of, &p);
}

static int32_t pages_of(int32_t tokens)
{
    return tokens < 2 ? 1 : (tokens - 2) / KVD_PAGE_TOKENS + 2;
}

static void set_widths(const kvd_plan *plan, const kvd_dims_head *head, kvd_packed_args *a)
{
    for (int g = 0; g < a->map.n_kv_heads; g++) {
        const int d_v = head ? head[g].d_v : a->map.d_v[g];
        a->width[KVD_KEYS][g] = (uint16_t)(head ? head[g].d_qk : a->map.d_qk[g]);
        a->width[KVD_VALUES][g] = (uint16_t)d_v;
        if (!kvd_gpu_packed_has_levels(plan))
            continue;
        a->v_apart[g] = (uint8_t)(2 * kvd_kvquant_apart(&plan->bits_values, (size_t)d_v));
        if (a->form.v_apart < a->v_apart[g])
            a->form.v_apart = a->v_apart[g];
    }
}

void kvd_gpu_packed_set_floats(const kvd_plan *plan, kvd_packed_form *f)
{
    const bool fp8 = plan->bits == &kvd_bits_fp8;
    f->bits = fp8 ? 8 : 4;
    f->exponent = !fp8 ? 2 : kvd_gpu_packed_value(plan, "mantissa") > 2 ? 4 : 5;
    f->block = fp8 ? 0 : plan->bits == &kvd_bits_mxfp4 ? 32 : 16;
}

void kvd_gpu_packed_describe(const kvd_plan *plan, const kvd_config *c, const kvd_attn_map *map,
                             const kvd_dims_head *head, size_t room, kvd_packed_args *a)
{
    const double bits = kvd_gpu_packed_value(plan, "bits"),
                 apart = kvd_gpu_packed_outliers(plan, c);
    const int32_t group = (int32_t)kvd_gpu_packed_value(plan, "group"),
                  residual = (int32_t)kvd_gpu_packed_value(plan, "residual");
    *a = (kvd_packed_args){.map = *map,
                           .form = {.bits = (int32_t)bits, .v_group = KVD_WIDTH_NARROW},
                           .d_head = c->d_head,
                           .n_sink = (int32_t)kvd_gpu_packed_value(plan, "sink"),
                           .k_block = 1};
    if (kvd_gpu_packed_has_levels(plan)) {
        a->form.k_apart =
            apart > 0 ? room ? (int32_t)(room + 3) / 4 * 4 : (int32_t)ceil(apart + 16) * 4 : 0;
    } else if (kvd_gpu_packed_has_floats(plan)) {
        kvd_gpu_packed_set_floats(plan, &a->form);
    } else if (kvd_gpu_packed_is_turned(plan)) {
        a->form.norms = true;
        a->form.sketch = kvd_gpu_packed_value(plan, "qjl") > 0;
        a->range_width = c->d_head;
    } else if (plan->bits == &kvd_bits_allot) {
        a->form.bits = KVD_ALLOT_BITS;
        a->form.allotted = true;
    } else if (plan->bits == &kvd_bits_comet) {
        a->form.k_group = group < KVD_PAGE_TOKENS ? group : KVD_PAGE_TOKENS;
        a->form.v_channels = true;
        a->form.symmetric = kvd_gpu_packed_value(plan, "symmetric") > 0;
        a->k_block = a->span = group;
    } else if (plan->bits == &kvd_bits_hetero) {
        a->form.rows = true;
        a->form.bits = 1;
        a->row.of.bits[KVD_KEYS] = (int32_t)kvd_gpu_packed_value(plan, "k");
        a->row.of.bits[KVD_VALUES] = (int32_t)kvd_gpu_packed_value(plan, "v");
    } else if (plan->bits == &kvd_bits_rotatekv) {
        a->form.rows = true;
        a->row.of =
            (kvd_packed_rows){.bits = {a->form.bits, a->form.bits}, .group = group, .joint = true};
    } else if (kvd_gpu_packed_is_parted(plan)) {
        a->form.split = true;
        a->k_block = group;
        a->split.of = (kvd_packed_split){.group = group,
                                         .share = bits - floor(bits),
                                         .bits = (int32_t)bits,
                                         .sketch = kvd_gpu_packed_value(plan, "qjl") > 0};
    } else if (plan->bits == &kvd_bits_vidkv) {
        a->form.split = true;
        a->form.bits = 1;
        a->k_block = residual ? residual : group;
        a->split.of = (kvd_packed_split){.group = group,
                                         .share = kvd_gpu_packed_value(plan, "k") - 1,
                                         .ternary = kvd_gpu_packed_value(plan, "ternary") > 0};
    } else if (plan->bits == &kvd_bits_zipcache) {
        a->form.classes = true;
        a->form.bits = 1;
        a->k_block = (int32_t)kvd_gpu_packed_value(plan, "block");
        a->classes.of = (kvd_packed_classes){.bits = {(int32_t)kvd_gpu_packed_value(plan, "low"),
                                                      (int32_t)kvd_gpu_packed_value(plan, "high")},
                                             .block = a->k_block,
                                             .share = kvd_gpu_packed_value(plan, "share")};
        set_class_room(&a->classes.of);
    } else if (plan->bits == &kvd_bits_gear) {
        a->form.low_rank = true;
        a->gear.of = kvd_gear_of(&plan->bits_values);
        set_room(&a->gear);
        a->k_block = a->gear.of.buffer;
    } else {
        a->form.k_group = a->form.v_group = a->span = group;
        a->k_block = residual ? residual : group;
        a->v_newest = residual;
    }
    a->ring_pages = pages_of(a->k_block > a->v_newest + 1 ? a->k_block : a->v_newest + 1);
    a->interleaved = c->rope_layout == KVD_ROPE_INTERLEAVED;
    set_widths(plan, head, a);
    if (a->form.rows && a->row.of.joint)
        a->page_bytes =
            (size_t)(KVD_PAGE_TOKENS * 4 *
                     kvd_packed_row_words(&a->row.of, KVD_KEYS, map->n_kv_heads * c->d_head));
    for (int g = 0; g < map->n_kv_heads; g++) {
        a->head_at[g] = (int32_t)a->page_bytes;
        a->page_bytes += (size_t)head_bytes(a, g);
    }
}

void kvd_gpu_packed_allot(const kvd_plan *plan, int layer, int first_kv_head, kvd_packed_args *a,
                          uint16_t *word)
{
    kvd_allot_tables t;
    kvd_allot_tables_of(plan->bits_self, &t);
    const size_t first = (size_t)first_kv_head;
    a->page_bytes = 0;
    for (int g = 0; g < a->map.n_kv_heads; g++) {
        size_t words = 0;
        a->head_at[g] = (int32_t)a->page_bytes;
        for (int side = 0; side < KVD_N_SIDES; side++) {
            const size_t at =
                ((size_t)layer * t.n_kv_heads + first + (size_t)g) * KVD_N_SIDES + (size_t)side;
            a->allotted[side][g] = 0;
            for (size_t j = 0; j < t.wide; j++) {
                const uint8_t bits = t.given[at * t.wide + j];
                if (word)
                    word[((size_t)g * KVD_N_SIDES + (size_t)side) * t.wide + j] = (uint16_t)words;
                words += bits * (size_t)KVD_PAGE_TOKENS / 32;
                a->allotted[side][g] = (uint16_t)(a->allotted[side][g] + bits);
            }
        }
        a->page_bytes += (4 * words + 15) / 16 * 16;
    }
}

void kvd_gpu_packed_waves(double *wave)
{
    const double turn = 4 * acos(0);
    for (int m = 1; m <= KVD_WIDTH_MAX; m++)
        for (int i = 0; i < m; i++) {
            wave[m * (m - 1) + i] = cos(turn * i / m);
            wave[m * m + i] = sin(turn * i / m);
        }
}

int kvd_gpu_packed_turned_make(const kvd_plan *plan, const kvd_packed_args *a, kvd_packed_turned *t,
                               kvd_err *err)
{
    const size_t d = (size_t)a->d_head, levels = (size_t)1 << a->form.bits,
                 heads = (size_t)a->map.n_kv_heads;
    kvd_turboquant_tables of;
    *t = (kvd_packed_turned){.n_level = 4 * levels, .n_range = heads * d * 2, .n_matrix = d * d};
    if (kvd_turboquant_tables_of(plan->bits_self, d, &of, err))
        return -1;
    const size_t matrices = of.sketch ? 4 : 2, keys = a->form.sketch ? levels / 2 : levels;
    float **const matrix[] = {&t->turn_rows, &t->turn_outputs, &t->sketch_rows, &t->sketch_back};
    const size_t bytes = (t->n_level + t->n_range + matrices * t->n_matrix) * sizeof *t->level;
    if (!(t->level = malloc(bytes)))
        return kvd_no_memory(err, "a rotation", bytes);
    t->range = t->level + t->n_level;
    for (size_t k = 0; k < matrices; k++)
        *matrix[k] = t->range + t->n_range + k * t->n_matrix;
    for (size_t i = 0; i < t->n_level; i++)
        t->level[i] = (i / levels < 2 ? of.key_level[i % keys] : of.level[i % levels]) *
                      (i / levels % 2 ? KVD_PACKED_NORM : 1);
    for (size_t i = 0; i < t->n_range; i++)
        t->range[i] = (float)(i % 2);
    for (size_t k = 0; k < matrices; k++)
        for (size_t i = 0; i < t->n_matrix; i++)
            (*matrix[k])[i] = (k / 2 ? of.sketch : of.rotation)[k % 2 ? i : i % d * d + i / d];
    return 0;
}

void kvd_gpu_packed_turned_free(kvd_packed_turned *t)
{
    free(t->level);
    *t = (kvd_packed_turned){0};
}
