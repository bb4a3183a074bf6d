/* Tests transfers between GPUs. Each number is a hash of its index, and all must arrive
 * unchanged. */

#include "dims_fixture.h"
#include "engine/cuda/sequence.h"
#include "engine_schedule.h"
#include "methods/method.h"

static void report(int ok, int gpus, const char *name, const char *detail)
{
    printf("%s exchange between %d GPUs, %s: %s\n", ok ? "ok" : "not ok", gpus, name, detail);
    failures += !ok;
}

enum { PIECES = 3, ROUNDS = 9 };

typedef struct {
    kvd_gpu_sum *sum;
    int gpus, round;
    cudaStream_t stream[KVD_GPUS_MAX];
    uint8_t *from[KVD_GPUS_MAX], *to[KVD_GPUS_MAX];
    size_t room[KVD_GPUS_MAX];
} pieces;

static size_t bytes_of(const pieces *x, int a, int b, int i)
{
    static const size_t some[] = {1, 16, 3, 255, 4097, 65536, 17, 131075, 1048579, 8, 524309};
    return some[(size_t)(7 * a + 3 * b + 5 * i + 4 * x->round) % (sizeof some / sizeof *some)];
}

/* Lists the messages that GPU number `a` sends (or receives, if `receives` is not 0), which are
 * stored at address `at`. Returns how many bytes of memory they need. */
static size_t lay_out(const pieces *x, int a, int receives, uint8_t *at, kvd_gpu_piece *list)
{
    size_t where = 0, n = 0;
    for (int b = 0; b < x->gpus; b++)
        for (int i = 0; i < PIECES; i++) {
            const size_t bytes = receives ? bytes_of(x, b, a, i) : bytes_of(x, a, b, i);
            where += (size_t)(5 * b + 3 * i + x->round) % 19;
            if (list)
                list[n++] = (kvd_gpu_piece){b, at + where, bytes};
            where += bytes;
        }
    return where + 64;
}

static uint8_t byte_of(const pieces *x, int a, int b, int i, size_t k)
{
    const uint64_t h =
        (uint64_t)k * 0x9e3779b97f4a7c15u + (uint64_t)(a + 16 * b + 256 * i + 4096 * x->round);
    return (uint8_t)((h ^ h >> 29) * 0xbf58476d1ce4e5b9u >> 56);
}

static int send_and_receive(void *ctx, int gpu, kvd_err *err)
{
    const pieces *const x = ctx;
    kvd_gpu_piece out[KVD_GPUS_MAX * PIECES], in[KVD_GPUS_MAX * PIECES];
    const size_t n = (size_t)x->gpus * PIECES;
    if (kvd_cuda_check(cudaSetDevice(gpu), "device", err))
        return -1;
    (void)lay_out(x, gpu, 0, x->from[gpu], out);
    (void)lay_out(x, gpu, 1, x->to[gpu], in);
    return kvd_gpu_sum_exchange(x->sum, gpu, out, n, in, n, x->stream[gpu], err) ||
                   kvd_gpu_sum_wait(x->sum, gpu, x->stream[gpu], err)
               ? -1
               : 0;
}

/* Allocates and fills memory for all messages that GPU number `a` sends (or receives, if `receives`
 * is not 0). Bytes between messages are 0xff. */
static uint8_t *image(const pieces *x, int a, int receives)
{
    const size_t room = lay_out(x, a, receives, NULL, NULL);
    uint8_t *const to = need(room);
    kvd_gpu_piece list[KVD_GPUS_MAX * PIECES];
    (void)lay_out(x, a, receives, to, list);
    memset(to, 0xff, room);
    for (int b = 0; b < x->gpus; b++)
        for (int i = 0; i < PIECES; i++) {
            const kvd_gpu_piece *const p = &list[b * PIECES + i];
            for (size_t k = 0; k < p->bytes; k++)
                ((uint8_t *)p->at)[k] = receives ? byte_of(x, b, a, i, k) : byte_of(x, a, b, i, k);
        }
    return to;
}

