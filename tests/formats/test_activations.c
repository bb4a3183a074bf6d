#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include "collect/dump.h"
#include "collect_fixture.h"
#include "model/model_info.h"
#include "unit.h"

enum { N = 37, LAYERS = 2, FIRST = 1, HEADS = 4, KV = 2, D = 8, MODEL = 20 };

static void describe(kvd_activations *a, kvd_dtype dtype, bool has_pre)
{
    memset(a, 0, sizeof *a);
    kvd_model_info_set(&a->model, &fixture_config, "some/where/tiny/", "xxh3:0123", "f32");
    snprintf(a->label, sizeof a->label, "made up");
    snprintf(a->corpus_hash, sizeof a->corpus_hash, "xxh3:4567");
    a->n_tokens = N;
    a->n_sequences = 3;
    a->seq_len = 16;
    a->first_layer = FIRST;
    a->n_layers = LAYERS;
    a->dtype = dtype;
    a->has_pre = has_pre;
}

static int heads_of(int x)
{
    return x == KVD_X_Q || x == KVD_X_Q_PRE ? HEADS : KV;
}

/* Returns random numbers [token][head][dim], which differ between tensors x (Q, K, V ...) and
 * layers. */
static float *tensor(int x, int layer, size_t n)
{
    return fixture_values(n * (size_t)heads_of(x) * D, (uint64_t)(10 * layer + x + 1));
}

static void fill(kvd_activations *a, const size_t *batch, size_t n_batches)
{
    kvd_err err = {""};
    kvd_dump dump;
    uint32_t id[N], sequence[N], position[N];
    OK(kvd_dump_init(&dump, a, &err));
    for (int layer = 0; layer < fixture_config.n_layers; layer++) {
        float *x[KVD_N_X];
        for (int i = 0; i < KVD_N_X; i++)
            x[i] = tensor(i, layer, N);
        dump.first_token = 0;
        for (size_t b = 0; b < n_batches; b++) {
            const size_t t = dump.first_token;
            const kvd_attention_in in = {.config = &fixture_config,
                                         .layer = layer,
                                         .n_tokens = batch[b],
                                         .q = x[0] + t * HEADS * D,
                                         .k = x[1] + t * KV * D,
                                         .v = x[2] + t * KV * D,
                                         .q_pre = a->has_pre ? x[3] + t * HEADS * D : NULL,
                                         .k_pre = a->has_pre ? x[4] + t * KV * D : NULL};
            OK(kvd_dump_record(&dump, &in, &err));
            dump.first_token += batch[b];
        }
    }
    for (uint32_t i = 0; i < N; i++) {
        id[i] = 99 - i;
        sequence[i] = i / 16;
        position[i] = i % 16;
    }
    OK(kvd_activations_put_tokens(a, 0, 20, id, sequence, position, &err));
    OK(kvd_activations_put_tokens(a, 20, N - 20, id + 20, sequence + 20, position + 20, &err));
    float *w = fixture_values(HEADS * D * MODEL, 99);
    for (int l = 0; l < LAYERS; l++)
        OK(kvd_activations_put_weights(a, l, w, w + 3, &err));
    kvd_dump_release(&dump);
}

static const char *made(const char *name, kvd_dtype dtype, bool has_pre)
{
    static const size_t batch[] = {16, 16, 5};
    const char *path = temp_file(name);
    kvd_activations a;
    kvd_err err = {""};
    describe(&a, dtype, has_pre);
    OK(kvd_activations_create(&a, path, test_run(), false, &err));
    fill(&a, batch, 3);
    OK(kvd_activations_finish(&a, &err));
    return path;
}

static void rounded(kvd_dtype t, const float *from, float *to, size_t n)
{
    char raw[4 * N * D * MODEL];
    kvd_from_f32(t, from, raw, n);
    kvd_to_f32(t, raw, to, n);
}

