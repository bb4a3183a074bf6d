/* Tests llama2.c's tokenizer.bin against a simple loop that merges the best pair of neighbours. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer_case.h"

typedef struct {
    size_t n;
    float score[4096];
    int len[4096];
    char piece[4096][64];
} vocabulary;

static uint64_t random_state = 3;
static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static int lookup(const vocabulary *v, const char *s, int len)
{
    for (size_t i = 0; i < v->n; i++)
        if (v->len[i] == len && !memcmp(v->piece[i], s, (size_t)len))
            return (int)i;
    return -1;
}

/* Encodes text s: merges the best-scoring pair of neighbouring tokens until no pair can be merged.
 * Writes ids to `out`. Returns their number, or -1 if a byte has no id. */
static int naive_encode(const vocabulary *v, const char *s, size_t len, int bos, int *out)
{
    int n = 0;
    if (bos)
        out[n++] = 1;
    if (len)
        out[n++] = lookup(v, " ", 1);
    for (size_t i = 0; i < len;) {
        size_t w = 1;
        while (i + w < len && (s[i + w] & 0xc0) == 0x80)
            w++;
        const int id = lookup(v, s + i, (int)w);
        for (size_t k = 0; id < 0 && k < w; k++) {
            out[n] = (unsigned char)s[i + k] + 3;
            if ((size_t)out[n++] >= v->n)
                return -1;
        }
        if (id >= 0)
            out[n++] = id;
        i += w;
    }
    for (;;) {
        float best = -1e10f;
        int at = -1, into = -1;
        for (int i = 0; i + 1 < n; i++) {
            char both[128];
            const int a = out[i], b = out[i + 1];
            memcpy(both, v->piece[a], (size_t)v->len[a]);
            memcpy(both + v->len[a], v->piece[b], (size_t)v->len[b]);
            const int id = lookup(v, both, v->len[a] + v->len[b]);
            if (id >= 0 && v->score[id] > best) {
                best = v->score[id];
                at = i;
                into = id;
            }
        }
        if (at < 0)
            return n;
        out[at] = into;
        memmove(out + at + 1, out + at + 2, sizeof *out * (size_t)(n - at - 2));
        n--;
    }
}

static size_t write_bin(const vocabulary *v, char *out)
{
    const uint32_t longest = 60;
    size_t at = sizeof longest;
    memcpy(out, &longest, sizeof longest);
    for (size_t i = 0; i < v->n; i++) {
        memcpy(out + at, &v->score[i], 4);
        memcpy(out + at + 4, &v->len[i], 4);
        memcpy(out + at + 8, v->piece[i], (size_t)v->len[i]);
        at += 8 + (size_t)v->len[i];
    }
    return at;
}

static void add_piece(vocabulary *v, const char *s, int len, float score)
{
    if (len > 60 || lookup(v, s, len) >= 0)
        return;
    v->score[v->n] = score;
    v->len[v->n] = len;
    memcpy(v->piece[v->n++], s, (size_t)len);
}

static void expect_same(const vocabulary *v, const kvd_tokenizer *t, const char *s, size_t len)
{
    int *want = unit_alloc(sizeof *want * (4 * len + 8));
    kvd_err err;
    kvd_ids ids = {0};
    for (int bos = 0; bos < 2; bos++) {
        const int n = naive_encode(v, s, len, bos, want);
        ids.n = 0;
        const int rc = kvd_tokenizer_encode(t, s, len, bos, &ids, &err);
        if (n < 0) {
            assert_int_equal(rc, -1);
            SAYS("is no piece, and its byte would have id");
            continue;
        }
        assert_int_equal(rc, 0);
        assert_int_equal(ids.n, n);
        for (int i = 0; i < n; i++)
            assert_int_equal(ids.id[i], want[i]);
        for (size_t cut = 0; cut < len; cut++) {
            ids.n = 0;
            OK(kvd_tokenizer_encode_start(t, s, cut, bos, &ids, &err));
            assert_true(ids.n <= (size_t)n);
            for (size_t i = 0; i < ids.n; i++)
                assert_int_equal(ids.id[i], want[i]);
        }
    }
    kvd_ids_release(&ids);
}