static size_t first_wrong(const pieces *x, int a)
{
    const size_t room = x->room[a];
    uint8_t *const want = image(x, a, 1);
    size_t i = 0;
    check(cudaSetDevice(a), "device");
    uint8_t *const got = from_device(x->to[a], room);
    while (i < room && got[i] == want[i])
        i++;
    host_free(want, got);
    return i;
}

static int one_round(pieces *x, kvd_gpu_threads *gpu_threads, char *text, size_t size, kvd_err *err)
{
    int wrong = 0;
    for (int g = 0; g < x->gpus; g++) {
        uint8_t *const host = image(x, g, 0);
        check(cudaSetDevice(g), "device");
        x->room[g] = lay_out(x, g, 1, NULL, NULL);
        x->from[g] = on_device(host, lay_out(x, g, 0, NULL, NULL));
        x->to[g] = on_device(NULL, x->room[g]);
        check(cudaDeviceSynchronize(), "fill");
        free(host);
    }
    const int status = kvd_gpu_threads_run(gpu_threads, send_and_receive, x, err);
    for (int g = 0; g < x->gpus; g++) {
        const size_t at = status ? 0 : first_wrong(x, g);
        if (at < x->room[g] && !wrong++)
            (void)snprintf(text, size, "round %d: GPU %d has another byte %zu of %zu", x->round, g,
                           at, x->room[g]);
        check(cudaSetDevice(g), "device");
        device_free(x->from[g], x->to[g]);
    }
    return status || wrong ? -1 : 0;
}

static void test_pieces(int gpus)
{
    kvd_err err = {""};
    char text[160] = "1 byte to 1 MB at any address, 3 pieces from each to each, 9 rounds";
    pieces x = {.gpus = gpus, .sum = kvd_gpu_sum_new(0, gpus, &err)};
    kvd_gpu_threads *const gpu_threads = x.sum ? kvd_gpu_threads_new(0, gpus, x.sum, &err) : NULL;
    int status = gpu_threads ? 0 : -1;
    for (int g = 0; g < gpus; g++) {
        check(cudaSetDevice(g), "device");
        check(cudaStreamCreateWithFlags(&x.stream[g], cudaStreamNonBlocking), "stream");
    }
    for (; x.round < ROUNDS && !status; x.round++)
        status = one_round(&x, gpu_threads, text, sizeof text, &err);
    report(!status, gpus, "pieces", err.msg[0] ? err.msg : text);
    kvd_gpu_threads_free(gpu_threads);
    kvd_gpu_sum_free(x.sum);
    for (int g = 0; g < gpus; g++)
        check(cudaStreamDestroy(x.stream[g]), "stream");
}

enum { QUERIES, PAGES, OUTPUT };

/* Returns a 16-bit hash that serves as test data. kind: queries, pages or outputs; a: index of a
 * head, page or token; b: index of an element in the head, page or token. */
static uint16_t mark(int kind, size_t a, size_t b)
{
    const uint64_t h = ((uint64_t)a * 1000003 + b) * 0x9e3779b97f4a7c15u + (uint64_t)kind;
    return (uint16_t)((h ^ h >> 31) * 0xbf58476d1ce4e5b9u >> 48);
}

typedef struct {
    kvd_sequence *q;
    int layer;
    /* [n tokens + 1][o_pitch] outputs; the last row must not change */
    uint16_t *out[KVD_GPUS_MAX];
} turn;

typedef struct {
    const kvd_attn_map *all, *own;
    size_t first_head, first_kv_head, first, n, rows, all_rows, first_page, pages, all_pages;
} places;

static places places_of(const turn *t, int gpu)
{
    const kvd_sequence_rank *const r = &t->q->rank[gpu];
    const kvd_gpu_share *const s = &r->of_share.weights.share;
    places p = {.all = &r->slice->cache.layer[t->layer].map,
                .own = &r->own.layer[t->layer].map,
                .first_head = (size_t)s->first_head,
                .first_kv_head = (size_t)s->first_kv_head,
                .first = kvd_sequence_first(t->q, gpu),
                .n = kvd_sequence_tokens(t->q, gpu),
                .first_page = kvd_sequence_first_page(t->q, gpu),
                .all_pages = kvd_sequence_first_page(t->q, t->q->n),
                .all_rows = kvd_sequence_rows(t->q->len)};
    p.rows = kvd_sequence_rows(p.n);
    p.pages = kvd_sequence_first_page(t->q, gpu + 1) - p.first_page;
    return p;
}