TEST(test_comes_back)
{
    for (int dtype = KVD_F32; dtype <= KVD_BF16; dtype++)
        for (int pre = 0; pre < 2; pre++) {
            const char *path = made("a.h5", (kvd_dtype)dtype, pre);
            kvd_activations a;
            kvd_err err = {""};
            OK(kvd_activations_open(&a, path, &err));
            assert_int_equal(a.n_tokens, N);
            assert_int_equal(a.n_sequences, 3);
            assert_int_equal(a.seq_len, 16);
            assert_int_equal(a.first_layer, FIRST);
            assert_int_equal(a.n_layers, LAYERS);
            assert_int_equal(a.dtype, dtype);
            assert_int_equal(a.has_pre, pre);
            assert_string_equal(a.label, "made up");
            assert_string_equal(a.corpus_hash, "xxh3:4567");
            assert_string_equal(a.model.name, "tiny");
            assert_string_equal(a.model.rope_layout, "half");
            for (int x = 0; x < (pre ? KVD_N_X : KVD_X_Q_PRE); x++)
                for (int l = 0; l < LAYERS; l++) {
                    float *all = tensor(x, FIRST + l, N), rows[N * D], scratch[N * D] = {0},
                          want[D], got[D];
                    for (int h = 0; h < heads_of(x); h++)
                        for (size_t first = 0; first < N; first += 11) {
                            const size_t n = N - first < 11 ? N - first : 11;
                            memset(rows, 0xff, sizeof rows);
                            OK(kvd_activations_rows(&a, (kvd_x)x, l, h, first, n, rows,
                                                    dtype ? scratch : NULL, &err));
                            for (size_t i = 0; i < n; i++) {
                                const float *from =
                                    all + ((first + i) * (size_t)heads_of(x) + (size_t)h) * D;
                                memcpy(want, from, sizeof want);
                                rounded((kvd_dtype)dtype, want, got, D);
                                assert_memory_equal(rows + i * D, got, sizeof got);
                            }
                        }
                }
            float *w = fixture_values(HEADS * D * MODEL, 99), want[D * MODEL], got[D * MODEL];
            for (int h = 0; h < HEADS; h++) {
                rounded((kvd_dtype)dtype, w + h * D * MODEL, want, D * MODEL);
                OK(kvd_activations_w_o(&a, 1, h, got, &err));
                assert_memory_equal(got, want, sizeof want);
            }
            rounded((kvd_dtype)dtype, w + 3 + D * MODEL, want, D * MODEL);
            OK(kvd_activations_w_v(&a, 0, 1, got, &err));
            assert_memory_equal(got, want, sizeof want);
            kvd_activations_close(&a);
        }
}

TEST(test_reopen)
{
    const size_t before[] = {10, 9}, all[] = {10, 9, 18};
    kvd_activations a;
    kvd_err err = {""};
    const char *path = temp_file("r.h5");
    describe(&a, KVD_F16, true);
    OK(kvd_activations_create(&a, path, test_run(), false, &err));
    fill(&a, before, 2);
    OK(kvd_h5_sync(&a.file, &err));
    kvd_activations_abandon(&a, true);
    assert_int_equal(kvd_activations_open(&a, path, &err), -1);

    OK(kvd_activations_reopen(&a, path, test_run(), &err));
    assert_true(a.file.id >= 0);
    assert_int_equal(a.n_tokens, N);
    assert_int_equal(a.dtype, KVD_F16);
    fill(&a, all, 3);
    OK(kvd_activations_finish(&a, &err));
    char command[1024];
    const char *whole = made("whole.h5", KVD_F16, true);
    snprintf(command, sizeof command,
             "for d in q k v q_pre k_pre w_o w_v tokens/id tokens/sequence tokens/position; do "
             "h5diff -q %s %s /$d && h5diff -q %s %s /checksums/$d || exit 1; done",
             path, whole, path, whole);
    if (!system("command -v h5diff >/dev/null"))
        assert_int_equal(system(command), 0);
    OK(kvd_activations_open(&a, path, &err));
    kvd_activations_close(&a);
}