TEST(test_random_vocabularies)
{
    static vocabulary v;
    static char file[1 << 20];
    static const float scores[] = {0, -0.0f, 1, -1, -2, -3, 0.5f, 1e9f, -2e10f, -1e10f, 3e-39f};
    for (int round = 0; round < 60; round++) {
        v.n = 0;
        add_piece(&v, "<unk>", 5, 0);
        if (next_random(2))
            add_piece(&v, "<s>", 3, 0);
        else
            add_piece(&v, "a", 1, 0);
        add_piece(&v, "</s>", 4, 0);
        if (next_random(4))
            for (int b = 0; b < 256; b++) {
                char name[8];
                (void)snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
                add_piece(&v, name, 6, 0);
            }
        add_piece(&v, " ", 1, -1);
        add_piece(&v, "b", 1, -1);
        add_piece(&v, "\xc3\xa4", 2, -1);
        for (int i = 0; i < 40; i++) {
            const size_t a = next_random((uint32_t)v.n),
                         b = next_random(3) ? v.n - 1 - next_random(3) : 1;
            char both[128];
            if (v.len[a] == 6 || v.len[b] == 6)
                continue;
            memcpy(both, v.piece[a], (size_t)v.len[a]);
            memcpy(both + v.len[a], v.piece[b], (size_t)v.len[b]);
            add_piece(&v, both, v.len[a] + v.len[b],
                      round % 2 ? scores[next_random(sizeof scores / sizeof *scores)] : -(float)i);
        }
        kvd_err err;
        kvd_tokenizer *t = kvd_tokenizer_parse("random", file, write_bin(&v, file), v.n, &err);
        keep_tokenizer(t, &err);
        assert_int_equal(kvd_tokenizer_size(t), v.n);
        for (int k = 0; k < 30; k++) {
            char s[200];
            size_t len = 0;
            while (len < 100 && next_random(60)) {
                static const char *const parts[] = {"a", "b", " ", "a", "\xc3\xa4", "\xe4\xbd\xa0",
                                                    "<", "s"};
                const char *p = parts[next_random(8)];
                memcpy(s + len, p, strlen(p));
                len += strlen(p);
            }
            expect_same(&v, t, s, len);
        }
    }
}

static char *read_file(const char *folder, const char *name, size_t *len)
{
    char path[600];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    char *s = f ? unit_alloc(1 << 20) : NULL;
    if (s)
        *len = fread(s, 1, 1 << 20, f);
    if (f)
        (void)fclose(f);
    return s;
}

TEST(test_shared_inputs)
{
    const char *shared = getenv("KVDIM_SHARED");
    shared = shared ? shared : "../shared";
    static const struct {
        const char *bin, *text;
        size_t pieces;
        int lossless;
    } real[] = {
        {"inputs/models/stories260K.tok512.bin", "inputs/text/tinystories_1000.json", 512, 1},
        {"inputs/models/stories260K.tok512.bin", "inputs/text/zh_poetry_corpus.json", 512, 1},
        {"inputs/models/zhpoem750K.tok.bin", "inputs/text/zh_poetry_corpus.json", 2048, 0}};
    static vocabulary v;
    size_t compared = 0;
    for (size_t r = 0; r < 3; r++) {
        size_t n_bin = 0, n_text = 0;
        char *bin = read_file(shared, real[r].bin, &n_bin),
             *text = read_file(shared, real[r].text, &n_text);
        if (bin && text) {
            size_t at = 4;
            for (v.n = 0; v.n < real[r].pieces; v.n++) {
                memcpy(&v.score[v.n], bin + at, 4);
                memcpy(&v.len[v.n], bin + at + 4, 4);
                memcpy(v.piece[v.n], bin + at + 8, (size_t)v.len[v.n]);
                at += 8 + (size_t)v.len[v.n];
            }
            kvd_err err;
            kvd_tokenizer *t = kvd_tokenizer_parse("real", bin, n_bin, real[r].pieces, &err);
            keep_tokenizer(t, &err);
            for (size_t begin = 1000; begin < 40000 && begin + 400 < n_text; begin += 5000) {
                size_t from = begin, to = begin + 300;
                while ((text[from] & 0xc0) == 0x80)
                    from++;
                while ((text[to] & 0xc0) == 0x80)
                    to++;
                expect_same(&v, t, text + from, to - from);
                kvd_ids ids = {0};
                OK(kvd_tokenizer_encode(t, text + from, to - from, true, &ids, &err));
                compared += ids.n;
                size_t n;
                char *back = kvd_tokenizer_decode(t, ids.id, ids.n, true, &n, &err);
                assert_non_null(back);
                if (real[r].lossless) {
                    static const char bos[] = "\n<s>\n";
                    assert_memory_equal(back, bos, strlen(bos));
                    assert_int_equal(n, strlen(bos) + to - from);
                    assert_memory_equal(back + strlen(bos), text + from, to - from);
                }
                free(back);
                kvd_ids_release(&ids);
            }
        }
    }
    if (!compared)
        skip();
}

