/* Tests the batcher, which chooses the tokens that each iteration of the server computes. */
#include <stdbool.h>
#include <string.h>

#include "common/rng.h"
#include "serving/batching.h"
#include "unit.h"

static kvd_err err;

static size_t pages_of(const kvd_request *q)
{
    return ((size_t)q->input + q->output + 63) / 64;
}

typedef struct {
    const kvd_requests *requests;
    kvd_batching_limits limits;
    /* done: number of processed tokens of each request; out: number of its emitted tokens */
    uint32_t done[64], out[64];
    int slot[64]; /* slot of each request; -1 before the start, -2 after the end */
    /* number of tokens that each request emitted before its last preemption, which are now part of
     * its prompt */
    uint32_t again[64];
    /* total numbers of processed tokens, of tokens that preemptions lost, and of preemptions */
    size_t processed, lost, preempted;
} watcher;

static uint32_t prompt_of(const watcher *w, size_t i)
{
    return w->requests->request[i].input + w->again[i];
}

static size_t pages_with(const watcher *w, size_t i, size_t tokens)
{
    const size_t prompt = prompt_of(w, i), most = tokens > prompt ? tokens : prompt;
    return w->limits.admission == KVD_ADMIT_STORED ? (most + 63) / 64
                                                   : pages_of(&w->requests->request[i]);
}

static size_t first_waiting(const watcher *w, size_t arrived)
{
    size_t i = 0;
    while (i < arrived && w->slot[i] != -1)
        i++;
    return i;
}

/* Checks that requests are preempted only if the cache has too few pages. The preempted request
 * must be the one that arrived last. */
static void check_preempted(watcher *w, const kvd_batcher *b, size_t arrived)
{
    size_t n;
    const kvd_preempted *const p = kvd_batcher_preempted(b, &n);
    for (size_t k = 0; k < n; k++) {
        size_t last = 0, full = 0;
        for (size_t i = 0; i < arrived; i++)
            if (w->slot[i] >= 0) {
                last = i;
                full += pages_with(w, i, w->done[i] + (w->done[i] >= prompt_of(w, i)));
            }
        assert_int_equal(w->limits.admission, KVD_ADMIT_STORED);
        assert_true(full > w->limits.pages);
        assert_int_equal(p[k].request, last);
        assert_int_equal(p[k].slot, w->slot[last]);
        assert_int_equal(p[k].tokens, w->done[last]);
        w->preempted++;
        w->lost += w->done[last];
        w->slot[last] = -1;
        w->done[last] = 0;
        w->again[last] = w->out[last];
    }
}

static void check_slice(watcher *w, const kvd_slice *s, bool step)
{
    const kvd_request *q = &w->requests->request[s->request];
    if (w->slot[s->request] == -1) {
        assert_int_equal(s->request, first_waiting(w, w->requests->n));
        w->slot[s->request] = (int)s->slot;
    }
    assert_int_equal(w->slot[s->request], s->slot);
    assert_true(s->slot < w->limits.max_batch);
    assert_int_equal(s->before, w->done[s->request]);
    assert_true(s->n >= 1);
    if (step)
        assert_true(s->n == 1 && s->before >= prompt_of(w, s->request));
    else
        assert_true(s->before + s->n <= prompt_of(w, s->request));
    w->done[s->request] += s->n;
    w->processed += s->n;
    assert_int_equal(s->emits, w->done[s->request] >= prompt_of(w, s->request));
    w->out[s->request] += s->emits != 0;
    assert_int_equal(s->last, w->out[s->request] == q->output);
}

static void check_limits(const watcher *w, const kvd_iteration *it)
{
    size_t tokens = 0, prompts = 0;
    bool taken[64] = {false};
    for (size_t i = 0; i < it->n_slices; i++) {
        assert_false(taken[it->slice[i].slot]);
        taken[it->slice[i].slot] = true;
        tokens += it->slice[i].n;
        prompts += i >= it->n_steps;
    }
    assert_int_equal(tokens, it->n_tokens);
    if (w->limits.chunk)
        assert_true(tokens <= w->limits.chunk);
    else {
        assert_true(!it->n_steps || !prompts);
        if (prompts > 1)
            assert_true(tokens <= w->limits.max_tokens);
    }
}

