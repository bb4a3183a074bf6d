#include <stdbool.h>

#include "serving/jct/jct_grid.h"
#include "unit.h"

enum { SAMPLES = 3 };

static kvd_jct_point *point;
static size_t n_points;

static void make(size_t longest, size_t max_len, const kvd_batching_limits *l, bool whole)
{
    kvd_err err;
    OK(kvd_jct_grid(longest, max_len, l, whole, SAMPLES, &point, &n_points, &err));
    for (size_t i = 0; i < n_points; i++) {
        const kvd_jct_point *const p = &point[i];
        const size_t each = p->tokens + (p->piece ? p->piece + 1 : SAMPLES + 2);
        assert_true(p->batch >= 1 && p->batch <= l->max_batch);
        assert_true(each <= max_len + 1 && p->batch * ((each + 63) / 64) <= l->pages);
        assert_true(p->batch * p->piece <= (l->chunk       ? l->chunk
                                            : p->batch > 1 ? l->max_tokens
                                                           : longest));
        for (size_t k = 0; k < i; k++)
            assert_false(point[k].piece == p->piece && point[k].batch == p->batch &&
                         point[k].tokens == p->tokens);
    }
}

static void release(void)
{
    free(point);
    point = NULL;
}

static size_t count(size_t piece, size_t batch)
{
    size_t n = 0;
    for (size_t i = 0; i < n_points; i++)
        n += point[i].piece == piece && point[i].batch == batch;
    return n;
}

/* Step times jump from batch size 8 to 9, because the engine pads batches to multiples of 8. Batch
 * sizes before and after such jumps must be measured. */
TEST(test_steps)
{
    const kvd_batching_limits l = {.max_batch = 64, .max_tokens = 8192, .pages = 100000};
    make(6000, 6500, &l, true);
    static const size_t batch[] = {1, 2, 4, 8, 9, 16, 17, 32, 33, 64};
    size_t all = 0;
    for (size_t i = 0; i < sizeof batch / sizeof *batch; i++) {
        assert_true(count(0, batch[i]) >= 4);
        all += count(0, batch[i]);
    }
    for (size_t piece = 1; piece <= 6000; piece++)
        all += count(piece, 1);
    assert_int_equal(all, n_points);
    release();
}

TEST(test_prompts_together)
{
    kvd_batching_limits l = {.max_batch = 64, .max_tokens = 8192, .pages = 100000};
    make(697, 1200, &l, false);
    assert_int_equal(count(697, 11), 1);
    release();
    l.max_batch = 5;
    make(697, 1200, &l, false);
    assert_int_equal(count(697, 5), 1);
    release();
    l.pages = 34;
    make(697, 1200, &l, false);
    assert_int_equal(count(697, 3), 1);
    release();
    l = (kvd_batching_limits){.max_batch = 64, .max_tokens = 8192, .chunk = 1500, .pages = 100000};
    make(697, 1200, &l, false);
    assert_int_equal(count(697, 2), 1);
    release();
    make(6000, 6500, &l, false);
    for (size_t n = 2; n <= l.max_batch; n++)
        for (size_t piece = 1; piece <= 6000; piece++)
            assert_int_equal(count(piece, n), 0);
    release();
}

TEST_MAIN(NULL, NULL)