static void put(void *to, const uint16_t *x, size_t n)
{
    to_device(to, x, n * sizeof *x);
}

static void poison(void *to, size_t n)
{
    check(cudaMemset(to, 0xff, n * sizeof(uint16_t)), "marks");
}

static void fill(turn *t, int gpu)
{
    const places p = places_of(t, gpu);
    kvd_sequence_rank *const r = &t->q->rank[gpu];
    const size_t page = (size_t)p.all->page_elements, q_n = (size_t)p.all->q_pitch * p.rows,
                 width = (size_t)p.own->o_pitch, o_n = t->q->len * width;
    uint16_t *const x = need((q_n + p.pages * page + o_n) * sizeof *x);
    for (int h = 0; h < p.all->n_heads; h++) {
        const size_t d = (size_t)p.all->d_qk[h / p.all->group];
        for (size_t e = 0; e < p.rows * d; e++)
            x[(size_t)p.all->q_offset[h] * p.rows + e] = mark(QUERIES, (size_t)h, p.first * d + e);
    }
    put(r->slice->cache.q_prompts, x, q_n);
    for (size_t i = 0; i < p.pages * page; i++)
        x[i] = mark(PAGES, p.first_page + i / page, i % page);
    put(r->slice->cache.pool, x, p.pages * page);
    for (size_t i = 0; i < o_n; i++)
        x[i] = mark(OUTPUT, i / width, (size_t)p.all->o_offset[p.first_head] + i % width);
    put(r->own.o, x, o_n);
    free(x);
    poison(r->own.q_prompts, p.all_rows * (size_t)p.own->q_pitch);
    poison(kvd_paged_cache_pool(&r->own, t->layer), p.all_pages * (size_t)p.own->page_elements);
    t->out[gpu] = on_device(NULL, (p.n + 1) * (size_t)p.all->o_pitch * sizeof *x);
    check(cudaDeviceSynchronize(), "marks");
}

static size_t wrong_of(const turn *t, int gpu)
{
    const places p = places_of(t, gpu);
    const kvd_sequence_rank *const r = &t->q->rank[gpu];
    const size_t page = (size_t)p.own->page_elements, pitch = (size_t)p.all->o_pitch;
    size_t wrong = 0;
    uint16_t *const q = from_device(r->own.q_prompts, 2 * p.all_rows * (size_t)p.own->q_pitch);
    for (int h = 0; h < p.own->n_heads; h++) {
        const size_t d = (size_t)p.own->d_qk[h / p.own->group];
        for (size_t e = 0; e < p.all_rows * d; e++)
            wrong += q[(size_t)p.own->q_offset[h] * p.all_rows + e] !=
                     mark(QUERIES, p.first_head + (size_t)h, e);
    }
    uint16_t *const kv =
        from_device(kvd_paged_cache_pool(&r->own, t->layer), 2 * p.all_pages * page);
    for (size_t i = 0; i < p.all_pages * page; i++)
        wrong +=
            kv[i] != mark(PAGES, i / page, (size_t)p.all->kv_offset[p.first_kv_head] + i % page);
    uint16_t *const o = from_device(t->out[gpu], 2 * (p.n + 1) * pitch);
    for (size_t i = 0; i < (p.n + 1) * pitch; i++)
        wrong += o[i] != (i / pitch < p.n ? mark(OUTPUT, p.first + i / pitch, i % pitch) : 0xffff);
    host_free(q, kv, o);
    return wrong;
}

