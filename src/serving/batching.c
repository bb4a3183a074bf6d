#include "serving/batching.h"

#include <stdlib.h>

const char *const kvd_admission_name[KVD_ADMISSIONS + 1] = {"whole", "stored", NULL};

static const uint64_t page = 64; /* tokens per page of the KV cache */

/* a request that was admitted, has not finished and was not preempted */
typedef struct {
    uint32_t request, slot;
    uint32_t done;
    /* number of tokens to process as the prompt before decode steps; after a preemption, includes
     * the output tokens emitted before it */
    uint32_t prompt;
    uint64_t pages;
} runner;

struct kvd_batcher {
    const kvd_requests *requests;
    kvd_batching_limits limits;
    /* requests in order of arrival; those at queue[head .. tail - 1] wait to be admitted */
    uint32_t *queue;
    uint32_t *emitted; /* tokens emitted so far by each request, [requests->n] */
    size_t head, tail;
    runner *running;
    size_t n_running, n_slots;
    uint32_t *free_slot;
    size_t n_free;
    /* [n_slots] for each request in the latest iteration, the tokens that the iteration
     * processes */
    kvd_slice *slice;
    /* [n_slots] by[i]: index of the running request whose tokens slice[i] describes */
    uint32_t *by;
    size_t n_slices;
    kvd_preempted *preempted;
    size_t n_preempted;
    size_t tokens_left, pages_used, window_pages_used;
};

static int check_limits(const kvd_batching_limits *l, kvd_err *err)
{
    if (!l->max_batch)
        return kvd_fail(err, "a batch needs room for at least one request");
    if (!l->pages)
        return kvd_fail(err, "the cache needs at least one page of %d tokens", (int)page);
    if (!l->chunk && !l->max_tokens)
        return kvd_fail(err, "an iteration needs room for at least one token");
    if (l->chunk && l->chunk < l->max_batch)
        return kvd_fail(err, "a chunk of %zu tokens has no room for a step of each of %zu requests",
                        l->chunk, l->max_batch);
    return 0;
}

kvd_batcher *kvd_batcher_new(const kvd_requests *requests, const kvd_batching_limits *limits,
                             kvd_err *err)
{
    if (check_limits(limits, err))
        return NULL;
    const size_t n = requests->n ? requests->n : 1;
    const size_t n_slots = limits->max_batch < n ? limits->max_batch : n;
    kvd_batcher *b = calloc(1, sizeof *b);
    if (b) {
        *b = (kvd_batcher){
            .requests = requests, .limits = *limits, .n_slots = n_slots, .n_free = n_slots};
        b->queue = calloc(n, sizeof *b->queue);
        b->emitted = calloc(n, sizeof *b->emitted);
        b->running = calloc(n_slots, sizeof *b->running);
        b->free_slot = calloc(n_slots, sizeof *b->free_slot);
        b->slice = calloc(n_slots, sizeof *b->slice);
        b->by = calloc(n_slots, sizeof *b->by);
        b->preempted = calloc(n_slots, sizeof *b->preempted);
    }
    if (!b || !b->queue || !b->emitted || !b->running || !b->free_slot || !b->slice || !b->by ||
        !b->preempted) {
        kvd_no_memory(err, "the batch", n * sizeof *b->queue + n_slots * sizeof *b->slice);
        kvd_batcher_free(b);
        return NULL;
    }
    for (size_t i = 0; i < n_slots; i++)
        b->free_slot[i] = (uint32_t)(n_slots - 1 - i);
    return b;
}

void kvd_batcher_free(kvd_batcher *b)
{
    if (!b)
        return;
    free(b->queue);
    free(b->emitted);
    free(b->running);
    free(b->free_slot);
    free(b->slice);
    free(b->by);
    free(b->preempted);
    free(b);
}

static uint64_t pages_for(uint64_t tokens)
{
    return (tokens + page - 1) / page;
}

/* Returns how many pages a request takes in layers with a sliding window if it takes n pages in the
 * other layers. */
static uint64_t window_pages(const kvd_batching_limits *l, uint64_t n)
{
    return n < l->window_share ? n : l->window_share;
}

static void take_pages(kvd_batcher *b, runner *r, uint64_t n)
{
    b->pages_used += n;
    b->window_pages_used +=
        window_pages(&b->limits, r->pages + n) - window_pages(&b->limits, r->pages);
    r->pages += n;
}

