#include <stdio.h>
#include <string.h>

#include "model/checkpoint/safetensors.h"
#include "unit.h"

/* copy of a file in a memory block of exactly its size, so that a sanitizer sees reads beyond its
 * end */
typedef struct {
    unsigned char *bytes;
    size_t len;
} blob;

static blob make_blob(const char *header, size_t header_len, size_t data_len)
{
    blob b = {.len = 8 + header_len + data_len};
    b.bytes = unit_alloc(b.len);
    for (int i = 0; i < 8; i++)
        b.bytes[i] = (unsigned char)((uint64_t)header_len >> (8 * i));
    memcpy(b.bytes + 8, header, header_len);
    for (size_t i = 0; i < data_len; i++)
        b.bytes[8 + header_len + i] = (unsigned char)i;
    return b;
}

static float float_at(const kvd_tensor *t, size_t i)
{
    float x;
    memcpy(&x, (const char *)t->data + 4 * i, sizeof x);
    return x;
}

static uint16_t half_at(const kvd_tensor *t, size_t i)
{
    uint16_t x;
    memcpy(&x, (const char *)t->data + 2 * i, sizeof x);
    return x;
}

TEST(test_reference_file)
{
    kvd_err err = {""};
    kvd_safetensors *s = kvd_safetensors_open("tests/data/every_dtype.safetensors", &err);
    assert_non_null(s);
    assert_int_equal(kvd_safetensors_count(s), 12);
    for (size_t i = 1; i < 12; i++)
        assert_true(strcmp(kvd_safetensors_name(s, i - 1), kvd_safetensors_name(s, i)) < 0);

    kvd_tensor t;
    OK(kvd_safetensors_find(s, "f32", &t, &err));
    assert_string_equal(t.name, "f32");
    assert_string_equal(t.file, "tests/data/every_dtype.safetensors");
    assert_int_equal(t.dtype, KVD_F32);
    assert_int_equal(t.rank, 2);
    assert_int_equal(t.dims[0], 2);
    assert_int_equal(t.dims[1], 3);
    assert_int_equal(t.n, 6);
    const float f[] = {1.5F, -2.25F, 0.0F, 65504.0F, -1.0F, 0.333251953125F};
    for (size_t i = 0; i < 6; i++)
        assert_true(float_at(&t, i) == f[i]);

    OK(kvd_safetensors_find(s, "f16", &t, &err));
    assert_int_equal(t.dtype, KVD_F16);
    const uint16_t f16[] = {0x3e00, 0xc080, 0, 0x7bff, 0xbc00, 0x3555};
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(half_at(&t, i), f16[i]);

    OK(kvd_safetensors_find(s, "bf16", &t, &err));
    assert_int_equal(t.dtype, KVD_BF16);
    const uint16_t bf16[] = {0x3fc0, 0xc010, 0, 0x4780, 0xbf80, 0x3eab};
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(half_at(&t, i), bf16[i]);

    OK(kvd_safetensors_find(s, "scalar", &t, &err));
    assert_int_equal(t.rank, 0);
    assert_int_equal(t.n, 1);
    assert_true(float_at(&t, 0) == 7.0F);
    OK(kvd_safetensors_find(s, "empty", &t, &err));
    assert_int_equal(t.n, 0);
    assert_int_equal(t.dims[1], 5);
    OK(kvd_safetensors_find(s, "rank4", &t, &err));
    assert_int_equal(t.rank, 4);
    for (size_t i = 0; i < 24; i++)
        assert_true(float_at(&t, i) == (float)i);
    OK(kvd_safetensors_find(s, "name with \xc3\xa4 and \"quotes\"", &t, &err));
    assert_true(float_at(&t, 0) == 3.0F);

    assert_int_equal(kvd_safetensors_find(s, "f3", &t, &err), 1);
    assert_int_equal(kvd_safetensors_find(s, "__metadata__", &t, &err), 1);
    const char *const unusable[][2] = {
        {"i64", "I64"}, {"u8", "U8"}, {"bool", "BOOL"}, {"f64", "F64"}, {"f8", "F8_E4M3"}};
    for (size_t i = 0; i < 5; i++) {
        char want[128];
        (void)snprintf(want, sizeof want, "tensor '%s' is %s, only F32, F16 and BF16 are supported",
                       unusable[i][0], unusable[i][1]);
        assert_int_equal(kvd_safetensors_find(s, unusable[i][0], &t, &err), -1);
        SAYS(want);
    }
    kvd_safetensors_close(s);
}