/* Checks that every request whose prompt is done takes a decode step, unless the iteration consists
 * of prompts. */
static void check_steps(const watcher *w, const kvd_iteration *it)
{
    size_t stepping = 0;
    for (size_t i = 0; i < w->requests->n; i++)
        stepping += w->slot[i] >= 0 && w->done[i] >= prompt_of(w, i);
    if (w->limits.chunk || it->n_steps)
        assert_int_equal(it->n_steps, stepping);
}

static void check_load(const watcher *w, const kvd_batcher *b, size_t arrived)
{
    size_t running = 0, waiting = 0, pages = 0, tokens = 0;
    for (size_t i = 0; i < arrived; i++) {
        const kvd_request *q = &w->requests->request[i];
        if (w->slot[i] >= 0) {
            running++;
            pages += pages_with(w, i, w->done[i]);
        }
        waiting += w->slot[i] == -1;
        tokens += q->input + q->output - 1 - w->done[i];
    }
    const kvd_batcher_load load = kvd_batcher_ask(b);
    assert_int_equal(load.running, running);
    assert_int_equal(load.waiting, waiting);
    assert_int_equal(load.pages_used, pages);
    assert_true(pages <= w->limits.pages);
    assert_true(running <= w->limits.max_batch);
    /* load.tokens still counts the tokens of the iteration that now runs. */
    assert_true(load.tokens >= tokens);
}

static void check_eager(const watcher *w, const kvd_batcher *b, const kvd_iteration *it,
                        size_t arrived)
{
    const kvd_batcher_load load = kvd_batcher_ask(b);
    const size_t i = first_waiting(w, arrived);
    const size_t spare =
        w->limits.admission == KVD_ADMIT_STORED && load.running ? w->limits.pages / 100 : 0;
    size_t preempted;
    (void)kvd_batcher_preempted(b, &preempted);
    if (i == arrived || load.running == w->limits.max_batch || preempted ||
        load.pages_used + pages_with(w, i, 0) + spare > w->limits.pages)
        return;
    if (w->limits.chunk)
        assert_int_equal(it->n_tokens, w->limits.chunk);
    else
        assert_true(it->n_tokens + prompt_of(w, i) > w->limits.max_tokens);
}

static size_t run_random(uint64_t seed, kvd_admission admission)
{
    kvd_rng rng;
    kvd_rng_seed(&rng, seed, 0);
    kvd_request request[64];
    kvd_requests r = {.n = 1 + kvd_rng_below(&rng, 64), .request = request};
    const size_t longest = 1 + kvd_rng_below(&rng, seed % 3 ? 300 : 40);
    size_t most = 1;
    for (size_t i = 0; i < r.n; i++) {
        request[i] = (kvd_request){.input = 1 + (uint32_t)kvd_rng_below(&rng, longest),
                                   .output = 1 + (uint32_t)kvd_rng_below(&rng, 1 + longest / 4)};
        most = pages_of(&request[i]) > most ? pages_of(&request[i]) : most;
    }
    watcher w = {.requests = &r, .limits = {.max_batch = 1 + kvd_rng_below(&rng, 20)}};
    w.limits.admission = admission;
    w.limits.max_tokens = 1 + kvd_rng_below(&rng, 400);
    w.limits.chunk = seed % 2 ? w.limits.max_batch + kvd_rng_below(&rng, 200) : 0;
    w.limits.pages = most + kvd_rng_below(&rng, 30);
    memset(w.slot, -1, sizeof w.slot);
    kvd_batcher *b = kvd_batcher_new(&r, &w.limits, &err);
    assert_non_null(b);
    size_t arrived = 0, iterations = 0;
    for (;;) {
        for (size_t k = kvd_rng_below(&rng, 4); k > 0 && arrived < r.n; k--)
            OK(kvd_batcher_arrive(b, (uint32_t)arrived++, &err));
        const kvd_iteration it = kvd_batcher_next(b);
        check_preempted(&w, b, arrived);
        check_steps(&w, &it);
        for (size_t i = 0; i < it.n_slices; i++)
            check_slice(&w, &it.slice[i], i < it.n_steps);
        check_limits(&w, &it);
        check_load(&w, b, arrived);
        check_eager(&w, b, &it, arrived);
        for (size_t i = 0; i < it.n_slices; i++)
            if (it.slice[i].last)
                w.slot[it.slice[i].request] = -2;
        if (!it.n_slices) {
            assert_int_equal(first_waiting(&w, arrived), arrived);
            if (arrived == r.n)
                break;
        }
        assert_true(++iterations < 100000);
    }
    size_t tokens = w.lost;
    for (size_t i = 0; i < r.n; i++) {
        tokens += request[i].input + request[i].output - 1;
        assert_int_equal(w.done[i], request[i].input + request[i].output - 1);
        assert_int_equal(w.out[i], request[i].output);
        assert_int_equal(w.slot[i], -2);
    }
    assert_int_equal(w.processed, tokens);
    const kvd_batcher_load load = kvd_batcher_ask(b);
    assert_true(!load.waiting && !load.running && !load.tokens && !load.pages_used);
    kvd_batcher_free(b);
    return w.preempted;
}