static void record_bad(kvd_dtype dtype, float bad, const char *message)
{
    kvd_activations a;
    kvd_dump dump;
    kvd_err err = {""};
    float *q = tensor(0, FIRST, N), *k = tensor(1, FIRST, N), *v = tensor(2, FIRST, N);
    describe(&a, dtype, false);
    OK(kvd_activations_create(&a, temp_file("bad.h5"), test_run(), false, &err));
    OK(kvd_dump_init(&dump, &a, &err));
    k[(5 * KV + 1) * D + 3] = bad;
    dump.first_token = 20;
    const kvd_attention_in in = {
        .config = &fixture_config, .layer = FIRST, .n_tokens = 17, .q = q, .k = k, .v = v};
    if (message) {
        FAILS(kvd_dump_record(&dump, &in, &err), message);
    } else {
        OK(kvd_dump_record(&dump, &in, &err));
    }
    kvd_dump_release(&dump);
    kvd_activations_abandon(&a, false);
    assert_int_not_equal(access(temp_file("bad.h5.partial"), F_OK), 0);
}

/* A full disk must be reported even if HDF5 fails only when it closes the dataset. */
TEST(test_tokens_not_written)
{
    kvd_activations a;
    kvd_err err = {""};
    const uint32_t zero[N] = {0};
    struct rlimit before, low;
    describe(&a, KVD_F32, false);
    OK(kvd_activations_create(&a, temp_file("full.h5"), test_run(), false, &err));
    OK(kvd_h5_sync(&a.file, &err));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    void (*const was)(int) = signal(SIGXFSZ, SIG_IGN);
    low = before;
    low.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    const int status = kvd_activations_put_tokens(&a, 0, N, zero, zero, zero, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, -1);
    assert_non_null(strstr(err.msg, "full.h5' /tokens/id: File too large"));
    kvd_activations_abandon(&a, false);
    (void)signal(SIGXFSZ, was);
}

TEST(test_overflow)
{
    record_bad(KVD_F16, 65519, NULL);
    record_bad(
        KVD_F16, 65520,
        "layer 1 head 1 token 25 dim 3: k is 65520, which overflows f16; use --dtype bf16 or f32");
    record_bad(
        KVD_F16, -1e6f,
        "layer 1 head 1 token 25 dim 3: k is -1e+06, which overflows f16; use --dtype bf16 or f32");
    record_bad(KVD_BF16, 1e38f, NULL);
    record_bad(
        KVD_BF16, 3.4e38f,
        "layer 1 head 1 token 25 dim 3: k is 3.4e+38, which overflows bf16; use --dtype f32");
    record_bad(KVD_F32, 3.4e38f, NULL);
    record_bad(KVD_F32, NAN, "layer 1 head 1 token 25 dim 3: k is not finite");
    record_bad(KVD_F16, INFINITY, "layer 1 head 1 token 25 dim 3: k is not finite");
}

TEST(test_first_nonfinite)
{
    enum { LONG = 10000 };
    float *x = fixture_values(LONG, 1);
    static uint16_t half[LONG];
    for (int t = KVD_F32; t <= KVD_BF16; t++) {
        for (size_t at = 4090; at < 4100; at++) {
            const float kept = x[at];
            void *to = t == KVD_F32 ? (void *)x : half;
            x[at] = at % 2 ? NAN : -INFINITY;
            if (t != KVD_F32)
                kvd_from_f32((kvd_dtype)t, x, half, LONG);
            assert_int_equal(kvd_first_nonfinite((kvd_dtype)t, to, LONG), at);
            assert_int_equal(kvd_first_nonfinite((kvd_dtype)t, to, at), at);
            x[at] = kept;
        }
    }
}

