/* Tests LeanKV's page allocator on the GPU against a simple allocator on the CPU. */

#include "gpu_case.h"
#include "methods/tokens/cuda/leankv.h"

static int one_place_each(int d, int bits, int keys)
{
    const size_t words = (size_t)(KVD_LEANKV_TILE * d * bits / 32);
    uint32_t *const taken = need(words * sizeof *taken), mask = (1u << bits) - 1;
    int good = 1;
    for (int row = 0; row < KVD_LEANKV_TILE; row++)
        for (int f = 0; f < d; f++) {
            const kvd_leankv_place at = keys ? kvd_leankv_key_place(d, bits, row, f)
                                             : kvd_leankv_value_place(d, bits, row, f);
            good = good && at.word >= 0 && (size_t)at.word < words && at.shift >= 0 &&
                   at.shift + bits <= 32 && !(taken[at.word] & mask << at.shift);
            if (good)
                taken[at.word] |= mask << at.shift;
        }
    for (size_t w = 0; w < words; w++)
        good = good && taken[w] == ~0u;
    free(taken);
    return good;
}

static void test_layout(void)
{
    static const int width[] = {32, 64, 128};
    int places = 1, fits = 1;
    for (int i = 0; i < 3; i++)
        for (int k = 4; k <= 8; k *= 2)
            for (int v = 2; v <= 8; v *= 2) {
                const int k_bits[] = {k, 4}, v_bits[] = {v, 2};
                kvd_leankv_layout y;
                places = places && one_place_each(width[i], k, 1) && one_place_each(width[i], v, 0);
                if (kvd_leankv_layout_make(width[i], k_bits, v_bits, &y)) {
                    fits = 0;
                    continue;
                }
                for (int l = 0; l < KVD_LEANKV_LEVELS; l++) {
                    const kvd_leankv_precision *const p = &y.level[l];
                    const int bytes = (int)kvd_leankv_entry_bytes(width[i], p->k_bits, p->v_bits);
                    fits = fits && p->position + 4 * p->tokens == p->tokens * bytes &&
                           p->tokens * bytes <= y.page_bytes &&
                           (p->tokens + KVD_LEANKV_TILE) * bytes > y.page_bytes &&
                           p->k_meta % 16 == 0 && p->v % 16 == 0 && y.page_bytes % 16 == 0;
                }
            }
    const int odd[] = {3, 3}, high[] = {4, 8}, v[] = {2, 4};
    kvd_leankv_layout y;
    test_result(places, "layout", "every code of a tile has a place, every bit a code");
    test_result(fits, "layout", "six segments fill a page to less than a tile");
    test_result(
        kvd_leankv_layout_make(128, odd, v, &y) && kvd_leankv_layout_make(128, high, v, &y) &&
            kvd_leankv_layout_make(80, v, v, &y),
        "layout", "bits, a low level above the high one and heads that do not go are refused");
}

enum { SLOTS = 5, LAYERS = 3, KV = 3, HEADS = SLOTS * LAYERS * KV, TABLE = 12, PAGES = 149 };

typedef struct {
    kvd_leankv_head head[HEADS];
    int32_t table[HEADS][TABLE];
    int32_t list[PAGES];
    uint64_t start, end;
    int64_t entries[KVD_LEANKV_LEVELS];
    uint64_t wanted;
} model;

static kvd_leankv_pool pool_make(void)
{
    static const int k_bits[] = {8, 4}, v_bits[] = {4, 2};
    kvd_leankv_pool p = {.n_pages = PAGES,
                         .n_slots = SLOTS,
                         .n_layers = LAYERS,
                         .n_kv_heads = KV,
                         .table_length = TABLE};
    (void)kvd_leankv_layout_make(64, k_bits, v_bits, &p.layout);
    p.list = on_device(NULL, PAGES * sizeof *p.list);
    p.table = on_device(NULL, sizeof(int32_t[HEADS][TABLE]));
    p.head = on_device(NULL, HEADS * sizeof *p.head);
    p.state = on_device(NULL, sizeof *p.state);
    check(kvd_leankv_reset(&p, 0), "reset");
    return p;
}

static void pool_free(kvd_leankv_pool *p)
{
    device_free(p->list, p->table, p->head, p->state);
}

static int wanted_of(const kvd_leankv_pool *p, const kvd_leankv_head *h, int l, int spare)
{
    const int tokens = p->layout.level[l].tokens, pages = (h->n[l] + spare + tokens - 1) / tokens;
    return pages > h->pages[l] ? pages - h->pages[l] : 0;
}

static int head_index(int slot, int layer, int g)
{
    return (slot * LAYERS + layer) * KV + g;
}