TEST(test_accepted)
{
    static const struct {
        const char *header;
        size_t data, count;
    } good[] = {
        {"{}", 0, 0},
        {"{}          ", 0, 0},
        {"{\"__metadata__\":{\"a\":\"b\"}}", 0, 0},
        {"{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]},"
         "\"a\":{\"shape\":[],\"data_offsets\":[0,2],\"dtype\":\"BF16\"}}",
         6, 2},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775807],\"data_offsets\":[4,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"c\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[0,0]}}",
         4, 3},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[6],\"data_offsets\":[0,3]}}", 3, 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        kvd_err err = {""};
        blob b = make_blob(good[i].header, strlen(good[i].header), good[i].data);
        kvd_safetensors *s = kvd_safetensors_parse("m", b.bytes, b.len, &err);
        if (!s)
            fail_msg("%s", err.msg);
        assert_int_equal(kvd_safetensors_count(s), good[i].count);
        kvd_safetensors_close(s);
    }
}

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(test_refused)
{
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } bad[] = {
        {"", 0, "'m': not a safetensors file: the header does not begin with '{'"},
        {"[]", 0, "does not begin with '{'"},
        {" {}", 0, "does not begin with '{'"},
        {"{", 0, "'m': header, byte 1: "},
        {"{} x", 0, "end of file expected"},
        {"{\"a\":1}", 0, "tensor 'a': its entry is not an object"},
        {"{\"a\":{}}", 0, "must hold dtype, shape and data_offsets and nothing else"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"x\":1}}", 4,
         "and nothing else"},
        {"{\"a\":{\"dtype\":7,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "'dtype' is not a string"},
        {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, "tensor 'a': unknown dtype 'F33'"},
        {"{" T("a", "f32", "[1]", "[0,4]") "}", 4, "unknown dtype 'f32'"},
        {"{" T("a", "F32", "1", "[0,4]") "}", 4, "'shape' is not a list"},
        {"{" T("a", "F32", "[1,1,1,1,1]", "[0,4]") "}", 4, "5 dimensions, at most 4 are supported"},
        {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "shape[0] is not a non-negative integer"},
        {"{" T("a", "F32", "[1, 1.0]", "[0,4]") "}", 4, "shape[1] is not a non-negative integer"},
        {"{" T("a", "F32", "[true]", "[0,4]") "}", 4, "shape[0] is not a non-negative integer"},
        {"{" T("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "shape[0] is not a non-negative integer"},
        {"{" T("a", "F32", "[18446744073709551617]", "[0,4]") "}", 4, "too big integer"},
        {"{" T("a", "F32", "[4294967296,4294967297]", "[0,4]") "}", 4,
         "the product of its shape overflows at shape[1] = 4294967297"},
        {"{" T("a", "F32", "[4611686018427387905]", "[0,4]") "}", 4,
         "the size of 4611686018427387905 elements of F32 overflows"},
        {"{" T("a", "F4", "[3]", "[0,2]") "}", 2, "3 elements of F4 are not whole bytes"},
        {"{" T("a", "F32", "[1]", "[0]") "}", 4, "not a list of two non-negative integers"},
        {"{" T("a", "F32", "[1]", "[0,4,8]") "}", 8, "not a list of two non-negative integers"},
        {"{" T("a", "F32", "[1]", "[-4,0]") "}", 4, "not a list of two non-negative integers"},
        {"{" T("a", "F32", "[1]", "{\"0\":0}") "}", 4, "not a list of two non-negative integers"},
        {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, "data_offsets [4, 0] run backwards"},
        {"{" T("a", "F32", "[1]", "[0,5]") "}", 5,
         "data_offsets span 5 bytes, its shape and dtype F32 need 4"},
        {"{" T("a", "F32", "[2]", "[0,8]") "}", 7,
         "data_offsets end at 8, the file holds 7 bytes of data"},
        {"{" T("a", "F32", "[1]", "[9223372036854775803,9223372036854775807]") "}", 4,
         "data_offsets end at 9223372036854775807, the file holds 4"},
        {"{" T("a", "F32", "[1]", "[0,4]") "}", 5,
         "the tensors end at byte 4 of the data, the file holds 5"},
        {"{}", 1, "the tensors end at byte 0 of the data, the file holds 1"},
        {"{" T("a", "F32", "[1]", "[1,5]") "}", 5,
         "bytes 0 to 1 of the data, before tensor 'a', belong to no tensor"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[5,9]") "}", 9,
         "bytes 4 to 5 of the data, before tensor 'b', belong to no tensor"},
        {"{" T("b", "F32", "[2]", "[0,8]") "," T("a", "F32", "[1]", "[4,8]") "}", 8,
         "tensor 'a' begins at byte 4, inside tensor 'b' that ends at 8"},
        {"{" T("b", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[0,4]") "}", 4,
         "begins at byte 0, inside"},
        {"{" T("b", "F32", "[1]", "[0,4]") "," T("a", "F32", "[0]", "[2,2]") "}", 4,
         "tensor 'a' begins at byte 2, inside tensor 'b'"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8,
         "duplicate object key"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "duplicate object key"},
        {"{\"__metadata__\":1}", 0, "'__metadata__' is not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "'__metadata__' key 'a' is not a string"},
        {"{\"a\xff\":1}", 0, "unable to decode byte 0xff"},
        {"{\"a\\u0000b\":1}", 0, "NUL byte in object key"},
        {"{\"a\\nb\":1}", 0, "tensor 'a?b': its entry"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvd_err err = {""};
        blob b = make_blob(bad[i].header, strlen(bad[i].header), bad[i].data);
        assert_null(kvd_safetensors_parse("m", b.bytes, b.len, &err));
        if (!strstr(err.msg, bad[i].message))
            fail_msg("%zu: '%s' lacks '%s'", i, err.msg, bad[i].message);
    }
}

TEST(test_header_length)
{
    static const struct {
        uint64_t stated;
        size_t len;
        const char *message;
    } bad[] = {
        {0, 0, "0 bytes, the header length alone takes 8"},
        {0, 7, "7 bytes, the header length alone takes 8"},
        {0, 8, "does not begin with '{'"},
        {3, 10, "header of 3 bytes in a file of 10: cut short, or not a safetensors file"},
        {100000000, 10, "header of 100000000 bytes in a file of 10"},
        {100000001, 10, "header of 100000001 bytes, at most 100000000 are allowed"},
        {UINT64_MAX, 10, "header of 18446744073709551615 bytes, at most 100000000 are allowed"},
        {UINT64_MAX - 7, 10, "at most 100000000 are allowed"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvd_err err = {""};
        unsigned char all[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        for (int j = 0; j < 8; j++)
            all[j] = (unsigned char)(bad[i].stated >> (8 * j));
        unsigned char *exact = unit_alloc(bad[i].len);
        memcpy(exact, all, bad[i].len);
        assert_null(kvd_safetensors_parse("m", exact, bad[i].len, &err));
        SAYS(bad[i].message);
    }
}

TEST(test_deep_nesting)
{
    enum { DEPTH = 100000 };
    kvd_err err = {""};
    char *header = unit_alloc(DEPTH + 5);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', DEPTH);
    blob b = make_blob(header, DEPTH + 5, 0);
    assert_null(kvd_safetensors_parse("m", b.bytes, b.len, &err));
    SAYS("maximum parsing depth reached");
}

TEST(test_every_cut)
{
    const char *const header =
        "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F16", "[2]", "[4,8]") "}";
    blob b = make_blob(header, strlen(header), 8);
    for (size_t len = 0; len <= b.len; len++) {
        kvd_err err = {""};
        unsigned char *cut = unit_alloc(len);
        memcpy(cut, b.bytes, len);
        kvd_safetensors *s = kvd_safetensors_parse("m", cut, len, &err);
        assert_true((s != NULL) == (len == b.len));
        kvd_safetensors_close(s);
    }
}

TEST(test_files)
{
    kvd_err err = {""};
    assert_null(kvd_safetensors_open("tests/data/none.safetensors", &err));
    assert_string_equal(err.msg,
                        "cannot open 'tests/data/none.safetensors': No such file or directory");
    assert_null(kvd_safetensors_open("tests/data", &err));
    assert_string_equal(err.msg, "'tests/data' is a folder, not a regular file");
    assert_null(kvd_safetensors_open("/dev/null", &err));
    assert_string_equal(err.msg, "'/dev/null' is special, not a regular file");
    kvd_safetensors_close(NULL);
}

TEST_MAIN(NULL, NULL)