static void refused(const char *path, const char *message)
{
    kvd_activations a;
    kvd_err err = {""};
    char want[512];
    snprintf(want, sizeof want, "'%s'%s", path, message);
    FAILS(kvd_activations_open(&a, path, &err), want);
}

static hid_t edit(const char *path)
{
    const hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(f >= 0);
    return f;
}

static void replace(const char *path, const char *name, hid_t type, int rank, const hsize_t *dims)
{
    const hid_t f = edit(path), space = H5Screate_simple(rank, dims, NULL);
    assert_true(H5Ldelete(f, name, H5P_DEFAULT) >= 0);
    const hid_t d = H5Dcreate2(f, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(d >= 0);
    H5Dclose(d);
    H5Sclose(space);
    assert_true(H5Fclose(f) >= 0);
}

static void set_attribute(const char *path, const char *group, const char *name, int64_t value)
{
    const hid_t f = edit(path), g = H5Gopen2(f, group, H5P_DEFAULT),
                a = H5Aopen(g, name, H5P_DEFAULT);
    if (a < 0 || H5Awrite(a, H5T_NATIVE_INT64, &value) < 0)
        fail_msg("cannot set %s of %s", name, group);
    H5Aclose(a);
    H5Gclose(g);
    assert_true(H5Fclose(f) >= 0);
}

TEST(test_refuses_wrong_shapes)
{
    const char *path = made("h.h5", KVD_F32, false);
    replace(path, "/k", H5T_IEEE_F32LE, 4, (const hsize_t[]){LAYERS, KV, N - 1, D});
    refused(path, ": /k has length 36 on axis 2, should have 37");
    path = made("h.h5", KVD_F32, false);
    replace(path, "/v", H5T_IEEE_F64LE, 4, (const hsize_t[]){LAYERS, KV, N, D});
    refused(path, ": /v is not float32, float16 or bfloat16");
    path = made("h.h5", KVD_F32, false);
    replace(path, "/v", kvd_h5_type_bf16(), 4, (const hsize_t[]){LAYERS, KV, N, D});
    refused(path, ": /v is bf16, /q is f32");
    path = made("h.h5", KVD_F32, false);
    replace(path, "/v", H5T_IEEE_F32LE, 4, (const hsize_t[]){LAYERS, KV, N, D});
    refused(path, " /v stores 0 of its 1 blocks of values");
    path = made("h.h5", KVD_F32, false);
    replace(path, "/q", H5T_IEEE_F32LE, 4, (const hsize_t[]){4, HEADS, N, D});
    refused(path, ": /q has 4 layers, the model 3");
    path = made("h.h5", KVD_F32, false);
    replace(path, "/w_o", H5T_IEEE_F32LE, 4, (const hsize_t[]){LAYERS, HEADS, D, MODEL + 1});
    refused(path, ": /w_o has length 21 on axis 3, should have 20");
    path = made("h.h5", KVD_F32, false);
    replace(path, "/tokens/position", H5T_STD_U32LE, 1, (const hsize_t[]){N + 1});
    refused(path, ": /tokens/position has length 38 on axis 0, should have 37");
}

static const char *without_checksums(const char *path)
{
    const hid_t f = edit(path);
    assert_true(H5Ldelete(f, "/checksums", H5P_DEFAULT) >= 0);
    assert_true(H5Fclose(f) >= 0);
    return path;
}

static void set_token(const char *path, const char *name, hsize_t at, uint32_t value)
{
    const hid_t f = edit(path), d = H5Dopen2(f, name, H5P_DEFAULT), s = H5Dget_space(d);
    const hsize_t one = 1;
    const hid_t m = H5Screate_simple(1, &one, NULL);
    assert_true(H5Sselect_hyperslab(s, H5S_SELECT_SET, &at, NULL, &one, NULL) >= 0 &&
                H5Dwrite(d, H5T_NATIVE_UINT32, m, s, H5P_DEFAULT, &value) >= 0);
    H5Sclose(m);
    H5Sclose(s);
    H5Dclose(d);
    assert_true(H5Fclose(f) >= 0);
}

TEST(test_refuses_tokens_out_of_order)
{
    const char *path = without_checksums(made("h.h5", KVD_F32, false));
    set_token(path, "/tokens/sequence", 5, 2);
    refused(path, ": token 5 is sequence 2, position 5; 0, 5 come next, with seq_len 16");
    path = without_checksums(made("h.h5", KVD_F32, false));
    set_token(path, "/tokens/position", 20, 9);
    refused(path, ": token 20 is sequence 1, position 9; 1, 4 come next, with seq_len 16");
    path = without_checksums(made("h.h5", KVD_F32, false));
    set_token(path, "/tokens/id", 36, 1000000);
    refused(path, ": token 36 has id 1000000, the vocabulary 100");
    path = made("h.h5", KVD_F32, false);
    set_attribute(path, "/", "n_sequences", 4);
    refused(path, ": attribute n_sequences of / is 4, the tokens are in 3");
    path = made("h.h5", KVD_F32, false);
    set_attribute(path, "/", "seq_len", 15);
    refused(path, ": token 15 is sequence 0, position 15; 0, 15 come next, with seq_len 15");
}

TEST(test_refuses_wrong_numbers)
{
    const char *path = made("h.h5", KVD_F32, false);
    set_attribute(path, "/", "first_layer", 2);
    refused(path, ": attribute first_layer of / is 2, should be 0 to 1");
    path = made("h.h5", KVD_F32, false);
    set_attribute(path, "/", "n_sequences", 0);
    refused(path, ": attribute n_sequences of / is 0, should be 1 to 37");
    path = made("h.h5", KVD_F32, false);
    set_attribute(path, "/model", "n_kv_heads", 3);
    refused(path, ": /model has 4 heads, not a multiple of 3 KV heads");
    path = made("h.h5", KVD_F32, false);
    set_attribute(path, "/model", "d_head", -8);
    refused(path, ": attribute d_head of /model is -8, should be 1 to 999999");
}

TEST(test_refuses_nonfinite_rows)
{
    const char *path = without_checksums(made("h.h5", KVD_F16, false));
    const uint16_t infinity = 0x7c00;
    const hid_t f = edit(path), d = H5Dopen2(f, "/v", H5P_DEFAULT), space = H5Dget_space(d);
    const hsize_t start[] = {1, 1, 30, 6}, count[] = {1, 1, 1, 1};
    const hid_t one = H5Screate_simple(4, count, NULL);
    assert_true(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0);
    assert_true(H5Dwrite(d, kvd_h5_type_f16(), one, space, H5P_DEFAULT, &infinity) >= 0);
    H5Sclose(one);
    H5Sclose(space);
    H5Dclose(d);
    assert_true(H5Fclose(f) >= 0);

    kvd_activations a;
    kvd_err err;
    float rows[N * D], scratch[N * D];
    char want[256];
    OK(kvd_activations_open(&a, path, &err));
    OK(kvd_activations_rows(&a, KVD_X_V, 1, 1, 5, 25, rows, scratch, &err));
    assert_int_equal(kvd_activations_rows(&a, KVD_X_V, 1, 1, 5, 26, rows, scratch, &err), -1);
    snprintf(want, sizeof want, "'%s': v layer 1 head 1 token 30 dim 6 is not finite", path);
    assert_string_equal(err.msg, want);
    kvd_activations_close(&a);
}

/* Compares a file's checksums with ones computed as docs/formats.md defines them. */
static void checksums_are(const char *path, const char *name, hsize_t head, hsize_t n_rows,
                          hsize_t width)
{
    enum { MOST = 200 };
    char sums_name[32];
    float rows[MOST * MODEL];
    uint64_t sums[MOST];
    const hsize_t start[] = {1, head, 0, 0}, count[] = {1, 1, n_rows, width},
                  n_blocks = (n_rows + 63) / 64, blocks[] = {1, 1, n_blocks};
    kvd_err err = {""};
    snprintf(sums_name, sizeof sums_name, "/checksums%s", name);
    const hid_t f = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), d = H5Dopen2(f, name, H5P_DEFAULT),
                c = H5Dopen2(f, sums_name, H5P_DEFAULT);
    OK(kvd_h5_read_slab(d, name, 4, start, count, H5T_IEEE_F32LE, rows, &err));
    OK(kvd_h5_read_slab(c, sums_name, 3, start, blocks, H5T_NATIVE_UINT64, sums, &err));
    for (hsize_t b = 0; b < n_blocks; b++) {
        uint64_t want = 0;
        for (hsize_t t = 64 * b; t < 64 * b + 64 && t < n_rows; t++)
            want += (2 * t + 1) * XXH3_64bits(rows + t * width, width * sizeof *rows);
        assert_true(sums[b] == want);
    }
    H5Dclose(c);
    H5Dclose(d);
    H5Fclose(f);
}