static void model_grow(model *m, const kvd_leankv_pool *p, const int32_t *slot, int n, int first,
                       int layers, int spare)
{
    const uint64_t left = m->end - m->start;
    uint64_t wanted = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n * layers * KV; i++) {
            if (slot[i / (layers * KV)] >= SLOTS)
                continue;
            const int at =
                head_index(slot[i / (layers * KV)], first + i % (layers * KV) / KV, i % KV);
            kvd_leankv_head *const h = &m->head[at];
            const int high = wanted_of(p, h, KVD_LEANKV_HIGH, spare),
                      low = wanted_of(p, h, KVD_LEANKV_LOW, spare);
            if (pass == 0) {
                wanted += (uint64_t)(high + low);
            } else if (wanted > left) {
                for (int l = 0; l < KVD_LEANKV_LEVELS; l++) {
                    const int room = h->pages[l] * p->layout.level[l].tokens;
                    m->entries[l] -= h->n[l] > room ? h->n[l] - room : 0;
                    h->n[l] = h->n[l] > room ? room : h->n[l];
                }
            } else {
                for (int k = 0; k < high; k++)
                    m->table[at][h->pages[KVD_LEANKV_HIGH]++] = m->list[m->start++ % PAGES];
                for (int k = 0; k < low; k++)
                    m->table[at][TABLE - 1 - h->pages[KVD_LEANKV_LOW]++] =
                        m->list[m->start++ % PAGES];
            }
        }
    if (wanted > left && !m->wanted)
        m->wanted = wanted;
}

static void model_give_back(model *m, const int32_t *slot, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < LAYERS * KV; k++) {
            kvd_leankv_head *const h = &m->head[slot[i] * LAYERS * KV + k];
            const int32_t *const table = m->table[slot[i] * LAYERS * KV + k];
            for (int j = 0; j < h->pages[KVD_LEANKV_HIGH]; j++)
                m->list[m->end++ % PAGES] = table[j];
            for (int j = 0; j < h->pages[KVD_LEANKV_LOW]; j++)
                m->list[m->end++ % PAGES] = table[TABLE - 1 - j];
            for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
                m->entries[l] -= h->n[l];
            memset(h, 0, sizeof *h);
        }
}

static int same(const kvd_leankv_pool *p, const model *m)
{
    static model got;
    kvd_leankv_state s;
    int owner[PAGES] = {0}, good;
    to_host(&s, p->state, sizeof s);
    to_host(got.head, p->head, sizeof got.head);
    to_host(got.table, p->table, sizeof got.table);
    to_host(got.list, p->list, sizeof got.list);
    good = s.start == m->start && s.end == m->end && s.entries[0] == m->entries[0] &&
           s.entries[1] == m->entries[1] && !memcmp(got.head, m->head, sizeof got.head);
    for (uint64_t i = m->start; i < m->end; i++) {
        good = good && got.list[i % PAGES] == m->list[i % PAGES];
        owner[m->list[i % PAGES]]++;
    }
    for (int h = 0; h < HEADS; h++)
        for (int k = 0; k < TABLE; k++) {
            if (k >= m->head[h].pages[KVD_LEANKV_HIGH] &&
                k < TABLE - m->head[h].pages[KVD_LEANKV_LOW])
                continue;
            good = good && got.table[h][k] == m->table[h][k];
            owner[m->table[h][k]]++;
        }
    for (int i = 0; i < PAGES; i++)
        good = good && owner[i] == 1;
    return good;
}

static void set_entries(kvd_leankv_pool *p, model *m, const kvd_leankv_head *head)
{
    for (int i = 0; i < HEADS; i++)
        for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
            m->entries[l] += head[i].n[l] - m->head[i].n[l];
    memcpy(m->head, head, sizeof m->head);
    kvd_leankv_state s;
    to_host(&s, p->state, sizeof s);
    memcpy(s.entries, m->entries, sizeof s.entries);
    to_device(p->state, &s, sizeof s);
    to_device(p->head, head, sizeof m->head);
}

static model *model_new(void)
{
    model *const m = need(sizeof *m);
    for (int i = 0; i < PAGES; i++)
        m->list[i] = i;
    m->end = PAGES;
    return m;
}

