/* Tests CPU gradients against PyTorch (tests/oracle/make_gradients.py) and finite differences. */
#include <stdio.h>
#include <unistd.h>

#include "collect/sums.h"
#include "forward_case.h"
#include "make_checkpoint.h"
#include "model/model_info.h"
#include "temp_folder.h"
#include "unit.h"

/* accepted distance of gradients from the reference gradients, relative to the reference's norm */
static const double gradient_bar = 1e-4;
static kvd_safetensors *oracle;
static double furthest;

enum { G_K, G_K_PRE, G_V, N_G };
static const char *const g_name[N_G] = {"k", "k_pre", "v"};

typedef struct {
    const kvd_config *c;
    size_t n, width;
    float *g[N_G]; /* gradients, each [n_layers][n tokens][width] */
    double loss;
    size_t n_predicted;
} gradients;

static int take(void *ctx, const kvd_gradients *g, kvd_err *err)
{
    gradients *const to = ctx;
    const float *const from[N_G] = {g->k, g->k_pre, g->v};
    (void)err;
    assert_int_equal(g->n_tokens, to->n);
    for (int i = 0; i < N_G; i++)
        memcpy(to->g[i] + (size_t)g->layer * to->n * to->width, from[i],
               to->n * to->width * sizeof(float));
    return 0;
}

static int differentiate(const kvd_checkpoint *checkpoint, const kvd_batch *b, gradients *to,
                         kvd_err *err)
{
    const kvd_config *const c = kvd_checkpoint_config(checkpoint);
    const size_t n = b->offset[b->n_sequences], width = (size_t)c->n_kv_heads * (size_t)c->d_head;
    *to = (gradients){.c = c, .n = n, .width = width};
    for (int i = 0; i < N_G; i++) {
        to->g[i] = unit_alloc((size_t)c->n_layers * n * width * sizeof(float));
        for (size_t j = 0; j < (size_t)c->n_layers * n * width; j++)
            to->g[i][j] = NAN;
    }
    kvd_backward *const w = kvd_backward_new(checkpoint, n, kvd_batch_longest(b), err);
    if (!w)
        return -1;
    const kvd_gradient_sink sink = {take, NULL, to};
    const int status = kvd_backward_run(w, b, 0, &sink, &to->loss, &to->n_predicted, err);
    kvd_backward_free(w);
    return status;
}

static void assert_gradient(const char *model, const char *what, double error, double square)
{
    const double far = sqrt(error / square);
    furthest = far > furthest ? far : furthest;
    if (!(far <= gradient_bar))
        fail_msg("%s: %s is off by %.3g, allowed is %.3g", model, what, far, gradient_bar);
}

static float *wanted(const char *model, const char *what, size_t n)
{
    char name[64];
    kvd_tensor t;
    kvd_err err = {""};
    (void)snprintf(name, sizeof name, "%s/%s", model, what);
    char path[128];
    (void)snprintf(path, sizeof path, "tests/data/families/%s/gradients.safetensors", model);
    kvd_safetensors *const own = access(path, R_OK) == 0 ? kvd_safetensors_open(path, &err) : NULL;
    OK(kvd_safetensors_find(own ? own : oracle, name, &t, &err));
    assert_int_equal(t.n, n);
    float *const x = unit_alloc(n * sizeof *x);
    memcpy(x, t.data, n * sizeof *x);
    kvd_safetensors_close(own);
    return x;
}

static void compare_sums(const char *model, const char *what, size_t n, const double *got)
{
    float *const want = wanted(model, what, n);
    double error = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        error += pow(got[i] - (double)want[i], 2);
        square += pow((double)want[i], 2);
    }
    assert_gradient(model, what, error, square);
}

static void compare_rows(const char *model, const gradients *g)
{
    enum { ROWS = 3 };
    float *const row = wanted(model, "row", ROWS);
    for (int i = 0; i < N_G; i++) {
        const size_t layers = (size_t)g->c->n_layers;
        float *const want = wanted(model, g_name[i], layers * ROWS * g->width);
        for (size_t l = 0; l < layers; l++) {
            double error = 0, square = 0;
            for (size_t r = 0; r < ROWS; r++)
                for (size_t j = 0; j < g->width; j++) {
                    const double x = (double)want[(l * ROWS + r) * g->width + j];
                    error +=
                        pow(x - (double)g->g[i][(l * g->n + (size_t)row[r]) * g->width + j], 2);
                    square += x * x;
                }
            assert_gradient(model, g_name[i], error, square);
        }
    }
}