/* Flips a bit of a row in layer 1. A second call restores the bit. */
static void flip(const char *path, const char *name, hsize_t head, hsize_t row)
{
    const hid_t f = edit(path), d = H5Dopen2(f, name, H5P_DEFAULT), s = H5Dget_space(d);
    const hsize_t start[] = {1, head, row, 2}, one[] = {1, 1, 1, 1};
    const hid_t m = H5Screate_simple(4, one, NULL);
    uint32_t value;
    assert_true(H5Sselect_hyperslab(s, H5S_SELECT_SET, start, NULL, one, NULL) >= 0);
    assert_true(H5Dread(d, H5T_IEEE_F32LE, m, s, H5P_DEFAULT, &value) >= 0);
    value ^= 1;
    assert_true(H5Dwrite(d, H5T_IEEE_F32LE, m, s, H5P_DEFAULT, &value) >= 0);
    H5Sclose(m);
    H5Sclose(s);
    H5Dclose(d);
    assert_true(H5Fclose(f) >= 0);
}

/* Writes Q, K, V of 150 tokens in batches that do not end at multiples of 64. Returns the path. */
static const char *made_long(void)
{
    enum { LONG = 150 };
    static const size_t first[] = {100, 0, 37, 130}, n[] = {30, 37, 63, 20};
    const char *path = temp_file("long.h5");
    kvd_activations a;
    kvd_err err = {""};
    describe(&a, KVD_F32, false);
    a.n_tokens = a.seq_len = LONG;
    a.n_sequences = 1;
    a.model.max_positions = LONG;
    OK(kvd_activations_create(&a, path, test_run(), false, &err));
    float *w = fixture_values(HEADS * D * MODEL, 99), *rows = fixture_values((size_t)LONG * D, 5);
    uint32_t token[3 * LONG] = {0};
    for (uint32_t t = 0; t < LONG; t++)
        token[2 * LONG + t] = t;
    for (int l = 0; l < LAYERS; l++) {
        for (int x = 0; x <= KVD_X_V; x++)
            for (int h = 0; h < heads_of(x); h++)
                for (int b = 0; b < 4; b++)
                    OK(kvd_activations_put_rows(&a, (kvd_x)x, l, h, first[b], n[b],
                                                rows + first[b] * D, &err));
        OK(kvd_activations_put_weights(&a, l, w, w, &err));
        OK(kvd_activations_put_weights(&a, l, w, w + 3, &err));
    }
    OK(kvd_activations_put_tokens(&a, 0, LONG, token, token + LONG, token + 2 * LONG, &err));
    OK(kvd_activations_finish(&a, &err));
    return path;
}