static int both_exchanges(void *ctx, int gpu, kvd_err *err)
{
    turn *const t = ctx;
    kvd_sequence_rank *const r = &t->q->rank[gpu];
    const cudaStream_t s = r->slice->w.stream;
    if (kvd_cuda_check(cudaSetDevice(r->slice->device), "device", err))
        return -1;
    r->first = kvd_sequence_first(t->q, gpu);
    r->n = kvd_sequence_tokens(t->q, gpu);
    return kvd_sequence_to_heads(r, t->layer, s, err) ||
                   kvd_sequence_to_tokens(r, t->layer, t->out[gpu], s, err) ||
                   kvd_gpu_sum_wait(t->q->sum, gpu, s, err)
               ? -1
               : 0;
}

static int exchange(kvd_sequence *q, int layer, size_t len, size_t *wrong, kvd_err *err)
{
    turn t = {.q = q, .layer = layer};
    q->len = len;
    for (int g = 0; g < q->n; g++) {
        check(cudaSetDevice(g), "device");
        fill(&t, g);
    }
    const int status = kvd_gpu_threads_run(q->gpu_threads, both_exchanges, &t, err);
    for (int g = 0; g < q->n; g++) {
        check(cudaSetDevice(g), "device");
        *wrong += status ? 0 : wrong_of(&t, g);
        check(cudaFree(t.out[g]), "cudaFree");
    }
    return status;
}

static void test_prompts(const kvd_checkpoint *c, int gpus, const kvd_plan *plan, const char *name)
{
    static const size_t len[] = {1, 8, 63, 64, 65, 127, 129, 200, 449, 640, 641, 700};
    kvd_err err = {""};
    char text[160];
    size_t wrong = 0, n = 0;
    kvd_engine_spec spec = spec_of(&(setting){.max_batch = 1, .sequence = true}, 700, 700);
    spec.n_gpus = gpus;
    kvd_engine *const e = kvd_engine_open_cuda(c, plan, &spec, &err);
    int status = e ? 0 : -1;
    for (size_t i = 0; i < sizeof len / sizeof *len && !status; i++)
        for (int l = 0; l < kvd_checkpoint_config(c)->n_layers && !status; l++, n++)
            status = exchange((kvd_sequence *)(void *)e, l, len[i], &wrong, &err);
    (void)snprintf(text, sizeof text,
                   "%zu prompts of 1 to 700 tokens, %zu numbers not at their places", n, wrong);
    report(!status && !wrong, gpus, name, status ? err.msg : text);
    engine_free(e);
}

static void test_sequence(int gpus)
{
    static const kvd_plan none = {.type = KVD_BF16};
    char name[24], path[128];
    kvd_err err = {""};
    made_spec s = MADE_SPEC_DEFAULTS;
    s.kv_heads = 3 * gpus;
    s.heads = 3 * s.kv_heads;
    s.d_head = 64;
    s.positions = 1024;
    (void)snprintf(name, sizeof name, "model-%d", gpus);
    made_or_end(name, &s, path);
    kvd_checkpoint *const c = checkpoint_or_end(path);
    kvd_dims d = {0};
    kvd_spectrum spectrum = {0};
    const kvd_plan cut = {.type = KVD_BF16, .dims = &d};
    if (fixture_spectrum(&spectrum, kvd_checkpoint_config(c), 7, &err) ||
        fixture_dims(&d, &spectrum, kvd_checkpoint_config(c), &kvd_dims_zack, fixture_uneven,
                     &err)) {
        report(0, gpus, "checkpoint", err.msg);
    } else {
        test_prompts(c, gpus, &none, "whole heads");
        test_prompts(c, gpus, &cut, "cut heads");
    }
    kvd_dims_release(&d);
    kvd_spectrum_release(&spectrum);
    kvd_checkpoint_close(c);
}

int main(void)
{
    int devices = gpu_devices("exchanges between GPUs", 2);
    if (!devices)
        return 0;
    devices = devices < KVD_GPUS_MAX ? devices : KVD_GPUS_MAX;
    for (int gpus = 2; gpus <= devices; gpus = gpus < devices ? devices : devices + 1) {
        test_pieces(gpus);
        test_sequence(gpus);
    }
    return failures ? 1 : 0;
}