TEST(test_properties)
{
    size_t preempted = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        run_random(seed, KVD_ADMIT_WHOLE);
        preempted += run_random(seed, KVD_ADMIT_STORED);
    }
    assert_true(preempted > 3000);
}

/* Returns the next iteration as text: "P0:7+9." processes 9 prompt tokens of request 0 after 7
 * tokens, and emits a token. S instead of P means a decode step; ! instead of . means that the
 * request ends. */
static const char *told(kvd_batcher *b)
{
    static char text[256];
    const kvd_iteration it = kvd_batcher_next(b);
    text[0] = '\0';
    for (size_t i = 0; i < it.n_slices; i++) {
        const kvd_slice *s = &it.slice[i];
        const size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "%s%c%u:%u+%u%s", i ? " " : "",
                 i < it.n_steps ? 'S' : 'P', s->request, s->before, s->n,
                 s->last    ? "!"
                 : s->emits ? "."
                            : "");
    }
    return text;
}

/* Returns a batcher to which all requests from number `first` on have arrived. */
static kvd_batcher *arrived_from(uint32_t first, const kvd_requests *r,
                                 const kvd_batching_limits *limits)
{
    kvd_batcher *const b = kvd_batcher_new(r, limits, &err);
    assert_non_null(b);
    for (uint32_t i = first; i < r->n; i++)
        OK(kvd_batcher_arrive(b, i, &err));
    return b;
}

TEST(test_whole_prompts)
{
    kvd_request q[] = {{0, 100, 3}, {0, 20, 1}, {0, 30, 2}, {0, 500, 2}, {0, 5, 2}};
    const kvd_requests r = {.n = 5, .request = q};
    const kvd_batching_limits limits = {.max_batch = 3, .max_tokens = 130, .pages = 100};
    kvd_batcher *const b = arrived_from(0, &r, &limits);
    assert_string_equal(told(b), "P0:0+100. P1:0+20!");
    /* Request 2 (30 tokens) runs alone, because request 3 (500 tokens) exceeds the limit of 130
     * tokens per iteration. */
    assert_string_equal(told(b), "P2:0+30.");
    /* A prompt longer than max_tokens runs alone in its iteration. */
    assert_string_equal(told(b), "P3:0+500.");
    /* Requests 0, 2 and 3 fill the batch, whose limit is 3 requests, so request 4 waits. */
    assert_string_equal(told(b), "S0:100+1. S2:30+1! S3:500+1!");
    assert_string_equal(told(b), "P4:0+5.");
    assert_string_equal(told(b), "S0:101+1! S4:5+1!");
    assert_string_equal(told(b), "");
    kvd_batcher_free(b);
}