static void rows_are_refused(const char *path, size_t first, size_t n, const char *message)
{
    kvd_activations a;
    kvd_err err = {""};
    float rows[150 * D];
    char want[512];
    OK(kvd_activations_open(&a, path, &err));
    OK(kvd_activations_rows(&a, KVD_X_V, 1, 0, 0, 150, rows, NULL, &err));
    assert_int_equal(kvd_activations_rows(&a, KVD_X_V, 1, 1, first, n, rows, NULL, &err),
                     message ? -1 : 0);
    snprintf(want, sizeof want,
             "'%s' is damaged: %s do not match their checksum; copy or make the file again", path,
             message ? message : "");
    if (message)
        assert_string_equal(err.msg, want);
    kvd_activations_close(&a);
}

TEST(test_checksums)
{
    const char *path = made_long();
    checksums_are(path, "/q", 3, 150, D);
    checksums_are(path, "/v", 1, 150, D);
    checksums_are(path, "/w_v", 1, D, MODEL);
    rows_are_refused(path, 0, 150, NULL);
    rows_are_refused(path, 5, 1, NULL);
    flip(path, "/v", 1, 70);
    rows_are_refused(path, 0, 64, NULL);
    rows_are_refused(path, 128, 22, NULL);
    rows_are_refused(path, 0, 150, "/v layer 1 head 1 tokens 64 to 127");
    rows_are_refused(path, 0, 65, "/v layer 1 head 1 tokens 64 to 127");
    rows_are_refused(path, 127, 2, "/v layer 1 head 1 tokens 64 to 127");
    flip(path, "/v", 1, 149);
    rows_are_refused(path, 0, 150, "/v layer 1 head 1 tokens 64 to 127");
    rows_are_refused(path, 128, 1, "/v layer 1 head 1 tokens 128 to 149");
    flip(path, "/v", 1, 70);
    flip(path, "/v", 1, 149);
    rows_are_refused(path, 0, 150, NULL);

    kvd_activations a;
    kvd_err err = {""};
    float w[D * MODEL];
    char want[512];
    flip(path, "/w_o", 2, 7);
    OK(kvd_activations_open(&a, path, &err));
    OK(kvd_activations_w_o(&a, 1, 1, w, &err));
    assert_int_equal(kvd_activations_w_o(&a, 1, 2, w, &err), -1);
    snprintf(
        want, sizeof want,
        "'%s' is damaged: /w_o layer 1 head 2 dims 0 to 7 do not match their checksum; copy or make the file "
        "again",
        path);
    assert_string_equal(err.msg, want);
    kvd_activations_close(&a);
    set_token(path, "/tokens/id", 130, 1);
    refused(
        path,
        " is damaged: /tokens/id tokens 128 to 149 do not match their checksum; copy or make the file again");
}

TEST(test_same_model)
{
    kvd_model_info a, b;
    kvd_err err;
    kvd_config other = fixture_config;
    other.rope_theta = 500000;
    kvd_model_info_set(&a, &fixture_config, "/models/one", "xxh3:1", "f32");
    kvd_model_info_set(&b, &fixture_config, "/elsewhere/two", "xxh3:1", "f32");
    assert_string_equal(a.name, "one");
    OK(kvd_model_info_same(&a, "a.h5", &b, "b.h5", &err));
    kvd_model_info_set(&b, &other, "one", "xxh3:1", "f32");
    assert_int_equal(kvd_model_info_same(&a, "a.h5", &b, "b.h5", &err), -1);
    assert_string_equal(
        err.msg, "'a.h5' and 'b.h5' are of different models: rope_theta is 10000 and 500000");
    kvd_model_info_set(&b, &fixture_config, "one", "xxh3:2", "f32");
    FAILS(kvd_model_info_same(&a, "a.h5", &b, "b.h5", &err),
          "'a.h5' and 'b.h5' are of different models: hash is xxh3:1 and xxh3:2");
}

TEST_MAIN(NULL, NULL)