static void free_pages(kvd_batcher *b, const runner *r)
{
    b->pages_used -= r->pages;
    b->window_pages_used -= window_pages(&b->limits, r->pages);
}

/* Returns true if a request that has `has` pages can take n more pages, with `spare` pages still
 * free afterwards. */
static bool fits(const kvd_batcher *b, uint64_t has, uint64_t n, uint64_t spare)
{
    return n + spare <= b->limits.pages - b->pages_used &&
           window_pages(&b->limits, has + n) - window_pages(&b->limits, has) <=
               b->limits.window_pages - b->window_pages_used;
}

static uint64_t pages_of(const kvd_request *r)
{
    return pages_for((uint64_t)r->input + r->output);
}

bool kvd_batching_fits(const kvd_batching_limits *limits, const kvd_request *request)
{
    const uint64_t n = pages_of(request);
    return request->input && request->output && n <= limits->pages &&
           window_pages(limits, n) <= limits->window_pages;
}

/* Returns how many tokens of a request are ever in the cache: all but the last output token. */
static uint64_t tokens_of(const kvd_request *r)
{
    return (uint64_t)r->input + r->output - 1;
}

int kvd_batcher_arrive(kvd_batcher *b, uint32_t request, kvd_err *err)
{
    if (request >= b->requests->n)
        return kvd_fail(err, "request %u: there are %zu", request, b->requests->n);
    const kvd_request *r = &b->requests->request[request];
    if (!r->input || !r->output)
        return kvd_fail(err, "request %u: %u + %u tokens, both must be at least 1", request,
                        r->input, r->output);
    if (pages_of(r) > b->limits.pages)
        return kvd_fail(err, "request %u: %u + %u tokens take %llu pages, there are %zu", request,
                        r->input, r->output, (unsigned long long)pages_of(r), b->limits.pages);
    if (window_pages(&b->limits, pages_of(r)) > b->limits.window_pages)
        return kvd_fail(err,
                        "request %u: %u + %u tokens take %llu pages in layers with a window, there "
                        "are %zu",
                        request, r->input, r->output,
                        (unsigned long long)window_pages(&b->limits, pages_of(r)),
                        b->limits.window_pages);
    if (b->tail == b->requests->n)
        return kvd_fail(err, "request %u: more arrivals than the %zu requests", request,
                        b->requests->n);
    b->queue[b->tail++] = request;
    b->tokens_left += tokens_of(r);
    return 0;
}

static void retire(kvd_batcher *b)
{
    for (size_t i = 0; i < b->n_slices; i++) {
        b->running[b->by[i]].done += b->slice[i].n;
        b->emitted[b->slice[i].request] += b->slice[i].emits != 0;
        b->tokens_left -= b->slice[i].n;
    }
    b->n_slices = 0;
    size_t kept = 0;
    for (size_t i = 0; i < b->n_running; i++) {
        const runner r = b->running[i];
        const kvd_request *q = &b->requests->request[r.request];
        if (r.done == tokens_of(q)) {
            b->free_slot[b->n_free++] = r.slot;
            free_pages(b, &r);
        } else
            b->running[kept++] = r;
    }
    b->n_running = kept;
}

static void add_slice(kvd_batcher *b, size_t i, uint32_t n)
{
    const runner *r = &b->running[i];
    const kvd_request *q = &b->requests->request[r->request];
    const uint64_t after = (uint64_t)r->done + n;
    b->by[b->n_slices] = (uint32_t)i;
    b->slice[b->n_slices++] = (kvd_slice){.request = r->request,
                                          .slot = r->slot,
                                          .before = r->done,
                                          .n = n,
                                          .whole = q->input + q->output,
                                          .emits = after >= r->prompt,
                                          .last = after == tokens_of(q)};
}

static void preempt(kvd_batcher *b)
{
    const runner r = b->running[--b->n_running];
    b->preempted[b->n_preempted++] = (kvd_preempted){r.request, r.slot, r.done};
    free_pages(b, &r);
    b->tokens_left += r.done;
    b->free_slot[b->n_free++] = r.slot;
    b->queue[--b->head] = r.request;
}