/* Returns the token ids in expected.safetensors, and a second sequence: the first 20 ids,
 * reversed. */
static uint32_t *ids_of(const char *name, const kvd_config *c, size_t offset[3])
{
    kvd_err err = {""};
    char path[256];
    expectation e = {0};
    (void)snprintf(path, sizeof path, "tests/data/families/%s/expected.safetensors", name);
    OK(expected_read(path, c, &e, &err));
    uint32_t *const id = unit_alloc((e.n + 20) * sizeof *id);
    memcpy(id, e.id, e.n * sizeof *id);
    for (size_t i = 0; i < 20; i++)
        id[e.n + i] = e.id[19 - i];
    offset[0] = 0;
    offset[1] = e.n;
    offset[2] = e.n + 20;
    expected_release(&e);
    return id;
}

static kvd_fisher sums_for(const kvd_config *c)
{
    const size_t heads = (size_t)c->n_layers * (size_t)c->n_kv_heads;
    kvd_fisher f = {.n_layers = c->n_layers};
    kvd_model_info_set(&f.model, c, "model", "", "f32");
    for (int i = 0; i < KVD_N_F; i++)
        f.sum[i] = calloc(heads * (size_t)c->d_head, sizeof(double));
    for (int side = 0; side < KVD_F_SIDES; side++) {
        f.weight[side] = calloc(heads, sizeof(double));
        f.root[side] = calloc(heads, sizeof(double));
    }
    return f;
}

static kvd_fisher inform(const kvd_checkpoint *checkpoint, const kvd_batch *b, size_t each)
{
    kvd_err err = {""};
    kvd_fisher f = sums_for(kvd_checkpoint_config(checkpoint));
    kvd_information *const s =
        kvd_information_new(checkpoint, b->offset[b->n_sequences], kvd_batch_longest(b), &f, &err);
    if (!s)
        fail_msg("%s", err.msg);
    for (size_t first = 0; first < b->n_sequences; first += each) {
        const size_t at = b->offset[first],
                     some = b->n_sequences - first < each ? b->n_sequences - first : each;
        size_t offset[8];
        for (size_t i = 0; i <= some; i++)
            offset[i] = b->offset[first + i] - at;
        const kvd_batch part = {
            .n_sequences = some, .offset = offset, .first_sequence = first, .id = b->id + at};
        OK(kvd_information_run(s, &part, at, NULL, NULL, &err));
    }
    kvd_information_flush(s);
    kvd_information_free(s);
    return f;
}

static void test_autograd(void **state)
{
    const char *const name = *state;
    kvd_err err = {""};
    kvd_checkpoint *const checkpoint = open_family(name);
    const kvd_config *const c = kvd_checkpoint_config(checkpoint);
    const size_t heads = (size_t)c->n_layers * (size_t)c->n_kv_heads,
                 all = heads * (size_t)c->d_head;
    size_t offset[3];
    uint32_t *const id = ids_of(name, c, offset);
    const kvd_batch one = {.n_sequences = 1, .offset = offset, .id = id},
                    both = {.n_sequences = 2, .offset = offset, .id = id};
    gradients g;
    furthest = 0;
    OK(differentiate(checkpoint, &one, &g, &err));
    float *const loss = wanted(name, "loss", 2);
    assert_true(fabs(g.loss / (double)loss[0] - 1) < 1e-6);
    assert_int_equal(g.n_predicted, offset[1] - 1);
    compare_rows(name, &g);

    kvd_fisher f = inform(checkpoint, &both, 2);
    assert_true(fabs(f.loss / ((double)loss[0] + (double)loss[1]) - 1) < 1e-6);
    compare_sums(name, "k2", all, f.sum[KVD_F_K]);
    compare_sums(name, "k_pre2", all, f.sum[KVD_F_K_PRE]);
    compare_sums(name, "v2", all, f.sum[KVD_F_V]);
    compare_sums(name, "w_k", heads, f.weight[0]);
    compare_sums(name, "w_v", heads, f.weight[1]);
    compare_sums(name, "w_k_root", heads, f.root[0]);
    compare_sums(name, "w_v_root", heads, f.root[1]);
    print_message("%s: %.2g off autograd at most\n", name, furthest);
    kvd_fisher_close(&f);
}