TEST(test_hostile_files)
{
    static vocabulary v;
    static char file[4096];
    kvd_err err;
    v.n = 0;
    add_piece(&v, "<unk>", 5, 0);
    add_piece(&v, "<s>", 3, 0);
    add_piece(&v, " ", 1, 0);
    add_piece(&v, "a", 1, 0);
    const size_t len = write_bin(&v, file);
    kvd_tokenizer *t = keep_tokenizer(kvd_tokenizer_parse("x", file, len, 4, &err), &err);
    kvd_ids ids = {0};
    OK(kvd_tokenizer_encode(t, "", 0, true, &ids, &err));
    assert_int_equal(ids.n, 1); /* BOS alone, without the leading space */
    ids.n = 0;
    OK(kvd_tokenizer_encode(t, "", 0, false, &ids, &err));
    assert_int_equal(ids.n, 0);
    FAILS(kvd_tokenizer_encode(t, "a\xff", 2, false, &ids, &err),
          "text is not valid UTF-8 at byte 1");
    size_t n;
    const uint32_t out[] = {1, 4};
    assert_null(kvd_tokenizer_decode(t, out, 2, true, &n, &err));
    assert_string_equal(err.msg, "tokenizer 'x': id 4 at position 1 is not in the vocabulary of 4");
    kvd_ids_release(&ids);

    for (size_t cut = 0; cut < len; cut++)
        assert_null(kvd_tokenizer_parse("x", file, cut, 4, &err));
    const struct {
        size_t at;
        char value;
        const char *message;
    } bad[] = {
        {8, 0, "piece 0 has length 0"},
        {11, (char)0x80, "piece 0 has length -2147483643"},
        {8, 61, "piece 0 has length 61, the longest is said to be 60"},
        {8, 50, "in piece 0 of 4"},
        {12, 0, "piece 0 holds a zero byte"},
        {0, 4, "has length 5, the longest is said to be 4"},
        {len - 1, ' ', "piece ' ' has two ids, 2 and 3"},
        {len - 10, '_', "no piece is a space"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char copy[4096];
        memcpy(copy, file, len);
        copy[bad[i].at] = bad[i].value;
        assert_null(kvd_tokenizer_parse("x", copy, len, 4, &err));
        SAYS(bad[i].message);
    }
    file[len] = 0;
    assert_null(kvd_tokenizer_parse("x", file, len + 1, 4, &err));
    SAYS("1 bytes follow piece 3");
    assert_null(kvd_tokenizer_parse("x", file, len, 3, &err));
    SAYS("9 bytes follow piece 2");
    assert_null(kvd_tokenizer_parse("x", file, len, SIZE_MAX, &err));
    SAYS("cannot hold a llama2.c tokenizer of");
    const float nan = 0.0f / 0.0f;
    memcpy(file + 4, &nan, 4);
    assert_null(kvd_tokenizer_parse("x", file, len, 4, &err));
    SAYS("piece 0 has no number as its score");
}

TEST(test_long_document)
{
    static vocabulary v;
    static char file[1 << 16];
    kvd_err err;
    kvd_ids ids = {0};
    v.n = 0;
    add_piece(&v, "<unk>", 5, 0);
    add_piece(&v, "<s>", 3, 0);
    add_piece(&v, " ", 1, 0);
    add_piece(&v, "a", 1, 0);
    for (int n = 2; n <= 32; n *= 2) {
        char run[64];
        memset(run, 'a', sizeof run);
        add_piece(&v, run, n, (float)-n);
    }
    kvd_tokenizer *t = kvd_tokenizer_parse("x", file, write_bin(&v, file), v.n, &err);
    keep_tokenizer(t, &err);
    const size_t len = 1 << 19;
    char *s = unit_alloc(len);
    memset(s, 'a', len);
    OK(kvd_tokenizer_encode(t, s, len, false, &ids, &err));
    assert_int_equal(ids.n, 1 + len / 32);
    for (size_t i = 1; i < ids.n; i++)
        assert_int_equal(ids.id[i], v.n - 1);
    kvd_ids_release(&ids);
}

TEST_MAIN(NULL, NULL)