static void test_random(void)
{
    kvd_rng rng;
    kvd_rng_seed(&rng, 5, 0);
    kvd_leankv_pool p = pool_make();
    model *const m = model_new();
    int32_t *const slots = on_device(NULL, (SLOTS + 2) * sizeof *slots);
    int good = same(&p, m), rounds = 0;
    for (; good && rounds < 400; rounds++) {
        int32_t list[SLOTS + 2];
        int n = 0;
        kvd_leankv_head head[HEADS];
        memcpy(head, m->head, sizeof head);
        const double which = kvd_rng_uniform(&rng);
        const int what = which < 0.15 ? 0 : which < 0.5 ? 1 : 2;
        for (int s = 0; s < SLOTS; s++)
            if (kvd_rng_uniform(&rng) < 0.5)
                list[n++] = s;
        if (n == 0)
            continue;
        if (what == 0) {
            model_give_back(m, list, n);
        } else if (what == 1) {
            const int layer = (int)(kvd_rng_uniform(&rng) * LAYERS);
            for (int i = 0; i < n; i++)
                for (int g = 0; g < KV; g++) {
                    kvd_leankv_head *const h = &head[head_index(list[i], layer, g)];
                    for (int l = 0; l < KVD_LEANKV_LEVELS && h->pages[0] + h->pages[1] == 0; l++)
                        h->n[l] = (int)(kvd_rng_uniform(&rng) * 130);
                }
            set_entries(&p, m, head);
            model_grow(m, &p, list, n, layer, 1, 0);
            to_device(slots, list, sizeof list);
            check(kvd_leankv_grow(&p, slots, n, layer, 1, 0, 0), "grow");
        } else {
            for (int i = 0; i < n * LAYERS * KV; i++) {
                kvd_leankv_head *const h =
                    &head[list[i / (LAYERS * KV)] * LAYERS * KV + i % (LAYERS * KV)];
                for (int l = 0; l < KVD_LEANKV_LEVELS; l++) {
                    const int room = h->pages[l] * p.layout.level[l].tokens - h->n[l];
                    h->n[l] += h->n[l] < 330 && room > 0
                                   ? (int)(kvd_rng_uniform(&rng) * (double)(room + 1))
                                   : 0;
                }
            }
            set_entries(&p, m, head);
            list[n++] = SLOTS;
            model_grow(m, &p, list, n, 0, LAYERS, 1);
            to_device(slots, list, sizeof list);
            check(kvd_leankv_grow(&p, slots, n, 0, LAYERS, 1, 0), "grow");
        }
        if (what == 0) {
            to_device(slots, list, sizeof list);
            check(kvd_leankv_give_back(&p, slots, n, 0), "give back");
        }
        good = same(&p, m);
    }
    test_result(good && m->start > 3 * PAGES && m->wanted, "random",
                "%d operations, %llu pages given out of %d, %s", rounds,
                (unsigned long long)m->start, PAGES,
                m->wanted ? "pages were short at times" : "never short");
    check(cudaFree(slots), "cudaFree");
    pool_free(&p);
    free(m);
}

static void test_short(void)
{
    kvd_leankv_pool p = pool_make();
    model *const m = model_new();
    kvd_leankv_head head[HEADS] = {0};
    const int32_t list[SLOTS] = {0, 1, 2, 3, 4};
    int32_t *const slots = on_device(list, sizeof list);
    kvd_leankv_state s;
    for (int i = 0; i < HEADS; i++)
        head[i].n[KVD_LEANKV_HIGH] = 3 * KVD_LEANKV_PAGE_TOKENS;
    set_entries(&p, m, head);
    check(kvd_leankv_grow(&p, slots, SLOTS, 0, LAYERS, 0, 0), "grow");
    check(kvd_leankv_grow(&p, slots, SLOTS, 0, LAYERS, 1, 0), "grow");
    to_host(&s, p.state, sizeof s);
    to_host(head, p.head, sizeof head);
    /* The pool has 149 pages. The first call takes 3 * 45 of these; the second needs 90 more and
     * must fail. */
    test_result(
        s.wanted == 2 * HEADS && s.left == PAGES - 3 * HEADS && s.start == 3 * HEADS &&
            s.entries[0] == HEADS * 3 * KVD_LEANKV_PAGE_TOKENS && head[7].pages[0] == 3 &&
            head[7].pages[1] == 0,
        "short",
        "%d entries wanted %llu pages of %llu; then %lld entries, pages %llu .. %llu are used",
        HEADS * 3 * KVD_LEANKV_PAGE_TOKENS, (unsigned long long)s.wanted,
        (unsigned long long)s.left, (long long)s.entries[0], (unsigned long long)0,
        (unsigned long long)s.start);
    check(cudaFree(slots), "cudaFree");
    pool_free(&p);
    free(m);
}

int main(void)
{
    test_subject = "leankv pages";
    test_layout();
    if (!gpu_devices("leankv pages", 1))
        return failures ? 1 : 0;
    test_random();
    test_short();
    return failures ? 1 : 0;
}