typedef struct {
    size_t layer, size;
    int side;
    double step;
    const double *direction; /* [n tokens][width] */
} nudge;

static void move(void *ctx, size_t layer, double *k_pre, double *v)
{
    const nudge *const m = ctx;
    for (size_t i = 0; layer == m->layer && i < m->size; i++)
        (m->side ? v : k_pre)[i] += m->step * m->direction[i];
}

static double reference_loss(const kvd_checkpoint *checkpoint, const uint32_t *id, size_t n,
                             nudge *m)
{
    const size_t vocab = (size_t)kvd_checkpoint_config(checkpoint)->vocab_size;
    double *const logits = unit_alloc(n * vocab * sizeof *logits), sum = 0;
    const forward_ref_out out = {.logits = logits, .nudge = move, .ctx = m};
    forward_ref(checkpoint, id, n, &out);
    for (size_t i = 0; i + 1 < n; i++) {
        const double target = logits[i * vocab + id[i + 1]];
        /* probability of all other tokens, divided by that of the target token */
        double others = 0;
        for (size_t j = 0; j < vocab; j++)
            others += j == id[i + 1] ? 0 : exp(logits[i * vocab + j] - target);
        sum += log1p(others);
    }
    return sum;
}

/* Compares the derivative of the loss f along small random h with (f(x + h) - f(x - h)) / 2. */
static void compare_with_differences(const char *what, const char *path, size_t n)
{
    kvd_err err = {""};
    kvd_checkpoint *const checkpoint = open_checkpoint(path);
    const kvd_config *const c = kvd_checkpoint_config(checkpoint);
    uint32_t *const id = token_ids(n, (size_t)c->vocab_size, 5);
    const size_t offset[2] = {0, n};
    const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = id};
    gradients g;
    kvd_rng rng;
    kvd_rng_seed(&rng, 3, 0);
    OK(differentiate(checkpoint, &b, &g, &err));
    const size_t size = n * g.width;
    double *const direction = unit_alloc(size * sizeof *direction);
    for (size_t l = 0; l < (size_t)c->n_layers; l++)
        for (int side = 0; side < 2; side++) {
            const float *const x = g.g[side ? G_V : G_K_PRE] + l * size;
            double along = 0, length = 0;
            for (size_t i = 0; i < size; i++) {
                direction[i] = kvd_rng_normal(&rng);
                along += direction[i] * (double)x[i];
                length += pow((double)x[i], 2);
            }
            nudge m = {l, size, side, 1e-4, direction};
            const double up = reference_loss(checkpoint, id, n, &m);
            m.step = -m.step;
            const double difference = (up - reference_loss(checkpoint, id, n, &m)) / 2e-4;
            if (!(fabs(difference - along) < 1e-4 * sqrt(length)))
                fail_msg(
                    "%s: layer %zu %s: %.9g along a direction, from differences %.9g, norm %.3g",
                    what, l, side ? "v" : "k_pre", along, difference, sqrt(length));
        }
}

static void test_differences(void **state)
{
    char path[256];
    (void)snprintf(path, sizeof path, "tests/data/families/%s", (const char *)*state);
    compare_with_differences(*state, path, 12);
}

TEST(test_longer_sequence)
{
    kvd_err err = {""};
    char path[64];
    (void)snprintf(path, sizeof path, "%s/m", temp_folder());
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = 3;
    s.heads = 6;
    s.kv_heads = 2;
    s.dtype = KVD_BF16;
    s.rope = "llama3";
    OK(make_checkpoint(path, &s, &err));
    compare_with_differences("gqa bf16", path, 150);
}

/* Tests that K and V of the last token, which predicts nothing, have gradient 0. */
static void test_last_row_has_none(void **state)
{
    kvd_err err = {""};
    kvd_checkpoint *const checkpoint = open_family(*state);
    const size_t offset[] = {0, 9, 10, 30};
    uint32_t *const id = token_ids(30, (size_t)kvd_checkpoint_config(checkpoint)->vocab_size, 3);
    const kvd_batch b = {.n_sequences = 3, .offset = offset, .id = id};
    gradients g;
    OK(differentiate(checkpoint, &b, &g, &err));
    assert_int_equal(g.n_predicted, 27);
    for (int i = 0; i < N_G; i++)
        for (size_t l = 0; l < (size_t)g.c->n_layers; l++)
            for (size_t row = 0; row < 30; row++) {
                double sum = 0;
                for (size_t j = 0; j < g.width; j++)
                    sum += fabs((double)g.g[i][(l * 30 + row) * g.width + j]);
                const bool none = row == 8 || row == 9 || row == 29;
                if (none ? sum > 0 : !(sum > 0))
                    fail_msg("%s of layer %zu, row %zu: |gradient| sums to %g", g_name[i], l, row,
                             sum);
            }
}