TEST(test_chunks)
{
    kvd_request q[] = {{0, 10, 4}, {0, 25, 2}, {0, 3, 1}};
    const kvd_requests r = {.n = 3, .request = q};
    const kvd_batching_limits limits = {.max_batch = 3, .chunk = 16, .pages = 100};
    kvd_batcher *const b = arrived_from(0, &r, &limits);
    assert_string_equal(told(b), "P0:0+10. P1:0+6");
    assert_string_equal(told(b), "S0:10+1. P1:6+15");
    assert_string_equal(told(b), "S0:11+1. P1:21+4. P2:0+3!");
    assert_string_equal(told(b), "S0:12+1! S1:25+1!");
    assert_string_equal(told(b), "");
    kvd_batcher_free(b);
}

TEST(test_memory)
{
    /* The cache has 3 pages of 64 tokens. A request of 65 tokens takes two pages. */
    kvd_request q[] = {{0, 63, 1}, {0, 64, 1}, {0, 60, 4}, {0, 64, 64}};
    const kvd_requests r = {.n = 4, .request = q};
    const kvd_batching_limits limits = {.max_batch = 8, .max_tokens = 1000, .pages = 3};
    kvd_batcher *const b = arrived_from(0, &r, &limits);
    assert_string_equal(told(b), "P0:0+63! P1:0+64!");
    assert_int_equal(kvd_batcher_ask(b).pages_used, 3);
    assert_string_equal(told(b), "P2:0+60. P3:0+64.");
    kvd_batcher_free(b);
}

TEST(test_preemption)
{
    kvd_request q[] = {{0, 62, 70}, {0, 63, 4}, {0, 10, 2}};
    const kvd_requests r = {.n = 3, .request = q};
    const kvd_batching_limits limits = {
        .max_batch = 3, .max_tokens = 1000, .pages = 3, .admission = KVD_ADMIT_STORED};
    kvd_batcher *b = kvd_batcher_new(&r, &limits, &err);
    size_t n;
    for (uint32_t i = 0; i < 2; i++)
        OK(kvd_batcher_arrive(b, i, &err));
    assert_string_equal(told(b), "P0:0+62. P1:0+63.");
    assert_string_equal(told(b), "S0:62+1. S1:63+1.");
    assert_int_equal(kvd_batcher_ask(b).pages_used, 2);
    OK(kvd_batcher_arrive(b, 2, &err));
    assert_string_equal(told(b), "P2:0+10.");
    assert_string_equal(told(b), "S0:63+1. S1:64+1.");
    const kvd_preempted *p = kvd_batcher_preempted(b, &n);
    assert_int_equal(n, 1);
    assert_true(p->request == 2 && p->tokens == 10);
    assert_int_equal(kvd_batcher_ask(b).pages_used, 3);
    assert_string_equal(told(b), "S0:64+1.");
    p = kvd_batcher_preempted(b, &n);
    assert_int_equal(n, 1);
    assert_true(p->request == 1 && p->tokens == 65);
    assert_string_equal(told(b), "S0:65+1."); /* request 1 needs two pages, one is free */
    for (uint32_t before = 66; before < 128; before++)
        (void)kvd_batcher_next(b);
    assert_string_equal(told(b), "S0:128+1.");
    assert_string_equal(told(b), "S0:129+1.");
    assert_string_equal(told(b), "S0:130+1!");
    assert_string_equal(told(b), "P1:0+66! P2:0+11!");
    assert_string_equal(told(b), "");
    assert_int_equal(kvd_batcher_ask(b).pages_used, 0);
    assert_int_equal(kvd_batcher_ask(b).tokens, 0);
    kvd_batcher_free(b);
}

/* Tests the limits on cache pages of layers with a sliding window. window_pages: pages in each such
 * layer; window_share: largest number of pages of one request. */