/* Gives running[i] a page for its next token. If none is free, preempts the requests that arrived
 * last. Returns false if running[i] itself was preempted. */
static bool reserve(kvd_batcher *b, size_t i)
{
    if (b->running[i].done < b->running[i].pages * page)
        return true;
    while (b->n_running > i && !fits(b, b->running[i].pages, 1, 0))
        preempt(b);
    if (b->n_running == i)
        return false;
    take_pages(b, &b->running[i], 1);
    return true;
}

static size_t add_steps(kvd_batcher *b)
{
    for (size_t i = 0; i < b->n_running; i++)
        if (b->running[i].done >= b->running[i].prompt && reserve(b, i))
            add_slice(b, i, 1);
    return b->n_slices;
}

/* Returns the length of a request's prompt, including the output tokens emitted before a
 * preemption. */
static uint32_t prompt_of(const kvd_batcher *b, uint32_t request)
{
    return b->requests->request[request].input + b->emitted[request];
}

static uint64_t entry_pages(const kvd_batcher *b, uint32_t request)
{
    return b->limits.admission == KVD_ADMIT_STORED ? pages_for(prompt_of(b, request))
                                                   : pages_of(&b->requests->request[request]);
}

/* Returns the prompt length of the first waiting request. Returns 0 if no request waits, or if the
 * first one cannot be admitted yet. */
static size_t admissible(const kvd_batcher *b)
{
    if (b->head == b->tail || !b->n_free || b->n_preempted)
        return 0;
    const uint32_t request = b->queue[b->head];
    const bool spares = b->limits.admission == KVD_ADMIT_STORED && b->n_running;
    return fits(b, 0, entry_pages(b, request), spares ? b->limits.pages / 100 : 0)
               ? prompt_of(b, request)
               : 0;
}

static void admit(kvd_batcher *b)
{
    const uint32_t request = b->queue[b->head++];
    runner r = {
        .request = request, .slot = b->free_slot[--b->n_free], .prompt = prompt_of(b, request)};
    take_pages(b, &r, entry_pages(b, request));
    b->running[b->n_running++] = r;
}

/* Adds whole prompts of waiting requests to the next iteration. Returns their number of tokens.
 * Only the first prompt may be longer than max_tokens. */
static size_t add_prompts(kvd_batcher *b)
{
    size_t n = 0;
    for (size_t prompt; (prompt = admissible(b)); n += prompt) {
        if (n && (n >= b->limits.max_tokens || prompt > b->limits.max_tokens - n))
            break;
        admit(b);
        add_slice(b, b->n_running - 1, (uint32_t)prompt);
    }
    return n;
}

/* Adds parts of prompts to the next iteration, oldest prompt first, at most `room` tokens in total.
 * Returns the number of tokens. */
static size_t add_pieces(kvd_batcher *b, size_t room)
{
    size_t n = 0;
    for (size_t i = 0; n < room; i++) {
        if (i == b->n_running) {
            if (!admissible(b))
                break;
            admit(b);
        }
        if (b->running[i].done >= b->running[i].prompt)
            continue;
        const size_t rest = b->running[i].prompt - b->running[i].done;
        const size_t piece = rest < room - n ? rest : room - n;
        add_slice(b, i, (uint32_t)piece);
        n += piece;
    }
    return n;
}

kvd_iteration kvd_batcher_next(kvd_batcher *b)
{
    retire(b);
    b->n_preempted = 0;
    kvd_iteration it = {.slice = b->slice};
    if (b->limits.chunk) {
        it.n_steps = add_steps(b);
        it.n_tokens = it.n_steps + add_pieces(b, b->limits.chunk - it.n_steps);
    } else {
        it.n_tokens = add_prompts(b);
        if (!it.n_tokens)
            it.n_tokens = it.n_steps = add_steps(b);
    }
    it.n_slices = b->n_slices;
    return it;
}

kvd_batcher_load kvd_batcher_ask(const kvd_batcher *b)
{
    return (kvd_batcher_load){.waiting = b->tail - b->head,
                              .running = b->n_running,
                              .tokens = b->tokens_left,
                              .pages_used = b->pages_used};
}

const kvd_preempted *kvd_batcher_preempted(const kvd_batcher *b, size_t *n)
{
    *n = b->n_preempted;
    return b->preempted;
}