static void test_batches(void **state)
{
    kvd_checkpoint *const checkpoint = open_family(*state);
    const kvd_config *const c = kvd_checkpoint_config(checkpoint);
    const size_t offset[] = {0, 25, 34, 36, 60},
                 heads = (size_t)c->n_layers * (size_t)c->n_kv_heads;
    uint32_t *const id = token_ids(60, (size_t)c->vocab_size, 8);
    const kvd_batch b = {.n_sequences = 4, .offset = offset, .id = id};
    kvd_fisher f[3] = {inform(checkpoint, &b, 4), inform(checkpoint, &b, 1),
                       inform(checkpoint, &b, 3)};
    for (int i = 1; i < 3; i++) {
        assert_true(fabs(f[i].loss / f[0].loss - 1) < 1e-6);
        for (size_t h = 0; h < heads; h++)
            for (int side = 0; side < KVD_F_SIDES; side++) {
                assert_true(fabs(f[i].weight[side][h] / f[0].weight[side][h] - 1) < 1e-4);
                assert_true(fabs(f[i].root[side][h] / f[0].root[side][h] - 1) < 1e-4);
            }
        for (int x = 0; x < KVD_N_F; x++)
            for (size_t j = 0; j < heads * (size_t)c->d_head; j++)
                assert_true(fabs(f[i].sum[x][j] / f[0].sum[x][j] - 1) < 1e-3);
    }
    for (int i = 0; i < 3; i++)
        kvd_fisher_close(&f[i]);
}

TEST(test_refused)
{
    kvd_err err = {""};
    kvd_checkpoint *const checkpoint = open_family("qwen2-gqa");
    const size_t offset[] = {0, 3};
    const uint32_t id[] = {1, 80, 2};
    const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = id};
    const kvd_gradient_sink sink = {take, NULL, NULL};
    double loss = 0;
    size_t n = 0;
    kvd_backward *const w = kvd_backward_new(checkpoint, 8, 8, &err);
    assert_non_null(w);
    FAILS(kvd_backward_run(w, &b, 0, &sink, &loss, &n, &err),
          "sequence 0, position 1: token id 80 is not below the vocabulary size 80");
    FAILS(kvd_backward_run(w, &b, 2, &sink, &loss, &n, &err), "layer 2 asked for, the model has 2");
    kvd_backward_free(w);
}

static int set_up(void **state)
{
    kvd_err err = {""};
    (void)state;
    oracle = kvd_safetensors_open("tests/data/gradients.safetensors", &err);
    return oracle ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvd_safetensors_close(oracle);
    return 0;
}

#define FAMILY(name)      TEST_WITH(name, test_autograd)
#define DIFFERENCES(name) TEST_WITH(name, test_differences)

int main(void)
{
    FAMILIES(FAMILY);
    FAMILIES(DIFFERENCES);
    FAMILY("mixtral-full");
    FAMILY("mixtral-window");
    FAMILY("mixtral-mha");
    FAMILY("qwen3-moe-norm");
    FAMILY("qwen3-moe-plain");
    FAMILY("qwen3-moe-mqa");
    FAMILY("qwen2-moe");
    FAMILY("qwen2-moe-nobias");
    FAMILY("gpt-oss");
    FAMILY("gpt-oss-mha");
    FAMILY("olmoe");
    FAMILY("dots1");
    FAMILY("solar-open");
    FAMILY("minimax-m2");
    ROUTED(DIFFERENCES);
    TEST_WITH("llama-biases", test_last_row_has_none);
    TEST_WITH("falcon-40b", test_last_row_has_none);
    TEST_WITH("opt-after", test_batches);
    TEST_WITH("qwen3-mqa", test_batches);
    TEST_WITH("phi3-long", test_batches);
    return unit_run(set_up, tear_down);
}