TEST(test_windows)
{
    kvd_request q[] = {{0, 639, 1}, {0, 639, 1}, {0, 60, 70}, {0, 60, 70}};
    const kvd_requests r = {.n = 4, .request = q};
    kvd_batching_limits limits = {
        .max_batch = 4, .max_tokens = 10000, .pages = 100, .window_pages = 5, .window_share = 3};
    kvd_batcher *b = arrived_from(0, &r, &limits);
    kvd_iteration it = kvd_batcher_next(b);
    assert_int_equal(it.n_slices, 1);
    assert_int_equal(kvd_batcher_ask(b).pages_used, 10);
    it = kvd_batcher_next(b);
    assert_int_equal(it.n_slices, 1);
    assert_int_equal(it.slice[0].request, 1);
    it = kvd_batcher_next(b);
    assert_int_equal(it.n_slices, 1);
    assert_int_equal(it.slice[0].request, 2);
    kvd_batcher_free(b);

    limits.admission = KVD_ADMIT_STORED;
    limits.window_pages = 3;
    b = arrived_from(2, &r, &limits);
    size_t n = 0;
    it = kvd_batcher_next(b);
    assert_int_equal(it.n_slices, 2);
    for (int i = 0; i < 5; i++)
        it = kvd_batcher_next(b);
    assert_int_equal(it.n_slices, 1);
    const kvd_preempted *const p = kvd_batcher_preempted(b, &n);
    assert_int_equal(n, 1);
    assert_int_equal(p[0].request, 3);
    kvd_batcher_free(b);

    limits.window_pages = 2;
    b = kvd_batcher_new(&r, &limits, &err);
    FAILS(kvd_batcher_arrive(b, 0, &err),
          "request 0: 639 + 1 tokens take 3 pages in layers with a window, there are 2");
    kvd_batcher_free(b);
}

TEST(test_refusals)
{
    kvd_request q[] = {
        {0, 100000, 256}, {0, 0, 1}, {0, 1, 0}, {0, 2147483648u, 2147483648u}, {0, 1, 1}};
    const kvd_requests r = {.n = 5, .request = q};
    kvd_batching_limits limits = {.max_batch = 4, .max_tokens = 100, .pages = 1200};
    kvd_batcher *b = kvd_batcher_new(&r, &limits, &err);
    FAILS(kvd_batcher_arrive(b, 0, &err),
          "request 0: 100000 + 256 tokens take 1567 pages, there are 1200");
    FAILS(kvd_batcher_arrive(b, 1, &err), "request 1: 0 + 1 tokens, both must be at least 1");
    assert_int_equal(kvd_batcher_arrive(b, 2, &err), -1);
    FAILS(kvd_batcher_arrive(b, 3, &err),
          "request 3: 2147483648 + 2147483648 tokens take 67108864 pages, there are 1200");
    FAILS(kvd_batcher_arrive(b, 9, &err), "request 9: there are 5");
    for (int i = 0; i < 5; i++)
        OK(kvd_batcher_arrive(b, 4, &err));
    FAILS(kvd_batcher_arrive(b, 4, &err), "request 4: more arrivals than the 5 requests");
    kvd_batcher_free(b);
    limits.chunk = 3;
    assert_null(kvd_batcher_new(&r, &limits, &err));
    assert_string_equal(err.msg,
                        "a chunk of 3 tokens has no room for a step of each of 4 requests");
    limits = (kvd_batching_limits){.max_batch = 0, .max_tokens = 1, .pages = 1};
    assert_null(kvd_batcher_new(&r, &limits, &err));
    limits = (kvd_batching_limits){.max_batch = 1, .max_tokens = 0, .pages = 1};
    assert_null(kvd_batcher_new(&r, &limits, &err));
    limits = (kvd_batching_limits){.max_batch = 1, .max_tokens = 1, .pages = 0};
    assert_null(kvd_batcher_new(&r, &limits, &err));
    kvd_batcher_free(NULL);
}

TEST_MAIN(NULL, NULL)
